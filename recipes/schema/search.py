"""A search over the values of a recipe: the keys of a file of `configs/searches`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

from lr_schedules.units import require_number
from recipes.arguments import younger
from recipes.schema.batch_and_rate import require, require_least
from recipes.schema.constraints import Expression
from recipes.schema.vocabulary import Component, Unbuilt

__all__ = ["Budget", "Confirm", "Constraint", "Objective", "Prior", "Rungs", "Search"]

_LOWER_IS_BETTER = ("loss", "train_loss", "device_hours")
_GOALS = ("updates_to", "epochs_to", "hours_to")


def is_of_recipe(metric: str) -> bool:
    """Whether a metric is none that each search has, so that the recipe must have it."""
    return metric not in ("accuracy", *_LOWER_IS_BETTER, *_GOALS)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What makes one trial better than another.

    Args:
        metric: `accuracy` or `loss` on the evaluation samples at the end of the run, or the name of a metric of the
            recipe's `evaluation`, such as `macro_f1`; `train_loss`, the mean training loss between the last two
            reports; `device_hours`, ranks times hours of training; or what it takes to reach the accuracy `target`:
            `updates_to`, `epochs_to`, or `hours_to`, in device-hours. They are read at the first report that reaches
            it, and the trial ends there.
        higher_is_better: of a metric of the recipe; null: as its class says. null for the others.
        target: accuracy to reach, in (0, 1]; null for a metric without one.
        spacing: of `updates_to`, in place of `reports`: a trial is evaluated whenever it has made this part of the
            updates that the best trial took, in (0, 1), and ends where it cannot be better; null: at `reports`.
        at_most: of `updates_to` with `spacing`: what the best trial is taken to need as long as none has reached the
            target, at least 1; null: the updates of the whole run.
    """

    metric: str = "accuracy"
    higher_is_better: bool | None = younger(None)
    target: float | None = None
    spacing: float | None = younger(None)
    at_most: int | None = younger(None)

    def __post_init__(self) -> None:
        possible = self.higher_is_better is None or is_of_recipe(self.metric)
        require(possible, f"Objective.higher_is_better must be null for {self.metric}, got {self.higher_is_better}")
        needed = "an accuracy in (0, 1]" if self.metric in _GOALS else "null"
        possible = self.target is None if needed == "null" else self.target is not None and 0 < self.target <= 1
        require(possible, f"Objective.target must be {needed} for {self.metric}, got {self.target}")
        possible = self.spacing is None or (self.metric == "updates_to" and 0 < self.spacing < 1)
        require(possible, f"Objective.spacing must be in (0, 1), and null but for updates_to, got {self.spacing}")
        possible = self.at_most is None or (self.spacing is not None and self.at_most >= 1)
        require(possible, f"Objective.at_most must be at least 1, and null without spacing, got {self.at_most}")

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Which values are better: higher ones of accuracy and of most metrics of recipes, lower ones of all others."""
        is_lower = self.metric in (*_LOWER_IS_BETTER, *_GOALS) or self.higher_is_better is False
        return "minimize" if is_lower else "maximize"

    @property
    def worst(self) -> float:
        """The value of a trial that diverged."""
        if self.metric == "accuracy":
            return 0.0
        return -math.inf if self.direction == "maximize" else math.inf


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

    metric: str | None = None
    value: str | None = None
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        require((self.metric is None) != (self.value is None), "give either `metric` or `value`")
        require(self.metric not in _GOALS, f"Constraint.metric must be a score or device_hours, got {self.metric}")
        require(self.at_most is not None or self.at_least is not None, "give `at_most` or `at_least`")
        ordered = None in (self.at_least, self.at_most) or self.at_least < self.at_most
        require(ordered, f"Constraint.at_least must be below at_most, got {self.at_least}")
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
        trials: ended ones, whether complete or not; at least 1.
        patience: the search ends when so many trained trials in a row found nothing better, at least 1; null for never.
        hours: hours of all its sessions, above 0; then no trial begins, running ones end normally. null for no limit.
        device_hours: ranks times hours of all trials and fresh seeds together, above 0; enforced as `hours`.
    """

    trials: int
    patience: int | None = None
    hours: float | None = None
    device_hours: float | None = None

    def __post_init__(self) -> None:
        require_least(self, trials=1, patience=1)
        for name in ("hours", "device_hours"):
            if (hours := getattr(self, name)) is not None:
                require_number(f"Budget.{name}", hours, above=0)


