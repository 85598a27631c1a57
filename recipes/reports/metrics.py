"""The lines of `metrics.jsonl`, as columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import InputRefused

_WHOLE = ("update", "samples", "global_batch_size")
_NOT_ALWAYS_MEASURED = ("gradient_noise", "gradient_signal", "loss_scale", "overflows")
_MAY_BE_MISSING = ("value", "momentum")  # null, NaN or infinite: a run that diverged, an optimizer without momentum

Lines = list[tuple[int, dict[str, Any]]]


class RunError(InputRefused):
    """A run's folder that cannot be read; says which file, which line and why."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """One entry an update, in order; `update`, `epoch` and `samples` are those at the update's start."""

    update: np.ndarray
    epoch: np.ndarray
    samples: np.ndarray
    loss: np.ndarray
    learning_rate: np.ndarray
    momentum: np.ndarray  # nan where the optimizer has none
    global_batch_size: np.ndarray
    update_seconds: np.ndarray
    gradient_noise: np.ndarray  # see recipes.noise_scale.Norms; nan where not measured, so are those of the next
    gradient_signal: np.ndarray
    loss_scale: np.ndarray  # nan with float32 compute; so are the attempts that overflowed
    overflows: np.ndarray

    def __len__(self) -> int:
        return len(self.update)


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """One entry an evaluation, in order; `update`, `epoch` and `samples` are those reached."""

    update: np.ndarray
    epoch: np.ndarray
    samples: np.ndarray
    accuracy: np.ndarray  # 0 to 1; nan where only the loss was written
    loss: np.ndarray

    def __len__(self) -> int:
        return len(self.update)


def read_metrics(path: Path) -> Lines:
    """Line numbers and objects of a metrics file.

    Raises:
        RunError: the file is missing, or a line is not an object with `key`, `value` and `time_ms`. A half-written
            last line is what a killed run leaves, and is passed over.
    """
    return list(_lines(path))


def updates_of(path: Path, lines: Lines) -> Updates:
    """The `train_loss` lines as columns.

    Raises:
        RunError: a field is missing or no number, or an update does not come after the one before it.
    """
    names = ["value" if field.name == "loss" else field.name for field in fields(Updates)]
    rows: list[list[float]] = []
    for number, line in lines:
        if line["key"] != "train_loss":
            continue
        row = [number_of(path, number, line, name) for name in names]
        if rows and row[0] <= rows[-1][0]:
            raise RunError(f"{path}:{number}: update {row[0]:.0f} follows {rows[-1][0]:.0f}; resumed without a cut?")
        rows.append(row)
    return _columns(Updates, rows)


def evaluations_of(path: Path, lines: Lines) -> Evaluations:
    """The `eval_accuracy` and `eval_loss` lines as columns, those of one update in one entry.

    Raises:
        RunError: a field is missing or no number.
    """
    places = {"eval_accuracy": 3, "eval_loss": 4}
    rows: dict[float, list[float]] = {}
    for number, line in lines:
        if line["key"] in places:
            reached = [number_of(path, number, line, name) for name in ("update", "epoch", "samples")]
            row = rows.setdefault(reached[0], [*reached, math.nan, math.nan])
            row[places[line["key"]]] = number_of(path, number, line, "value")
    return _columns(Evaluations, [rows[update] for update in sorted(rows)])


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        texts = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise RunError(f"{path}: missing; is {path.parent} the folder of a run?") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number == len(texts):  # no newline after it: cut by a kill
                return
            raise RunError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(line, dict) or not {"key", "value", "time_ms"} <= line.keys():
            raise RunError(f'{path}:{number}: expected an object with "key", "value" and "time_ms"')
        number_of(path, number, line, "time_ms")
        yield number, line


def number_of(path: Path, number: int, line: dict[str, Any], name: str) -> float:
    """A field of a line as a number; NaN where it may be missing and is.

    Raises:
        RunError: it is missing or no number.
    """
    if name not in line:
        if name in _NOT_ALWAYS_MEASURED:
            return math.nan
        raise RunError(f"{path}:{number}: {line['key']} has no `{name}`")
    value = line[name]
    if value is None and name in _MAY_BE_MISSING:
        return math.nan
    try:
        known = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except OverflowError:
        known = None
    if known is None or not (math.isfinite(known) or name in _MAY_BE_MISSING):
        raise RunError(f"{path}:{number}: `{name}` is {json.dumps(value)[:40]}, expected a number")
    if name in _WHOLE and not (known.is_integer() and 0 <= known < 2**53):
        raise RunError(f"{path}:{number}: `{name}` is {json.dumps(value)[:40]}, expected a whole number")
    return known


def _columns(kind: type, rows: list[list[float]]) -> Any:
    names = [field.name for field in fields(kind)]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    columns = dict(zip(names, table.T, strict=True))
    return kind(**{name: column.astype(np.int64) if name in _WHOLE else column for name, column in columns.items()})
