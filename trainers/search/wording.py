"""Scores and values of trials in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recipes.reports.wording import number, percent
from recipes.schema import Search

_SAID = {"device_hours": "device-hours", "train_loss": "training loss"}


def metric_name(metric: str) -> str:
    """A metric's name in text."""
    return _SAID.get(metric, metric)


def shown(metric: str, value: float | None) -> str:
    """A score without its name, empty where there is none."""
    return "" if value is None else percent(value) if metric == "accuracy" else number(float(value))


def score(metric: str, value: float) -> str:
    """A score with its name: 'accuracy 97.50 %'."""
    return f"{metric_name(metric)} {shown(metric, value)}"


def scores(search: Search, values: Iterable[float]) -> str:
    """The objectives of a trial: one value alone, several each with its name."""
    if len(search.objectives) == 1:
        return shown(search.objectives[0].metric, next(iter(values)))
    pairs = zip(search.objectives, values, strict=True)
    return ", ".join(score(objective.metric, value) for objective, value in pairs)


def values_text(values: Mapping[str, Any]) -> str:
    """A trial's values in a line."""
    return ", ".join(f"{path} {short(value)}" for path, value in values.items())


def short(value: Any) -> str:
    """A value of a recipe in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def column_names(paths: Sequence[str]) -> list[str]:
    """The last word of each path, with as many words before it as distinguish it from the others.

    >>> column_names(["epochs", "learning_rate.warmup.epochs", "learning_rate.reference"])
    ['epochs', 'warmup.epochs', 'reference']
    """
    found = []
    for path in paths:
        words = path.split(".")
        endings = [".".join(words[-count:]) for count in range(1, len(words) + 1)]
        others = [other for other in paths if other != path]
        free = (end for end in endings if not any(other == end or other.endswith(f".{end}") for other in others))
        found.append(next(free, path))
    return found
