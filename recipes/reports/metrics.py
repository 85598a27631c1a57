"""The lines of a run's `metrics.jsonl`, and the same as columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import InputRefused
from recipes.planning.phase_times import PHASES
from recipes.reports.json_text import fits_64_bits, parse_json
from recipes.reports.wording import MEMORY, are_peaks

_PHASE_FIELDS = [f"{name}_seconds" for name in PHASES]

_UPDATE = (b'{"key":"train_loss",', b'{"key": "train_loss",')
_WHOLE = ("update", "samples", "global_batch_size")
_NOT_ALWAYS_MEASURED = ("elapsed_seconds", "gradient_noise", "gradient_signal", "loss_scale", "overflows")
# Keys that readers of a run interpret: an extension's line with one would pass for an evaluation, or the run's end.
OWN_KEYS = (
    "checkpoint",
    "eval_accuracy",
    "eval_loss",
    "goal",
    "gradient_exchange",
    "micro_batch_size",
    "rank_seconds",
    "run_start",
    "run_stop",
    "skipped_image",
    "train_loss",
)
_MAY_BE_MISSING = ("value", "momentum")  # null, NaN or infinite: a run that diverged, an optimizer without momentum
Lines = list[tuple[int, dict[str, Any]]]


class RunError(InputRefused):
    """A run's folder that cannot be read; says which file, which line and why."""


def read_file(path: Path) -> bytes:
    """The content of a file of a run, which a stranger may have made.

    Raises:
        RunError: it is missing or cannot be read, or is no file.
    """
    try:
        if path.is_fifo() or path.is_char_device():  # a stranger's, which could wait for good
            raise RunError(f"{path}: cannot be read: it is no file")
        return path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path}: missing; is {path.parent} the folder of a run?") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error}") from None


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
    elapsed_seconds: np.ndarray  # since the run began, without pauses between sessions, at the update's end
    gradient_noise: np.ndarray  # see recipes.planning.noise_scale.Norms; nan where not measured
    gradient_signal: np.ndarray  # likewise
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


def read_metrics(path: Path, *, all_updates: bool = True) -> Lines:
    """Line numbers and objects of a metrics file.

    Args:
        all_updates: else the lines of all updates but the last one are passed over, which are nearly the whole file.
    Raises:
        RunError: the file is missing, or a line is not an object with `key`, `value` and `time_ms`, or has a whole
            number of more than 64 bits. A half-written last line is what a killed run leaves, and is passed over.
    """
    lines: Lines = []
    texts = read_file(path).split(b"\n")
    last = next((number for number in range(len(texts) - 1, 0, -1) if texts[number - 1].startswith(_UPDATE)), 0)
    for number, text in enumerate(texts, start=1):
        if not text.strip() or (number < last and not all_updates and text.startswith(_UPDATE)):
            continue
        try:
            line = parse_json(text)
        except (ValueError, RecursionError) as error:
            if number == len(texts):  # no newline after it: cut by a kill
                break
            raise RunError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(line, dict) or not {"key", "value", "time_ms"} <= line.keys():
            raise RunError(f'{path}:{number}: expected an object with "key", "value" and "time_ms"')
        if not isinstance(line["key"], str):
            raise RunError(f"{path}:{number}: `key` is {json.dumps(line['key'])[:40]}, expected a text")
        number_of(path, number, line, "time_ms")
        lines.append((number, line))
    return lines


def session_end(lines: Lines) -> dict[str, Any]:
    """The `run_stop` line of the last session, whose value says how it ended; empty where none is written yet."""
    ends = [line for _, line in lines if line["key"] in ("run_start", "run_stop")]
    return ends[-1] if ends and ends[-1]["key"] == "run_stop" else {}


def rounding_wires(lines: Lines) -> tuple[str, ...]:
    """The formats of 16 bits in which gradients were sent, in any session; empty where none were rounded."""
    wires = {str(line.get("wire")) for _, line in lines if line["key"] == "gradient_exchange"}
    return tuple(sorted(wires & {"float16", "bfloat16"}))


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
    columns = {"eval_accuracy": 3, "eval_loss": 4}
    rows: dict[float, list[float]] = {}
    for number, line in lines:
        if line["key"] in columns:
            reached = [number_of(path, number, line, name) for name in ("update", "epoch", "samples")]
            row = rows.setdefault(reached[0], [*reached, math.nan, math.nan])
            row[columns[line["key"]]] = number_of(path, number, line, "value")
    return _columns(Evaluations, [rows[update] for update in sorted(rows)])


def is_score(line: dict[str, Any]) -> bool:
    """Whether a line is one of an evaluation: accuracy, loss or a metric. A line of an extension has no `samples`."""
    return line["key"] in ("eval_accuracy", "eval_loss") or (line["key"].startswith("eval_") and "samples" in line)


