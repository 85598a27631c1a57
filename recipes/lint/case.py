"""What a rule gets and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipes.reading.open import OpenedRecipe
from recipes.schema import Recipe
from recipes.schema.vocabulary import rate_rule


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something a rule found.

    Args:
        keys: the keys that cause it together, the most important first. It is reported at the key that the recipe's own
            file gives, before those of the files that it extends; of several, at the first.
        what: what is found, with its numbers.
        way_out: what to write instead.
    """

    keys: tuple[str, ...]
    what: str
    way_out: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recipe as the rules see it.

    Args:
        opened: the recipe.
        written: the merged tree as it was written, positions with their units.
        base: the recipe that it extends; None if it extends none.
        workers: number of workers; None if unknown.
        wire: number format of gradients on the wire.
    """

    opened: OpenedRecipe
    written: Mapping[str, Any]
    base: OpenedRecipe | None = None
    workers: int | None = None
    wire: str = "float32"

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.opened.recipe

    @property
    def optimizer(self) -> Mapping[str, Any]:
        """`kind` and keys of the optimizer, built or not."""
        return self.opened.tree["optimizer"]

    @property
    def is_momentum_sgd(self) -> bool:
        """Whether the optimizer is SGD, with or without momentum of any form."""
        return rate_rule(self.recipe.optimizer) == "linear"

    @property
    def first_batch(self) -> int:
        """The global batch that the run begins with."""
        return self.recipe.batch.global_.sizes[0]

    @property
    def largest_batch(self) -> int:
        """The largest global batch of the run."""
        return max(self.recipe.batch.global_.sizes)

    @property
    def growth(self) -> float:
        """The first batch over the batch at which the reference rate holds."""
        return self.first_batch / self.recipe.learning_rate.per

    @property
    def ramps(self) -> bool:
        """Whether the batch changes over the run."""
        return len(self.recipe.batch.global_.sizes) > 1


Rule = Callable[[Case], Iterator[Fault]]
