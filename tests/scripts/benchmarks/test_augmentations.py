"""The benchmark of the augmentations has a figure for each of them, and a ratio for each peer."""

import sys

from trainers import augmentations


def test_every_augmentation_has_a_figure(monkeypatch, capsys):
    import augmentations as benchmark

    monkeypatch.setattr(sys, "argv", ["augmentations.py", "--size", "32", "--images", "1", "--rounds", "1"])
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()[1:]
    known = benchmark.cases(32)
    assert {name.partition(",")[0] for name in known} == set(augmentations.__all__)
    assert [line[:18].strip() for line in lines] == [*known]
    assert [not line.endswith("-") for line in lines] == [peer is not None for _, peer in known.values()]
