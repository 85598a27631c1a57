"""How a run is done, as opposed to what it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a run is done, as opposed to what it does.

    Args:
        folder: of the run.
        resume: go on from its newest checkpoint.
        stop_after_update: end with a checkpoint after so many updates from the start of the run; None for all.
        checkpoint_every: epochs, or `update`.
        trace: write `trace.jsonl`.
        measure_noise: write what the noise scale is computed from into every line of an update.
        profile: updates to write a profile of; 0 for none.
        threads: BLAS and OpenMP threads of a rank, for the log.
    """

    folder: Path
    resume: bool = False
    stop_after_update: int | None = None
    checkpoint_every: float | str = 1.0
    trace: bool = False
    measure_noise: bool = False
    profile: int = 0
    threads: int = 1
