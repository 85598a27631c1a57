"""The state of a trial in a word, and the reason."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from trainers.search.rungs import is_whole
from trainers.search.study import REASON, is_feasible

_WORDS = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def state_of(trial: FrozenTrial) -> str:
    """One of complete, short (of a lower rung), infeasible, pruned, failed, running, waiting."""
    if not is_feasible(trial):
        return "infeasible"
    return "short" if trial.state == TrialState.COMPLETE and not is_whole(trial) else _WORDS[trial.state]


def reason_of(trial: FrozenTrial) -> str:
    """Why a trial is not complete, or which constraints it violates; empty otherwise."""
    broken = ", ".join(f"not {said}" for said, beyond in trial.constraints.items() if beyond > 0)
    return trial.user_attrs.get(REASON, "") or broken


def counted(trials: Sequence[FrozenTrial]) -> str:
    """How many trials ended in which state: '14 trials: 3 complete, 7 infeasible, 4 pruned'."""
    states = [state_of(trial) for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"{len(trials)} trial{'s' if len(trials) > 1 else ''}: {counts}" if trials else "no trial has ended yet"
