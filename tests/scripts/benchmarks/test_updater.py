"""The loops of the updater's benchmark do the same work; its times are for quiet machines."""

import pytest

RATIOS = (("updater", "bare"), ("noise", "updater"), ("bare", "plain norm"))


@pytest.mark.mpi
def test_every_loop_has_figures_of_every_round(run):
    lines, (figures,) = run("updater.py", "--cases digits --ranks 2 --rounds 2 --updates 1")
    assert figures["ranks"] * figures["micro_batches"] * figures["micro_batch_size"] == 512
    assert figures["global_batch_size"] == 512
    assert figures["seconds"].keys() == {"updater", "noise", "bare", "plain norm"}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in figures["seconds"].values())
    for one, other in RATIOS:
        pairs = zip(figures["seconds"][one], figures["seconds"][other], strict=True)
        assert figures[f"{one}_over_{other}".replace(" ", "_")] == pytest.approx([a / b for a, b in pairs])
    assert figures["weight_difference"] < 1e-5
    assert lines[-1].startswith("| digits | 2 | ")
