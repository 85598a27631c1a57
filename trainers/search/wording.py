"""How trials, scores, values and paths of a search are written, in its log, on its page and in its files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from recipes.reports.wording import number, percent
from recipes.schema import Search
from recipes.search_space.open_search import plain_path
from trainers.runs.progress_lines import RunState
from trainers.search.folder import trial_folder
from trainers.search.study import SECONDS, reason_of, state_of


def row_of(trial: FrozenTrial, search: Search, *, running: tuple[float, RunState] | None = None) -> dict[str, Any]:
    """A trial as the terminal, `status.json` and the page show it; one that runs has its last report as score.

    `running` has the seconds and the state of its present run.
    """
    last, own, note = trial.last_step, trial.values or (), reason_of(trial)
    if not trial.state.is_finished() and last is not None:
        own, note = [trial.intermediate_values[last]], f"report {last} of {search.reports}"
    if search.has_goal and trial.state != TrialState.COMPLETE:
        own = ()  # it reported what it lacks of the target
    row = {
        "trial": trial.number,
        "state": state_of(trial),
        "scores": own,
        "text": scores(search, own) if own else "",
        "note": note,
        "values": dict(trial.params),
        "seconds": trial.user_attrs.get(SECONDS, 0.0),
        "folder": trial_folder(trial.number),
    }
    if running is not None:
        seconds, run = running
        row |= {"seconds": row["seconds"] + seconds, "seconds_left": run.seconds_left}
        row |= {"update": run.updates, "updates": run.total_updates, "epoch": run.epoch}
    return row


def metric_name(metric: str) -> str:
    """A metric's name in text."""
    return {"device_hours": "device-hours", "train_loss": "training loss"}.get(metric, metric)


def shown(metric: str, value: float | None) -> str:
    """A score without its name, empty where there is none."""
    return "" if value is None else percent(value) if metric == "accuracy" else number(float(value))


def scores(search: Search, values: Iterable[float], *, named: bool = False) -> str:
    """The objectives of a trial, several or `named` each with its name: 'accuracy 97.50 %, device-hours 0.5'."""
    pairs = [(objective.metric, value) for objective, value in zip(search.objectives, values, strict=True)]
    named = named or len(pairs) > 1
    return ", ".join(f"{metric_name(pair[0])} {shown(*pair)}" if named else shown(*pair) for pair in pairs)


def values_text(values: Mapping[str, Any]) -> str:
    """A trial's values in a line."""
    return ", ".join(f"{path} {short(value)}" for path, value in values.items())


def short(value: Any) -> str:
    """A value of a recipe in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def column_names(paths: Iterable[str]) -> list[str]:
    """The last word of each path, with as many words before it as distinguish it from the others.

    >>> column_names(["epochs", "learning_rate.warmup.epochs", "learning_rate.reference", "1 - optimizer.momentum"])
    ['epochs', 'warmup.epochs', 'reference', '1 - momentum']
    """
    plain = {path: plain_path(path) for path in paths}
    endings = {it: [it.split(".", skip)[-1] for skip in reversed(range(it.count(".") + 1))] for it in plain.values()}
    counts = Counter(ending for own in endings.values() for ending in own)
    short = {it: next((ending for ending in own if counts[ending] == 1), it) for it, own in endings.items()}
    return [path.removesuffix(it) + short[it] for path, it in plain.items()]