def figures_of(lines: Lines) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Epochs and values of each metric of the evaluations, by its name; none that is never finite."""
    scores = [line for _, line in lines if is_score(line)]
    scores = [line for line in scores if line["key"] not in ("eval_accuracy", "eval_loss")]
    return _series((line["key"].removeprefix("eval_"), line) for line in scores)


def extension_figure(line: dict[str, Any]) -> bool:
    """Whether a line is a number that an extension wrote after an update."""
    numbers = (line["value"], line.get("epoch"), line.get("update"))
    is_own = line["key"] in OWN_KEYS or is_score(line)
    return not is_own and all(map(_is_number, numbers)) and isinstance(numbers[2], int) and math.isfinite(numbers[1])


def extension_figures_of(lines: Lines) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Epochs and values of each number that extensions wrote, by its key; none that is never finite."""
    return _series((line["key"], line) for _, line in lines if extension_figure(line))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and fits_64_bits(value))


def _series(named: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Epochs and values by name; lines in which one is no number are left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, line in named:
        pair = (line.get("epoch"), line["value"])
        if all(isinstance(each, int | float) and not isinstance(each, bool) for each in pair) and math.isfinite(
            pair[0]
        ):
            found.setdefault(name, []).append(pair)
    arrays = {name: tuple(np.array(pairs, dtype=np.float64).T) for name, pairs in found.items()}
    return {name: pair for name, pair in arrays.items() if np.isfinite(pair[1]).any()}


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


@dataclass(frozen=True, kw_only=True)
class RankLine:
    """A `rank_seconds` line: the mean seconds of each worker since the last such line, and its memory.

    Args:
        epoch: reached.
        num_updates: of the mean.
        seconds: (workers, phases).
        memory: kind, such as `resident_bytes` -> the peak of each worker so far; empty where nobody wrote it.
    """

    epoch: float
    num_updates: float
    seconds: np.ndarray
    memory: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The measured times of the phases; empty for a run from before they were measured.

    Args:
        epoch: of each update measured, at its start.
        update_seconds: of these updates.
        seconds: (updates, phases), the mean over the workers.
        exchange_seconds: of the exchange of each update, hidden or not.
        lost: numbers that overflowed on a 16-bit wire, and that were flushed to zero; None on a 32-bit wire.
        ranks: the lines of the last number of workers, in order.
        exchange: the run's `gradient_exchange` line; empty if there is none.
    """

    epoch: np.ndarray
    update_seconds: np.ndarray
    seconds: np.ndarray
    exchange_seconds: np.ndarray
    lost: tuple[int, int] | None
    ranks: tuple[RankLine, ...]
    exchange: dict[str, Any]

    def __len__(self) -> int:
        return len(self.epoch)

    @property
    def by_rank(self) -> np.ndarray | None:
        """(workers, phases), the mean over updates on the last number of workers; None where nobody wrote it."""
        weights = [line.num_updates for line in self.ranks]
        return np.average([line.seconds for line in self.ranks], axis=0, weights=weights) if self.ranks else None


def phases_of(path: Path, lines: Lines) -> Phases:
    """The phases of the `train_loss` lines that have them, and of the `rank_seconds` lines.

    Raises:
        RunError: a phase is no number, or a table not one of workers by phases.
    """
    names = ["epoch", "update_seconds", "exchange_seconds", *_PHASE_FIELDS]
    rows, lost = [], None
    for number, line in lines:
        if line["key"] == "train_loss" and _PHASE_FIELDS[0] in line:
            rows.append([number_of(path, number, line, name) for name in names])
            if "wire_overflowed" in line:
                pair = [int(number_of(path, number, line, name)) for name in ("wire_overflowed", "wire_flushed")]
                lost = tuple(map(sum, zip(lost or (0, 0), pair, strict=True)))
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(names))
    exchanges = [line for _, line in lines if line["key"] == "gradient_exchange"]
    return Phases(
        epoch=columns[:, 0],
        update_seconds=columns[:, 1],
        exchange_seconds=columns[:, 2],
        seconds=columns[:, 3:],
        lost=lost,
        ranks=tuple(_rank_lines(path, lines)),
        exchange=exchanges[-1] if exchanges else {},
    )


def _rank_lines(path: Path, lines: Lines) -> list[RankLine]:
    found: list[RankLine] = []
    for number, line in lines:
        if line["key"] != "rank_seconds":
            continue
        try:
            table = np.array(line.get("seconds"), dtype=np.float64)
        except (TypeError, ValueError):
            table = np.empty(0)
        good = table.ndim == 2 and len(table) and table.shape[1] == len(PHASES) and np.isfinite(table).all()
        weight = number_of(path, number, line, "value")
        if not good or not weight >= 1:
            raise RunError(f"{path}:{number}: `seconds` is no table of workers by {len(PHASES)} phases")
        if found and len(found[0].seconds) != len(table):  # resumed on another number of workers
            found = []
        memory = {kind: line[kind] for kind in MEMORY if are_peaks(line.get(kind)) and len(line[kind]) == len(table)}
        epoch = number_of(path, number, line, "epoch")
        found.append(RankLine(epoch=epoch, num_updates=weight, seconds=table, memory=memory))
    return found
