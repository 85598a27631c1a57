"""Norms of the weights in `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lr_schedules.units import Epochs

if TYPE_CHECKING:
    from chainer.training import Trainer


@dataclass(frozen=True, kw_only=True)
class WeightNorms:
    """Writes a line `weight_norms`: the Euclidean norm of each parameter, by path.

    A layer before a normalisation computes the same for any length |w| of its weights, and its effective rate is
    rate / |w|^2: norms that grow during a run slow it down, beside the schedule. With `updater.local_steps` they are
    those of the first worker's weights.

    Args:
        every: `update`, or a duration in epochs such as `1ep`, above 0: after the first update that reaches each
            multiple, and after the last one.
    Raises:
        ValueError: `every` is not above 0.

    Source: van Laarhoven 2017, arXiv:1706.05350 (not checked).
    """

    every: Literal["update"] | Epochs = 1.0

    def __post_init__(self) -> None:
        if self.every != "update" and not self.every > 0:
            raise ValueError(f"WeightNorms.every must be above 0, got {self.every}")

    def build(self) -> Callable[[Trainer], None]:
        """The extension; rank 0 writes the norms of its own weights, so it communicates nothing."""
        return _write_norms


def _write_norms(trainer: Trainer) -> None:
    updater = trainer.updater
    parameters = sorted(updater.get_optimizer("main").target.namedparams())
    norms = {path: float((parameter.array.astype("float64") ** 2).sum() ** 0.5) for path, parameter in parameters}
    trainer.get_extension("Metrics").write("weight_norms", norms, update=updater.iteration, epoch=updater.epoch_detail)
