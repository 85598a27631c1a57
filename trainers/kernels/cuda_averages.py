"""Running statistics of all layers moved on a GPU by one launch."""

from __future__ import annotations

from typing import Any

from trainers.kernels import cuda_launch
from trainers.kernels.cuda_launch import THREADS


def move_averages(sums: Any, places: Any, averages: Any, keep: float, *, pooled: bool) -> None:
    """What `trainers.norm_groups.moved_statistics` computes, in place.

    Args:
        sums: float64, what the layers have seen.
        places: int64 (4, channels), where in `sums` a channel's weight, mean, variance and squared mean are.
        averages: (2, channels)
        keep: what is kept of them, in [0, 1].
        pooled: whether the variance of the groups' means is added.
    """
    channels = averages.shape[1]
    arguments = (sums, places, averages, float(keep), int(pooled), channels)
    cuda_launch.device.launch("moved_averages", averages.dtype.char, 1, (-(-channels // THREADS),), arguments)
