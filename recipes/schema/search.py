"""A search over the values of a recipe: the keys of a file of `configs/searches`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from recipes.schema.batch_and_rate import require
from recipes.schema.constraints import Expression
from recipes.schema.vocabulary import Component

__all__ = ["Budget", "Constraint", "Objective", "Search", "Transfer"]

Metric = Literal["accuracy", "loss", "train_loss", "device_hours"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What makes one trial better than another.

    Args:
        metric: `accuracy` or `loss` on the evaluation samples at the end of the run; `train_loss`, the mean training
            loss between the last two reports; or `device_hours`, ranks times hours of the trial.
        direction: `maximize` for accuracy, `minimize` for all others; anything else is refused.
    """

    metric: Metric = "accuracy"
    direction: Literal["maximize", "minimize"] = "maximize"

    def __post_init__(self) -> None:
        wanted = "maximize" if self.metric == "accuracy" else "minimize"
        require(
            self.direction == wanted, f"Objective.direction must be {wanted} for {self.metric}, got {self.direction}"
        )


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A condition that the best trial must satisfy.

    Args:
        metric: metric of the trial, as in `objective`; null if `value` is given.
        value: an expression over the trial's recipe, of dotted paths and numbers with + - * / and parentheses, such as
            `learning_rate.reference * optimizer.weight_decay`. It is known before the training: a trial that violates
            it is not trained. If the trial's recipe lacks one of the paths, the constraint does not apply.
        at_most: upper bound; null for none.
        at_least: lower bound; null for none. At least one of the two bounds is needed.
    """

    metric: Metric | None = None
    value: str | None = None
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        require((self.metric is None) != (self.value is None), "give either `metric` or `value`")
        require(self.at_most is not None or self.at_least is not None, "give `at_most` or `at_least`")
        for name in ("at_most", "at_least"):
            bound = getattr(self, name)
            require(bound is None or math.isfinite(bound), f"Constraint.{name} must be finite, got {bound}")
        if self.at_most is not None and self.at_least is not None:
            possible = self.at_least < self.at_most
            require(possible, f"Constraint.at_least must be below at_most, got {self.at_least}")
        if self.value is not None:
            try:
                Expression(self.value)
            except ValueError as error:
                raise ValueError(f"Constraint.value must be paths and numbers: {error}, got {self.value}") from None

    def violations(self, value: float) -> dict[str, float]:
        """By how much a number violates each bound, relative to the bound; at most 0 if it satisfies it.

        >>> Constraint(metric="device_hours", at_most=0.25).violations(0.5)
        {'device_hours <= 0.25': 1.0}
        """
        name = self.metric or self.value
        ends = {"<=": (self.at_most, 1), ">=": (self.at_least, -1)}
        return {
            f"{name} {sign} {end:g}": side * (value - end) / (abs(end) or 1.0)
            for sign, (end, side) in ends.items()
            if end is not None
        }


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a search, which ends at the first one reached.

    Args:
        trials: finished ones, whether complete, pruned or failed; at least 1.
        hours: hours of the search over all its sessions, above 0; after that no trial begins, and running trials end
            normally. null for no limit.
        device_hours: ranks times hours of all trials together, above 0; enforced as `hours`.
    """

    trials: int
    hours: float | None = None
    device_hours: float | None = None

    def __post_init__(self) -> None:
        require(self.trials >= 1, f"Budget.trials must be at least 1, got {self.trials}")
        for name in ("hours", "device_hours"):
            hours = getattr(self, name)
            possible = hours is None or (math.isfinite(hours) and hours > 0)
            require(possible, f"Budget.{name} must be above 0 and finite, got {hours}")


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A search at a small batch, then a search at a large one around the scaled best recipe of the first.

    Args:
        from_batch: global batch size of the first search, at least 1.
        to_batch: global batch size of the second search, above `from_batch`.
        trials: number of trials of the first and the second search; their sum is that of the budget.
    """

    from_batch: int
    to_batch: int
    trials: tuple[int, int]

    def __post_init__(self) -> None:
        require(self.from_batch >= 1, f"Transfer.from_batch must be at least 1, got {self.from_batch}")
        larger = self.to_batch > self.from_batch
        require(larger, f"Transfer.to_batch must be above from_batch, {self.from_batch}, got {self.to_batch}")
        require(min(self.trials) >= 1, f"Transfer.trials must be at least 1 each, got {list(self.trials)}")


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search over the values of a recipe.

    Args:
        name: names the search's folder: letters, digits, `_`, `.` and `-`. Left out: the name of the file.
        title: what is searched for, in one line.
        recipe: a name of the library, or a path relative to the search's file.
        objective: the metric to improve; or a list of objectives, whose Pareto front is searched.
        space: dotted path into the recipe -> range. At least one.
        fixed: dotted path into the recipe -> value, for all trials.
        constraints: conditions that the best trial must satisfy.
        sampler: proposes the values.
        pruner: ends trials early; null for none, as it must be with several objectives.
        budget: limits after which the search ends.
        transfer: search at a small batch first; null for one search at the recipe's own batch.
        ranks_per_trial: MPI ranks that train one trial together, at least 1. `-n` divided by it is the number of trials
            side by side.
        seeds_per_trial: runs of a trial, with the recipe's seed, the next one, and so on; its objective is their mean.
        reports: number of evenly spaced points of a trial's run, the last one its end, at which it is evaluated, saved
            and compared with the other trials at the same point; at least 1.
        retries: how often a trial that was killed or hung is resumed from its last checkpoint, at least 0.
        enqueue: the trials to try first: `recipe` for the recipe's own values, or `{path: value}`; paths that are left
            out are sampled.
        seed: seed of the sampler, at least 0. Trials have the recipe's seed.
    """

    name: str
    title: str = ""
    recipe: str
    objective: Objective | tuple[Objective, ...] = Objective()
    space: Mapping[str, Annotated[object, Component("ranges")]]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    constraints: tuple[Constraint, ...] = ()
    sampler: Annotated[object, Component("samplers")]
    pruner: Annotated[object, Component("pruners")] | None = None
    budget: Budget
    transfer: Transfer | None = None
    ranks_per_trial: int = 1
    seeds_per_trial: int = 1
    reports: int = 20
    retries: int = 2
    enqueue: tuple[Literal["recipe"] | Mapping[str, Any], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        least_of = {"ranks_per_trial": 1, "seeds_per_trial": 1, "reports": 1, "retries": 0, "seed": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            require(value >= least, f"Search.{name} must be at least {least}, got {value}")
        metrics = [objective.metric for objective in self.objectives]
        require(len(metrics) > 0, "Search.objective must be at least one")
        require(len(set(metrics)) == len(metrics), f"Search.objective must name each metric once, got {metrics}")
        comparable = self.pruner is None or self.reported is not None
        what = "several objectives" if len(metrics) > 1 else "device-hours, which grow alike in all trials"
        require(comparable, f"Search.pruner must be null: reports are not compared by {what}")
        if self.transfer is not None:
            require(len(metrics) == 1, "Search.transfer must be null where there are several objectives")
            trials, whole = list(self.transfer.trials), self.budget.trials
            require(sum(trials) == whole, f"Search.transfer must have the budget's {whole} trials, got {trials}")

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All objectives, as a tuple also if there is one."""
        return self.objective if isinstance(self.objective, tuple) else (self.objective,)

    @property
    def reported(self) -> Objective | None:
        """The objective that running trials report; None if reports cannot be compared."""
        only = self.objectives[0]
        return None if len(self.objectives) > 1 or only.metric == "device_hours" else only
