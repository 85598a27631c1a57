"""What an update was, for metrics, trace and progress."""

from __future__ import annotations

from dataclasses import dataclass

from recipes.noise_scale import Norms
from trainers.phases import Exchanged
from trainers.stream_iterator import SeenSample


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """What one update was: `epoch`, `samples` at its start, `loss` the mean over the global batch before it.

    `gradient_norm` is None where the recipe clips nothing, `gain` where the optimizer has none, `norms` where nobody
    asked for them or the update is one share; `loss_scale`, and `overflows`, the number of times the update was done
    again at a smaller one, with float32 compute.
    `ran_out` is of the attempts that were given up for want of memory.
    With double buffering `gradient_norm` and `norms` are those of the gradient that was applied, the update's before.
    """

    update: int
    epoch: float
    samples: int
    global_batch_size: int
    learning_rate: float
    momentum: float | None
    loss: float
    seen: tuple[SeenSample, ...]
    gradient_norm: float | None = None
    gain: float | None = None
    norms: Norms | None = None
    loss_scale: float | None = None
    overflows: int | None = None
    image_size: int | None = None
    exchanged: Exchanged | None = None
    ran_out: tuple[RanOut, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RanOut:
    """An attempt at an update in which the memory of a worker ran out.

    Args:
        rank: the first such worker.
        said: by whatever could not be had there.
        micro_batch_size: samples of the largest micro-batch then.
        next_size: samples of the largest from the next attempt on.
    """

    rank: int
    said: str
    micro_batch_size: int
    next_size: int

    def __str__(self) -> str:
        return (
            f"memory ran out on rank {self.rank} with micro-batches of {self.micro_batch_size} samples: at most "
            f"{self.next_size} from here on, in more steps, and the update done again; its mathematics is the same. It "
            f"was said: {self.said}"
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the step of the optimizer was; all None where there was none."""

    gradient_norm: float | None = None
    gain: float | None = None
    learning_rate: float | None = None
    exchanged: Exchanged | None = None
