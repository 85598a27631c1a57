"""Rungs: where the trials of a search wait, and which one goes on (asynchronous successive halving)."""

from __future__ import annotations

import math

import optuna
from optuna.trial import FrozenTrial, Trial

from recipes.schema import Search
from trainers.search.study import DIVERGED, PASSED, WAITS, begun, state_of


def next_rung(search: Search, trial: Trial | FrozenTrial) -> int | None:
    """Index of the rung that a trial trains to; None: it trains to its end."""
    passed = trial.user_attrs.get(PASSED, 0)
    return passed if search.rungs is not None and passed < len(search.rungs.at) else None


def pause(search: Search, trial: Trial) -> int | None:
    """Let a trial wait that has come to its next rung; returns that rung's report, None if it has come to its end."""
    rung = next_rung(search, trial)
    if rung is None:
        return None
    trial.set_user_attr(WAITS, rung)
    return search.rungs.at[rung]


def that_goes_on(search: Search, study: optuna.Study) -> int | None:
    """The number of the trial that goes on next: the best of those that wait at the last rung where one may.

    Trials that diverged on their way to a rung came to it too.
    """
    for rung, report in reversed([*enumerate(search.rungs.at)]):
        came = []
        for trial in begun(study):
            diverged = DIVERGED in trial.user_attrs and trial.user_attrs.get(PASSED, 0) >= rung
            if diverged or (trial.last_step or 0) >= report:
                came.append((_score(trial, report, search), trial.number, trial))
        for *_, trial in sorted(came)[: len(came) // search.rungs.reduction_factor]:
            if state_of(trial) == "paused" and trial.user_attrs[WAITS] == rung:
                return trial.number
    return None


def _score(trial: FrozenTrial, report: int, search: Search) -> float:
    """A trial's score at a rung, the less the better; where a run has fewer updates than reports, at the next one."""
    reports = {number: value for number, value in trial.intermediate_values.items() if number >= report}
    value = reports[min(reports)] if reports else math.nan
    sign = -1 if search.objectives[0].direction == "maximize" else 1
    return math.inf if math.isnan(value) else sign * value
