"""A frontier, the updates to a goal batch by batch: the keys of a file of `configs/frontiers`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from recipes.schema.batch_and_rate import require, require_least
from recipes.schema.vocabulary import Component

__all__ = ["AccuracyAt", "Frontier", "FrontierGoal", "Ladder", "Method", "PointBudget"]


@dataclass(frozen=True, kw_only=True)
class FrontierGoal:
    """What is measured at every point of a frontier, on the evaluation samples of its recipe; give one of the four.

    With `accuracy` or `error` it is the fewest updates to that goal, with `epochs` or `updates` the best accuracy after
    a run of that length: two budgets that can order methods differently.

    Args:
        accuracy: at least this, in (0, 1].
        error: 1 - accuracy strictly under this, in (0, 1): the form of Shallue et al. 2018.
        epochs: of every trial, above 0.
        updates: of every trial, at least 1.
    """

    accuracy: float | None = None
    error: float | None = None
    epochs: float | None = None
    updates: int | None = None

    def __post_init__(self) -> None:
        given = [key for key, value in vars(self).items() if value is not None]
        one = f"FrontierGoal must have one of accuracy, error, epochs and updates, got {' and '.join(given) or 'none'}"
        require(len(given) == 1, one)
        possible = self.accuracy is None or 0 < self.accuracy <= 1
        require(possible, f"FrontierGoal.accuracy must be in (0, 1], got {self.accuracy}")
        require(self.error is None or 0 < self.error < 1, f"FrontierGoal.error must be in (0, 1), got {self.error}")
        finite = self.epochs is None or (math.isfinite(self.epochs) and self.epochs > 0)
        require(finite, f"FrontierGoal.epochs must be above 0 and finite, got {self.epochs}")
        require_least(self, updates=1)

    @property
    def target(self) -> float | None:
        """The smallest accuracy that reaches it; None with a length.

        >>> FrontierGoal(error=0.1).target > 0.9 > FrontierGoal(error=0.1001).target
        True
        """
        return self.accuracy if self.error is None else math.nextafter(round(1 - self.error, 12), 2)

    def __str__(self) -> str:
        if self.epochs is not None:
            return f"the best accuracy after {self.epochs:g} epoch{'s' * (self.epochs != 1)}"
        if self.updates is not None:
            return f"the best accuracy after {self.updates:,} update{'s' * (self.updates != 1)}"
        if self.error is None:
            return f"the fewest updates to an accuracy of at least {100 * self.accuracy:g} %"
        return f"the fewest updates to an error strictly under {100 * self.error:g} %"


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Batches in equal steps of the logarithm: `from`, `factor` times `from`, ..., up to `to`.

    Args:
        from_: the smallest, at least 1.
        to: no batch is larger, above `from`.
        factor: above 1; the sizes are rounded.
    """

    from_: int
    to: int
    factor: float = 2.0

    def __post_init__(self) -> None:
        require(self.from_ >= 1, f"Ladder.from must be at least 1, got {self.from_}")
        require(self.to > self.from_, f"Ladder.to must be above from, got {self.to}")
        require(1 < self.factor < math.inf, f"Ladder.factor must be above 1, got {self.factor}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batches.

        >>> Ladder(from_=16, to=300, factor=4).sizes
        (16, 64, 256)
        """
        steps = math.floor(math.log(self.to / self.from_) / math.log(self.factor) + 1e-9)
        return tuple(sorted({round(self.from_ * self.factor**step) for step in range(steps + 1)}))


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of a frontier: what it changes of the recipe.

    Args:
        fixed: dotted path into the recipe -> value.
        space: dotted path -> range, beside the `space` of all methods.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Annotated[object, Component("ranges")]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PointBudget:
    """The limits of a point, which is one batch of one method.

    Args:
        trials: at least 2.
        epochs: of one trial at most, above 0; null: those of the recipe.
        updates: of one trial at most, at least 1; null for no limit.
    """

    trials: int
    epochs: float | None = None
    updates: int | None = None

    def __post_init__(self) -> None:
        require_least(self, trials=2, updates=1)
        possible = self.epochs is None or (math.isfinite(self.epochs) and self.epochs > 0)
        require(possible, f"PointBudget.epochs must be above 0 and finite, got {self.epochs}")


@dataclass(frozen=True, kw_only=True)
class AccuracyAt:
    """Budgets at which the best accuracy of all trials is told too.

    Args:
        epochs: each above 0.
        updates: each at least 1.
    """

    epochs: tuple[float, ...] = ()
    updates: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(all(it > 0 for it in self.epochs), f"AccuracyAt.epochs must be above 0, got {list(self.epochs)}")
        require(all(it >= 1 for it in self.updates), f"AccuracyAt.updates must be at least 1, got {list(self.updates)}")


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """A frontier: the fewest updates to a goal, or the best accuracy, at every batch, each tuned anew.

    Args:
        name: names the frontier's folder: letters, digits, `_`, `.` and `-`. Left out: the name of the file.
        title: what is measured, in one line.
        recipe: a name of the library, or a path relative to the frontier's file.
        goal: what is measured.
        batches: a list of global batches, each at least 1, or a ladder such as `{from: 16, to: 16384, factor: 2}`.
        space: dotted path into the recipe -> range, as in a search: what is tuned at each batch, by all methods.
        fixed: dotted path into the recipe -> value, for all trials.
        methods: name -> what it changes; left out: one, the recipe as it is.
        budget: limits of a point; its trials only, where the goal has their length.
        quasi_random: trials of a point that are spread evenly over the space, at least 1; null: half of its trials.
        neighbours: whether the optima of the nearest batches, scaled by the linear and the square root rule, are tried
            first, and no trial may take more than 1.5 times the updates to the goal of the next smaller batch.
        seeds: runs with fresh seeds at every optimum, at least 2; 0: none, and the best trial counts.
        spacing: part of the best trial's updates between two evaluations, in (0, 1): the precision of the updates to a
            goal. With a goal of one length: part of the run.
        accuracy_at: budgets at which the best accuracy is told too.
        ranks_per_trial: MPI ranks that train one trial together, at least 1.
        retries: as in a search.
        seed: of what is tried, at least 0. Trials have the recipe's seed.
    """

    name: str
    title: str = ""
    recipe: str
    goal: FrontierGoal
    batches: tuple[int, ...] | Ladder
    space: Mapping[str, Annotated[object, Component("ranges")]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=dict)
    budget: PointBudget
    quasi_random: int | None = None
    neighbours: bool = True
    seeds: int = 3
    spacing: float = 0.05
    accuracy_at: AccuracyAt = AccuracyAt()
    ranks_per_trial: int = 1
    retries: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = self.sizes
        different = len(set(sizes)) == len(sizes) > 0 and min(sizes) >= 1
        require(different, f"Frontier.batches must be different and at least 1, got {list(sizes)}")
        require(0 < self.spacing < 1, f"Frontier.spacing must be in (0, 1), got {self.spacing}")
        require(self.seeds == 0 or self.seeds >= 2, f"Frontier.seeds must be 0 or at least 2, got {self.seeds}")
        with_length, limits = self.goal.target is None, (self.budget.epochs, self.budget.updates)
        require(not with_length or limits == (None, None), "Frontier.budget must be trials only: the goal has a length")
        require_least(self, quasi_random=1, ranks_per_trial=1, retries=0, seed=0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batches, the smallest first."""
        return self.batches.sizes if isinstance(self.batches, Ladder) else tuple(sorted(self.batches))

    @property
    def all_methods(self) -> Mapping[str, Method]:
        """The methods; the recipe as it is, where none is given."""
        return self.methods or {"recipe": Method()}
