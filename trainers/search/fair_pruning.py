"""Which trials a pruner compares with each other, and from which of their reports on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import optuna
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial

from recipes.planning.rates import rate_shape, slow_until
from recipes.schema import Recipe, Search
from trainers.search.study import FilteredStudy

# User attribute of a trial that can be compared with others: {"from": number of its first report that counts, the first
# after its warmup and slow start, "shape": of its rate, as `recipes.planning.rates` has it}.
COMPARED = "compared"


def store_comparability(trial: optuna.Trial, recipe: Recipe, search: Search, *, say: Callable[[str], None]) -> None:
    """Store from which report on a trial may be compared, and with which trials; nothing if runs are not pruned.

    Args:
        trial: which begins or goes on.
        recipe: of the trial.
        search: of the trial.
        say: called once in a search, when a second shape of rate appears, whose trials are not compared with the first.
    """
    if search.pruner is None:
        return
    first = first_report(slow_until(recipe), recipe.epochs, reports=search.reports)
    own = {"from": first, "shape": rate_shape(recipe)}
    shapes: dict[str, int] = {}
    for other in reversed(trial.study.get_trials(deepcopy=False)):
        if COMPARED in other.user_attrs:
            shapes.setdefault(other.user_attrs[COMPARED]["shape"], other.number)
        if len(shapes) > 1 or own["shape"] in shapes:
            break
    if COMPARED not in trial.user_attrs:
        trial.set_user_attr(COMPARED, own)
    if len(shapes) == 1 and own["shape"] not in shapes:
        (number,) = shapes.values()
        say(f"trial {trial.number} moves its rate in another shape than trial {number}: they are not compared")


def first_report(slow_until: float, epochs: float, *, reports: int) -> int:
    """The number of the first report at or after the end of the slow start, at least 1.

    >>> [first_report(end, 20.0, reports=20) for end in (0.0, 5.0, 5.1)]
    [1, 5, 6]
    """
    return max(1, math.ceil(reports * slow_until / epochs - 1e-9))


class FairPruner(BasePruner):
    """One of Optuna's pruners, restricted to comparable trials and reports.

    Optuna's step is the number of a report: the same fraction of every trial's own run. A trial is not pruned before
    its warmup and slow start have ended, and the pruner does not see its reports before. Of the other trials, the
    pruner sees those whose rate has the same shape and whose own slow start has ended by this report. A trial without
    the user attribute `COMPARED` is not pruned, and not compared with others.

    Args:
        pruner: Optuna's.
    """

    def __init__(self, pruner: BasePruner) -> None:
        self._pruner = pruner

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether to prune a trial at its last report."""
        own, step = trial.user_attrs.get(COMPARED), trial.last_step
        if own is None or step is None or step < own["from"]:
            return False

        def comparable(trials: list[FrozenTrial]) -> list[FrozenTrial]:
            others = [(trial, trial.user_attrs.get(COMPARED)) for trial in trials]
            return [trial for trial, it in others if it and it["from"] <= step and it["shape"] == own["shape"]]

        view = FilteredStudy(study, comparable)
        steps = {step for step in trial.intermediate_values if step >= own["from"]}
        visible = copy.copy(trial)
        visible.intermediate_values = {
            step: value for step, value in trial.intermediate_values.items() if step in steps
        }
        return bool(steps) and self._pruner.prune(view, visible)
