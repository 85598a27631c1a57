"""How scores, values and paths of a search are written, in its log, on its page and in its files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from recipes.reports.wording import number, percent
from recipes.schema import Search


def metric_name(metric: str) -> str:
    """A metric's name in text."""
    return {"device_hours": "device-hours", "train_loss": "training loss"}.get(metric, metric)


def shown(metric: str, value: float | None) -> str:
    """A score without its name, empty where there is none."""
    return "" if value is None else percent(value) if metric == "accuracy" else number(float(value))


def score(metric: str, value: float) -> str:
    """A score with its name: 'accuracy 97.50 %'."""
    return f"{metric_name(metric)} {shown(metric, value)}"


def scores(search: Search, values: Iterable[float]) -> str:
    """The objectives of a trial: one value alone, several each with its name."""
    pairs = [(objective.metric, value) for objective, value in zip(search.objectives, values, strict=True)]
    return shown(*pairs[0]) if len(pairs) == 1 else ", ".join(score(*pair) for pair in pairs)


def values_text(values: Mapping[str, Any]) -> str:
    """A trial's values in a line."""
    return ", ".join(f"{path} {short(value)}" for path, value in values.items())


def short(value: Any) -> str:
    """A value of a recipe in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def column_names(paths: Iterable[str]) -> list[str]:
    """The last word of each path, with as many words before it as distinguish it from the others.

    >>> column_names(["epochs", "learning_rate.warmup.epochs", "learning_rate.reference"])
    ['epochs', 'warmup.epochs', 'reference']
    """
    endings = {path: [path.split(".", skip)[-1] for skip in reversed(range(path.count(".") + 1))] for path in paths}
    counts = Counter(ending for own in endings.values() for ending in own)
    return [next((ending for ending in own if counts[ending] == 1), path) for path, own in endings.items()]
