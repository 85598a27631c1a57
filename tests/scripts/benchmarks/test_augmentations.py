"""The benchmark of the augmentations has a figure for each of them, and a ratio for each peer."""

from trainers import augmentations


def test_every_augmentation_has_a_figure(run):
    import augmentations as benchmark

    lines, figures = run("augmentations.py", "--size 32 --images 1 --rounds 1")
    known = benchmark.cases(32)
    assert {name.partition(",")[0] for name in known} == set(augmentations.__all__)
    assert figures["augmentations"].keys() == known.keys()
    for name, (_, peer) in known.items():
        assert all(figure is None or figure > 0 for figure in figures["augmentations"][name].values())
        assert (figures["augmentations"][name]["ratio"] is not None) == (peer is not None)
    assert len(lines) == 2 + len(known)
