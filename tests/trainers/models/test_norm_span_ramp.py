"""Running statistics count as weights: the same on any ranks, whatever the split, while the norm span grows."""

import pytest

pytestmark = pytest.mark.mpi


# Groups of 32, then of 64 samples: alone two groups in a micro-batch, then one; on three ranks one group, then teams of
# two; on four ranks teams of two, then one of four.
@pytest.mark.parametrize(
    ("norm_statistics", "splits"),
    [("pooled", [(3, 32)]), pytest.param("by_group", [(4, 16)], marks=pytest.mark.slow)],
)
def test_running_statistics_of_each_kind_are_the_same_while_the_norm_span_grows(
    tmp_path, train, assert_same_run, norm_statistics, splits
):
    options = ("--set", f"evaluation.norm_statistics={norm_statistics}")
    options += ("--set", "batch.norm_span=[{from: 0, size: 32}, {from: 1, size: 64}]")
    alone = train(tmp_path / "alone", 1, *options, stop_after=20, dtype="float64")
    assert any(path.endswith("avg_var") for path in alone.weights), "compared as weights are"
    for ranks, micro_batch_size in splits:
        folder = tmp_path / f"{ranks}x{micro_batch_size}"
        actual = train(folder, ranks, "--micro-batch-size", micro_batch_size, *options, stop_after=20, dtype="float64")
        assert_same_run(actual, alone, loss=1e-13, weights=1e-12)
