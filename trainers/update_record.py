"""What an update was, for metrics, trace and progress."""

from __future__ import annotations

from dataclasses import dataclass

from recipes.noise_scale import Norms
from trainers.exchange import Exchanged
from trainers.stream_iterator import SeenSample


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """What one update was: `epoch`, `samples` at its start, `loss` the mean over the global batch before it.

    `gradient_norm` is None where the recipe clips nothing, `gain` where the optimizer has none, `norms` where nobody
    asked for them or the update is one share; `loss_scale`, and `overflows`, the number of times the update was done
    again at a smaller one, with float32 compute.
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


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the step of the optimizer was; all None where there was none."""

    gradient_norm: float | None = None
    gain: float | None = None
    learning_rate: float | None = None
    exchanged: Exchanged | None = None
