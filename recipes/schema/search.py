"""A search: which recipe, over what, to what end; the keys of a file of `configs/searches`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from recipes.schema.conditions import require
from recipes.vocabulary import Component

__all__ = ["Budget", "Objective", "Search"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What makes one trial better than another: a score of the last evaluation of its run.

    Args:
        metric: `accuracy` or `loss`, of the evaluation samples.
        direction: `maximize` for accuracy, `minimize` for loss; anything else is refused.
    """

    metric: Literal["accuracy", "loss"] = "accuracy"
    direction: Literal["maximize", "minimize"] = "maximize"

    def __post_init__(self) -> None:
        wanted = "maximize" if self.metric == "accuracy" else "minimize"
        require(
            self.direction == wanted, f"Objective.direction must be {wanted} for {self.metric}, got {self.direction}"
        )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a search is done: at whichever comes first.

    Args:
        trials: finished ones, whether complete, pruned or failed; at least 1.
        hours: of the search, over all its sessions, above 0; after them no trial begins, and those that run may end.
            null for no limit.
    """

    trials: int
    hours: float | None = None

    def __post_init__(self) -> None:
        require(self.trials >= 1, f"Budget.trials must be at least 1, got {self.trials}")
        possible = self.hours is None or (math.isfinite(self.hours) and self.hours > 0)
        require(possible, f"Budget.hours must be above 0 and finite, got {self.hours}")


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search over the values of a recipe.

    Args:
        name: names the search's folder: letters, digits, `_`, `.` and `-`. Left out: the name of the file.
        title: what is looked for, in a line.
        recipe: a name of the library, or a path that counts from the search's file.
        objective: what makes a trial better.
        space: dotted path into the recipe -> range. At least one.
        fixed: dotted path into the recipe -> value, for all trials.
        sampler: what proposes values.
        pruner: what ends trials early; null for nothing.
        budget: when the search is done.
        ranks_per_trial: MPI ranks that train one trial together, at least 1. `-n` divided by it is the number of trials
            side by side.
        reports: points of a trial's own run, evenly spaced and the last one its end, where it is evaluated, saved and
            compared with the other trials at the same point; at least 1.
        retries: how often a trial that was killed or hung goes on from its last checkpoint, at least 0.
        enqueue: what is tried first: `recipe` for the recipe's own values, or `{path: value}`; paths that are left out
            are sampled.
        seed: of the sampler, at least 0. Trials have the recipe's seed.
    """

    name: str
    title: str = ""
    recipe: str
    objective: Objective = Objective()
    space: Mapping[str, Annotated[object, Component("ranges")]]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    sampler: Annotated[object, Component("samplers")]
    pruner: Annotated[object, Component("pruners")] | None = None
    budget: Budget
    ranks_per_trial: int = 1
    reports: int = 20
    retries: int = 2
    enqueue: tuple[Literal["recipe"] | Mapping[str, Any], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("ranks_per_trial", 1), ("reports", 1), ("retries", 0), ("seed", 0)):
            value = getattr(self, name)
            require(value >= least, f"Search.{name} must be at least {least}, got {value}")
