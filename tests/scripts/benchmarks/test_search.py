"""The benchmark of searches has a figure for each part of a trial."""


def test_every_part_has_a_figure(tmp_path):
    from argparse import Namespace

    from search import PARTS, measure

    options = Namespace(storage="sqlite", reports=2, measured=1)
    found = measure(tmp_path, options, 1)
    assert (found["finished"], found["reports"]) == (1, 2)
    for clock in ("clock", "processor"):
        assert found[clock].keys() == {*PARTS, "study", "all"}
        assert min(found[clock].values()) > 0
