"""Reads the record of a run: `run.yaml`, `environment.json` and `metrics.jsonl`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from recipes.errors import refuse_unreachable
from recipes.reports.json_text import fits_64_bits, parse_json
from recipes.reports.metrics import (
    Evaluations,
    Lines,
    Phases,
    RunError,
    Updates,
    evaluations_of,
    extension_figures_of,
    figures_of,
    phases_of,
    read_file,
    read_metrics,
    rounding_wires,
    session_end,
    updates_of,
)
from recipes.reports.wording import memory_words

_LARGEST_TREE = 1_000_000  # values; aliases in a stranger's file could otherwise expand without end
_DEEPEST_TREE = 60


@dataclass(frozen=True, kw_only=True)
class Run:
    """The record of a run; `updates` and `evaluations` have one column for each quantity.

    Args:
        recipe: the resolved recipe, as the tree written to `run.yaml`.
        origins: where each value of the recipe comes from, by dotted path.
        environment: versions, devices, git, data fingerprint.
        seconds: time from the start to the last line, of all sessions together, without the pauses between them.
        outcome: `success`, `stopped`, `failed`, or `unfinished` where the last session has written no end.
        reason: why it stopped or failed; empty if it reached its end, or the position of `--stop-after`.
        notes: of its sessions, from their start and later.
        skipped_images: that could not be decoded, each once: its file and why.
        memory: peak memory of the ranks, in words; empty if unknown.
        sessions: first update and number of workers of each stretch of updates that equally many made; empty where a
            session has not written them.
        metrics: epochs and values of each of the recipe's metrics, by its name.
        extension_figures: epochs and values of each number that extensions wrote, by its key.
        wires: see `rounding_wires`.
    """

    folder: Path
    recipe: dict[str, Any]
    origins: dict[str, str]
    plan: dict[str, Any]
    dataset: dict[str, Any]
    command: str
    environment: dict[str, Any]
    updates: Updates
    evaluations: Evaluations
    seconds: float
    outcome: str
    reason: str
    phases: Phases
    notes: tuple[str, ...] = ()
    skipped_images: tuple[str, ...] = ()
    memory: str = ""
    metrics: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    extension_figures: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    sessions: tuple[tuple[int, int], ...] = ()
    wires: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", self.folder.name))

    @property
    def title(self) -> str:
        return str(self.recipe.get("title") or self.name)

    @property
    def epochs_done(self) -> float:
        """Epochs consumed, the last update included."""
        if not len(self.updates):
            return 0.0
        last = self.updates.epoch[-1]
        num_train = self.dataset.get("num_train")
        known = isinstance(num_train, int) and num_train > 0
        return float(last + self.updates.global_batch_size[-1] / num_train) if known else float(last)

    @property
    def first_of_last_workers(self) -> int:
        """First update of the last of `sessions`, on whose workers `plan` is; 0 where that is not known."""
        return self.sessions[-1][0] if self.sessions else 0

    @cached_property
    def best(self) -> int | None:
        """Index of the evaluation with the best accuracy (the first of equals), None without any."""
        accuracy = self.evaluations.accuracy
        return int(np.nanargmax(accuracy)) if np.isfinite(accuracy).any() else None

    @property
    def final_accuracy(self) -> float | None:
        """Accuracy of the last evaluation that has one."""
        accuracy = self.evaluations.accuracy[np.isfinite(self.evaluations.accuracy)]
        return float(accuracy[-1]) if len(accuracy) else None

    @property
    def final_loss(self) -> float | None:
        """Loss of the last evaluation that has one."""
        loss = self.evaluations.loss[~np.isnan(self.evaluations.loss)]
        return float(loss[-1]) if len(loss) else None

    @property
    def samples_per_second(self) -> float | None:
        """Samples over seconds of all updates, without evaluations, checkpoints and start-up."""
        seconds = float(self.updates.update_seconds.sum())
        return float(self.updates.global_batch_size.sum()) / seconds if seconds > 0 else None


@refuse_unreachable()
def open_run(path: str | Path) -> Run:
    """Reads a run's folder.

    Raises:
        RunError: the folder, `run.yaml`, `metrics.jsonl` or `environment.json` is missing or malformed. A half-written
            last line of `metrics.jsonl`, which a killed run leaves, is ignored.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; name the folder that `kilobatch train --out` wrote")
    head = read_head(folder / "run.yaml")
    metrics = folder / "metrics.jsonl"
    lines = read_metrics(metrics)
    end = session_end(lines)
    seconds = _elapsed(lines)  # before the columns: it is one of them
    return Run(
        folder=folder,
        recipe=_mapping(head, "recipe", folder),
        origins={str(key): str(text) for key, text in _mapping(head, "origins", folder).items()},
        plan=_mapping(head, "plan", folder),
        dataset=_mapping(head, "dataset", folder),
        command=str(head.get("command", "")),
        environment=read_environment(folder / "environment.json"),
        updates=updates_of(metrics, lines),
        evaluations=evaluations_of(metrics, lines),
        seconds=seconds,
        outcome=str(end.get("value", "unfinished")),
        reason=str(end.get("reason") or ""),
        phases=phases_of(metrics, lines),
        notes=_notes(lines),
        skipped_images=tuple(
            dict.fromkeys(str(line.get("value")) for _, line in lines if line["key"] == "skipped_image")
        ),
        sessions=_sessions(lines),
        wires=rounding_wires(lines),
        metrics=figures_of(lines),
        extension_figures=extension_figures_of(lines),
        memory=memory_words(*(line for _, line in lines if line["key"] == "run_stop")),
    )


