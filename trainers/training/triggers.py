"""Triggers: they decide after which updates an extension runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from chainer.training import Trainer

from recipes.schema.positions import last_multiple


@dataclass(frozen=True, kw_only=True)
class Every:
    """Fires after the first update that reaches each multiple of `epochs`, and after the last update of the run.

    Args:
        epochs: above 0, or `update` for every update.
        num_updates: updates of the whole run.
    """

    epochs: float | Literal["update"]
    num_updates: int

    def __call__(self, trainer: Trainer) -> bool:
        updater = trainer.updater
        if self.epochs == "update" or updater.iteration == self.num_updates:
            return True
        return last_multiple(updater.epoch_detail, self.epochs) > last_multiple(
            updater.previous_epoch_detail, self.epochs
        )


class AnyOf:
    """Fires where any of several triggers fires.

    Args:
        triggers: stateless, because a later one is not called if an earlier one fires.
    """

    def __init__(self, *triggers: Callable[[Trainer], bool]) -> None:
        self._triggers = triggers

    def __call__(self, trainer: Trainer) -> bool:
        return any(trigger(trainer) for trigger in self._triggers)
