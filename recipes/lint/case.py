"""What a rule gets and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from recipes.planning.looked_at import looked_at
from recipes.planning.rates import learning_rate_at, momentum_at, scaling_exponent
from recipes.reading.open import OpenedRecipe
from recipes.reading.read import value_at
from recipes.schema import Recipe
from recipes.schema.vocabulary import rate_rule

# Its rate is 10 to 50 times that of SGD, whose rate / (1 - m) at the usual 0.9 is 10 times the rate (the README of
# github.com/facebookresearch/schedule_free at 70785b5, as notes made from it have it).
_RATE_FREE = 5.0


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
        inherited: the merged tree of the file that it extends, as it was written; empty if it extends none.
        workers: number of workers; None if unknown.
    """

    opened: OpenedRecipe
    written: Mapping[str, Any]
    base: OpenedRecipe | None = None
    inherited: Mapping[str, Any] = field(default_factory=dict)
    workers: int | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.opened.recipe

    @property
    def optimizer(self) -> Mapping[str, Any]:
        """`kind` and keys of the optimizer, built or not."""
        return self.opened.tree["optimizer"]

    @property
    def is_sgd(self) -> bool:
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
    def exponent(self) -> float:
        """The power of the batch that the rate follows: 1 under the linear rule, 0 without a rule."""
        return scaling_exponent(self.recipe.learning_rate.rule)

    @property
    def scales_linearly(self) -> bool:
        """Whether the rate follows the batch nearer to linearly than by the root."""
        return self.exponent > 0.75

    @property
    def has_norm(self) -> bool:
        """Whether the model has batch normalisation; also where that is unknown."""
        model = self.opened.tree["model"]
        return model["kind"] != "SimpleCNN" and model.get("batch_norm", True)

    @cached_property
    def peak(self) -> tuple[float, float]:
        """The highest rate of the run, and the first epoch at which it is within a tenth of it."""
        highest = max(self.rates.values())
        return highest, next(epoch for epoch, rate in self.rates.items() if rate >= 0.9 * highest)

    @property
    def factor_of_all(self) -> float:
        """The factor on the rate of all parameters but those that an earlier entry of `factors` names."""
        found = (each.factor for each in self.recipe.learning_rate.factors if "/*" in each.parameters)
        return next(found, 1.0) or 1.0  # 0: `recipes validate` warns that nothing is trained

    def rate_at(self, epoch: float) -> float:
        """The rate of an update, with `factor_of_all`."""
        return self.factor_of_all * learning_rate_at(self.recipe, epoch)

    @cached_property
    def longest_step(self) -> float:
        """The longest step of the run, as `step_at` counts."""
        return max(self.step_at(epoch) for epoch in self.rates)

    def step_at(self, epoch: float) -> float:
        """How far a gradient moves the weights of SGD over time: rate / (1 - m), of schedule-free SGD rate / 5."""
        return self.rate_at(epoch) * (1 / _RATE_FREE if self.is_schedule_free else self.momentum_factor_at(epoch))

    @property
    def is_schedule_free(self) -> bool:
        """Whether the optimizer is schedule-free SGD."""
        return self.optimizer["kind"] == "ScheduleFreeSGD"

    @property
    def over(self) -> str:
        """What `step_at` divides the rate by, in words: ` over 1 - momentum`."""
        if self.is_schedule_free:
            return f" of schedule-free SGD, over {_RATE_FREE:g},"
        return " over 1 - momentum" if self.momentum_factor > 1 else ""

    @cached_property
    def momentum_factor(self) -> float:
        """By how much momentum multiplies the steps of SGD: the highest rate / (1 - m), over the highest rate."""
        longest = max(rate * self.momentum_factor_at(epoch) for epoch, rate in self.rates.items())
        return longest / (self.peak[0] or 1.0)

    def momentum_factor_at(self, epoch: float) -> float:
        """By how much momentum multiplies a step over time, 1 / (1 - m)."""
        return 1 / (1 - (momentum_at(self.recipe, epoch) or 0.0))

    @cached_property
    def rates(self) -> dict[float, float]:
        """The rates of the run, by the epochs at which updates begin; all of them in a short run."""
        return {epoch: self.rate_at(epoch) for epoch in looked_at(self.recipe, self.opened.dataset)}

    @property
    def until_end_of_run(self) -> str:
        """A way out: the schedule of the rate without its `epochs`, which null removes only where a base gives it."""
        key, words = "learning_rate.schedule", "leave `epochs` out of"
        try:
            kind, _ = (value_at(self.inherited, f"{key}.{inner}") for inner in ("kind", "epochs"))
            if kind == value_at(self.opened.tree, f"{key}.kind"):
                words = "write `epochs: null` in"
        except LookupError:  # the file that it extends gives none
            pass
        return f"{words} `schedule`, which then ends with the run"

    @property
    def clock_starts(self) -> float:
        """The epoch at which the schedule's clock starts: behind the warmup with `joins: before`, else 0."""
        warmup = self.recipe.learning_rate.warmup
        return warmup.shape.epochs if warmup is not None and warmup.joins == "before" else 0.0

    @property
    def ramps(self) -> bool:
        """Whether the batch changes over the run."""
        return len(self.recipe.batch.global_.changes) > 1


Rule = Callable[[Case], Iterator[Fault]]