@dataclass(frozen=True, kw_only=True)
class Prior:
    """What is known about good values before the search begins; give one of `recipe` and `search`.

    The first trials are drawn around it, at the batch of the search.

    Args:
        recipe: one whose values are known to be good, such as a paper's: a name of the library, or a path relative to
            the search's file; null for none.
        search: folder of an earlier search, such as one at a small batch, relative to the search's file; null for none.
        draws: how many of this search's first trials are drawn from what is known, at least 1; then `sampler` goes on.
    """

    recipe: str | None = None
    search: str | None = None
    draws: int = 10

    def __post_init__(self) -> None:
        require((self.recipe is None) != (self.search is None), "Prior must have either `recipe` or `search`")
        require_least(self, draws=1)


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """Trains the best trials again with fresh seeds; the best mean wins. The best of noisy trials is partly luck.

    Args:
        top: how many of the best trials, at least 1.
        seeds: runs of each, with seeds that no trial had, at least 2.
    """

    top: int = 3
    seeds: int = 5

    def __post_init__(self) -> None:
        require_least(self, top=1, seeds=2)


@dataclass(frozen=True, kw_only=True)
class Rungs:
    """Trials wait at some of their reports, and the best of those that came so far go on, from their checkpoints.

    A free group of ranks takes the best trial that may go on, of the last rung that has one, and else begins another:
    asynchronous successive halving (Li et al. 2018, arXiv 1810.05934). Every trial has the schedule of its whole run:
    one that goes on at every rung has the same weights as if it had not waited.

    Args:
        at: the reports, in ascending order, from 1 and before the last one.
        reduction_factor: one in so many goes on, at least 2.
    """

    at: tuple[int, ...]
    reduction_factor: int = 3

    def __post_init__(self) -> None:
        ascending = list(self.at) == sorted({*self.at}) and self.at[:1] >= (1,)
        require(ascending, f"Rungs.at must be reports in ascending order, from 1, got {list(self.at)}")
        require_least(self, reduction_factor=2)

    def whole_runs(self, trials: int, *, reports: int) -> float:
        """The least number of whole runs that take as long as all parts of so many trials.

        More than one in `reduction_factor` goes on, since the best so far are passed by later ones.

        >>> Rungs(at=(2, 4), reduction_factor=3).whole_runs(9, reports=8)
        3.5
        """
        ends, taken = (0, *self.at, reports), 0
        for begin, end in pairwise(ends):
            taken += trials * (end - begin)
            trials //= self.reduction_factor
        return taken / reports


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
        budget: limits after which the search ends.
        prior: what is known about good values; null for nothing.
        confirm: train the best trials again with fresh seeds; null for not.
        rungs: let trials wait, and only the best go on; null for not. For one objective without a target, of one seed.
        ranks_per_trial: MPI ranks that train one trial together, at least 1. `-n` divided by it is the number of trials
            side by side.
        seeds_per_trial: runs of a trial, with the recipe's seed, the next one, and so on; its objective is their mean.
        reports: number of evenly spaced points of a trial's run, the last one its end, at which it is evaluated and
            saved; at least 1.
        retries: how often a trial whose ranks were killed or hung goes on from its last checkpoint without having come
            any further, at least 0; deaths after progress do not count.
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
    sampler: Annotated[object, Component("samplers")] = Unbuilt(kind="TPESampler", fields={})
    budget: Budget
    prior: Prior | None = None
    confirm: Confirm | None = None
    rungs: Rungs | None = younger(None)
    ranks_per_trial: int = 1
    seeds_per_trial: int = 1
    reports: int = 20
    retries: int = 2
    enqueue: tuple[Literal["recipe"] | Mapping[str, Any], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        require_least(self, ranks_per_trial=1, seeds_per_trial=1, reports=1, retries=0, seed=0)
        metrics = [objective.metric for objective in self.objectives]
        require(len(metrics) > 0, "Search.objective must be at least one")
        require(len(set(metrics)) == len(metrics), f"Search.objective must name each metric once, got {metrics}")
        alone = len(metrics) == 1 or not (self.has_goal or self.confirm or self.budget.patience)
        require(alone, "Search.objective must be one where there is a target, `confirm` or `patience`")
        if self.rungs is not None:
            self._check_rungs(self.rungs)

    def _check_rungs(self, rungs: Rungs) -> None:
        last, least = rungs.at[-1], rungs.reduction_factor ** len(rungs.at)
        require(last < self.reports, f"Search.rungs must lie before the last report, {self.reports}, got {last}")
        trials = self.budget.trials
        require(trials >= least, f"Search.budget must be {least} trials or more to pass all rungs, got {trials}")
        alone = len(self.objectives) == 1 and not self.has_goal and self.objectives[0].metric != "device_hours"
        require(
            alone,
            "Search.rungs must be null unless the objective is one score at the end: accuracy, a loss or a metric",
        )
        plain = self.seeds_per_trial == 1 and self.budget.patience is None
        require(plain, "Search.rungs must be null where there are several seeds a trial, or `patience`")

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All objectives, as a tuple also if there is one."""
        return self.objective if isinstance(self.objective, tuple) else (self.objective,)

    @property
    def has_goal(self) -> bool:
        """Whether an objective is what it takes to reach a target."""
        return any(objective.target is not None for objective in self.objectives)
