"""When evaluation and checkpoints are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chainer.training import Trainer

from recipes.planning.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Every:
    """Fires after the updates after which `Timeline.next_due` says it is due.

    Args:
        epochs: above 0, or `update` for every update.
        timeline: of the whole run.
        offset: epochs, see there.
    """

    epochs: float | Literal["update"]
    timeline: Timeline
    offset: float = 0.0

    def __call__(self, trainer: Trainer) -> bool:
        done = trainer.updater.iteration
        return self.timeline.next_due(self.epochs, after=done - 1, offset=self.offset) == done
