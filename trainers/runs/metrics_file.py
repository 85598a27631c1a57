"""A run's metrics file: how its last session ended, where sessions begin, and what a resumed run keeps of it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.reports.json_text import parse_json
from trainers.runs.run_folder import CHECKPOINTS, METRICS, RUN, TRACE, FolderRefused, is_checkpoint

SESSION_START = b'"run_start"'  # in the first line of a session
_LONGEST_LINE = 2**20  # bytes of a line: the last one has a number for each rank
_UPDATE, _CHECKPOINT = re.compile(rb'"key": ?"train_loss"'), re.compile(rb'"key": ?"checkpoint"')
_TRACED = re.compile(rb'^{"update": ?[0-9]')
_FOREVER = ("NotFinite", "Overflow")  # errors that the same recipe meets again


def last_line(folder: Path) -> dict[str, Any]:
    """The last whole line of a run's metrics, read from their end; empty where there is none, or it is damaged."""
    with suppress(OSError), open(folder / METRICS, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _LONGEST_LINE, 0))
        *whole, cut = file.read().split(b"\n")  # by a kill, perhaps
        for text in (cut, *[text for text in whole if text.strip()][-1:]):
            with suppress(ValueError, TypeError, RecursionError):
                return dict(parse_json(text))
    return {}


def ending_of(folder: Path) -> str:
    """How a run ended: `success`, `stopped`, `diverged` or `failed`; empty where it trains, or was killed.

    It diverged if it ended in numbers that are not finite: a result, and not a failure of the machine.
    """
    last = last_line(folder)
    if last.get("key") != "run_stop":
        return ""
    return "diverged" if last.get("value") == "failed" and last.get("cause") in _FOREVER else str(last.get("value"))


def has_diverged(folder: Path) -> bool:
    """Whether a run diverged, see `ending_of`."""
    return ending_of(folder) == "diverged"


def require_another_end(folder: Path) -> None:
    """Refuse to resume a run that ended in numbers that are not finite: the same recipe ends there again.

    Raises:
        FolderRefused: the last session ended so, with what the recipe is to be changed to.
    """
    if has_diverged(folder):
        reason = str(last_line(folder).get("reason", "")).partition(". Last good")[0]
        raise FolderRefused(
            f"the run in {folder} ended because {reason}. "
            "Resumed, the same recipe comes to the same numbers; change it, and start anew in another --out"
        )


def why_not_anew(folder: Path, complaints: Sequence[str] = ()) -> str:
    """Why a run without a whole checkpoint does not begin at update 0 again, which drops its record; else empty.

    Where checkpoints are there, the record holds updates. Where none is, one was written: the metrics name it, or have
    lost updates that the trace holds, or are gone together with the folder of the checkpoints.
    """
    checkpoints = folder / CHECKPOINTS
    there = sorted(path.name for path in checkpoints.glob("update-*") if is_checkpoint(path))  # links to nothing, too
    in_metrics, in_trace = _count(folder / METRICS, _UPDATE), _count(folder / TRACE, _TRACED)
    began = max(in_metrics, in_trace) > 0
    wrote = _count(folder / METRICS, _CHECKPOINT) > 0 or in_trace > in_metrics + 1  # a kill may fall between the two
    wrote = wrote or ((folder / RUN).exists() and not last_line(folder) and not checkpoints.is_dir())
    if not (began if there else wrote):
        return ""
    what = f"has {', '.join(there)}, and none is a whole checkpoint" if there else "has lost its checkpoints"
    return (
        f"{'; '.join([f'{checkpoints} {what}', *complaints])}. To begin at update 0 would drop the record of the "
        "updates that are done; bring the checkpoints back (their disk is not mounted, perhaps), or start anew in "
        "another --out"
    )


def _count(path: Path, pattern: re.Pattern[bytes]) -> int:
    """How many lines of a file match; 0 where it is not there."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return sum(pattern.search(line) is not None for line in file)
    return 0


def truncate_records(folder: Path, update: int) -> list[str]:
    """Drop from metrics and trace all after `update` updates: a resumed run does these again.

    Returns:
        Warnings where lines of the first `update` updates are lost, cannot be read or are there twice.
    """
    warnings = []
    for name in (METRICS, TRACE):
        path = folder / name
        if not path.exists():
            if name == METRICS and update:
                warnings.append(f"warning: {path} is missing: the metrics of the first {update} updates are lost")
            continue
        end, tail, damaged, dropped = 0, [], 0, False  # nearly all that is kept comes before the rest
        lost, last = update, -1
        with path.open("rb") as file:
            for line in file:
                is_kept, number = _before(line, update, path)
                if is_kept and number is not None and number <= last:  # there twice: no report takes it
                    is_kept = None
                elif is_kept and number is not None:
                    lost, last = lost - 1, number
                damaged += is_kept is None
                dropped = dropped or not is_kept
                if not dropped:
                    end += len(line)
                elif is_kept:
                    tail.append(line)
        if lost > 0 or (damaged and name == METRICS):
            warnings.append(f"warning: {path} {_damage(name, lost, damaged, update)}")
        if dropped:
            _cut(path, end, tail)
    return warnings


def _damage(name: str, lost: int, damaged: int, update: int) -> str:
    """In words what is wrong with a file of records."""
    if lost > 0 and name == TRACE:
        return f"lacks {lost} of the first {update} updates: it was cut or damaged, or a session was without --trace"
    what = f"the metrics of {lost} of the first {update} updates are lost"
    return f"was cut or damaged: {what if lost > 0 else f'{damaged} of its lines cannot be read or are there twice'}"


def _cut(path: Path, end: int, tail: list[bytes]) -> None:
    """Replace a file by its first `end` bytes and `tail`, whole or not at all; without `tail` it takes no space."""
    if not tail:
        os.truncate(path, end)
        return
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)  # of a killed process, or a stranger's link
    try:
        shutil.copyfile(path, partial)
        with partial.open("r+b") as file:
            file.truncate(end)
            file.seek(end)
            file.writelines(tail)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, partial)
        partial.rename(path)
    except OSError:  # the disk is full, perhaps
        partial.unlink(missing_ok=True)
        raise


def session_starts(path: Path) -> frozenset[bytes]:
    """The lines of a metrics file that begin its sessions; none where it is not there."""
    try:
        with path.open("rb") as file:
            return frozenset(line.rstrip(b"\n") for line in file if SESSION_START in line)
    except FileNotFoundError:
        return frozenset()


def _before(text: bytes, update: int, path: Path) -> tuple[bool | None, int | None]:
    """Whether a line is about the first `update` updates, None for a damaged one, or one that a crash cut off.

    With it the number of the update whose own line it is; None for others.
    """
    try:
        line = json.loads(text.decode())
        key = line.get("key", "train_loss")  # the trace has no others
        if not isinstance(key, str) or not text.endswith(b"\n"):
            return None, None
        # An update's own line carries its number, from 0.
        number = line["update"] if key == "train_loss" else None
        kept = line.get("update", 0) <= update if number is None else number < update
        if kept and path.name == METRICS:
            _require_figures(path, line)
        return kept, number
    except (InputRefused, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None, None


def _require_figures(path: Path, line: dict[str, Any]) -> None:
    """Raise LookupError or InputRefused where a line of the metrics lacks what the report reads."""
    from recipes.reports.metrics import evaluations_of, number_of, updates_of

    _ = line["key"], line["value"], number_of(path, 1, line, "time_ms")
    updates_of(path, [(1, line)])
    evaluations_of(path, [(1, line)])
