"""The hyperparameters that an optimizer gets before each of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """What an optimizer's formula needs to know of an update.

    Args:
        update: its number, from 0.
        epoch: at its start.
        global_batch_size: samples in it.
        learning_rate: of this update, everything included.
        full_rate: the rate that warmup and schedule are factors of.
    """

    update: int
    epoch: float
    global_batch_size: int
    learning_rate: float
    full_rate: float


def set_hyperparameters(component: Any, optimizer: chainer.Optimizer, values: Hyperparameters) -> None:
    """Set the hyperparameters that an update rule reads, all to Python floats: a NumPy float64 would widen its arrays.

    Beside the rate, under the component's `rate_attribute`: `relative_rate` (rate over full rate) and `epoch`.
    """
    hyperparam = optimizer.hyperparam
    setattr(hyperparam, component.rate_attribute, float(values.learning_rate))
    hyperparam.relative_rate = float(values.learning_rate / values.full_rate)
    hyperparam.epoch = float(values.epoch)