def _text(path: Path) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: cannot be read: {error}") from None


def read_head(path: Path) -> dict[str, Any]:
    """The tree of a run.yaml, which a stranger may have written.

    Raises:
        RunError: it is missing, not a YAML mapping, too large, or has a whole number of more than 64 bits.
    """
    text = _text(path)
    try:
        tree = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        raise RunError(f"{path}:{where}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: not YAML: {error}") from None
    if not isinstance(tree, dict):
        raise RunError(f"{path}:1: expected keys such as `recipe` and `plan`, found {type(tree).__name__}")
    _check_size(tree, path)
    return tree


def _check_size(tree: Any, path: Path) -> None:
    waiting, seen = [(tree, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if seen > _LARGEST_TREE or depth > _DEEPEST_TREE:
            raise RunError(f"{path}: over {_LARGEST_TREE:,} values or {_DEEPEST_TREE} levels; not written by a run")
        if isinstance(node, int) and not fits_64_bits(node):
            raise RunError(f"{path}: a whole number of more than 64 bits; not written by a run")
        children = node if isinstance(node, (dict, list, tuple, set)) else ()
        waiting.extend((child, depth + 1) for child in children)
        waiting.extend((child, depth + 1) for child in (node.values() if isinstance(node, dict) else ()))


def _mapping(head: dict[str, Any], key: str, folder: Path) -> dict[str, Any]:
    value = head.get(key)
    if not isinstance(value, dict):
        raise RunError(f"{folder / 'run.yaml'}: `{key}` is missing or not a mapping")
    return value


def read_environment(path: Path) -> dict[str, Any]:
    """The tree of an environment.json, which a stranger may have written.

    Raises:
        RunError: it is missing, or no JSON object.
    """
    text = _text(path)
    try:
        tree = parse_json(text)
    except json.JSONDecodeError as error:
        raise RunError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: {error}; not written by a run") from None
    if not isinstance(tree, dict):
        raise RunError(f"{path}:1: expected an object, found {type(tree).__name__}")
    return tree


def _elapsed(numbered: Lines) -> float:
    """Seconds of all sessions; each line gets its `elapsed_seconds`."""
    lines = [line for _, line in numbered]
    milliseconds, start = 0.0, None
    for line, following in zip_longest(lines, lines[1:]):
        if line["key"] == "run_start":
            start = line["time_ms"]
        line["elapsed_seconds"] = (milliseconds + (0 if start is None else line["time_ms"] - start)) / 1000
        if start is not None and (following is None or following["key"] == "run_start"):
            milliseconds += line["time_ms"] - start
    return milliseconds / 1000


def _sessions(lines: Lines) -> tuple[tuple[int, int], ...]:
    workers_from: dict[int, int] = {}
    for _, line in lines:
        if line["key"] != "run_start":
            continue
        update, workers = line.get("update"), line.get("workers")
        if not all(isinstance(count, int) and count >= 0 for count in (update, workers)):
            return ()
        # The next session has repeated what this one did after its last checkpoint.
        workers_from = {first: count for first, count in workers_from.items() if first < update} | {update: workers}
    counts = [None, *workers_from.values()]
    return tuple(pair for pair, before in zip(workers_from.items(), counts, strict=False) if pair[1] != before)


def _notes(lines: Lines) -> tuple[str, ...]:
    """The notes of all sessions, each once."""
    given: list[Any] = []
    for _, line in lines:
        if line["key"] == "run_start":
            notes = line.get("notes")
            given += notes if isinstance(notes, list) else []
        elif "note" in line:
            given.append(line["note"])
    return tuple(dict.fromkeys(map(str, given)))
