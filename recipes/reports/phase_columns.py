"""The time of a run's updates by phase, from `metrics.jsonl`, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.phases import PHASES
from recipes.reports.metrics import Lines, RunError, number_of

_NAMES = [f"{name}_seconds" for name in PHASES]


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The measured times of the phases; empty for a run from before they were measured.

    Args:
        epoch: of each update measured, at its start.
        update_seconds: of these updates.
        seconds: (updates, phases), the mean over the workers.
        exchange_seconds: of the exchange of each update, hidden or not.
        lost: numbers that overflowed on a 16-bit wire, and that were flushed to zero; None on a 32-bit wire.
        by_rank: (workers, phases), the mean over updates on the last number of workers; None where nobody wrote it.
        exchange: the run's `gradient_exchange` line; empty if there is none.
    """

    epoch: np.ndarray
    update_seconds: np.ndarray
    seconds: np.ndarray
    exchange_seconds: np.ndarray
    lost: tuple[int, int] | None
    by_rank: np.ndarray | None
    exchange: dict[str, Any]

    def __len__(self) -> int:
        return len(self.epoch)


def phases_of(path: Path, lines: Lines) -> Phases:
    """The phases of the `train_loss` lines that have them, and of the `rank_seconds` lines.

    Raises:
        RunError: a phase is no number, or a table not one of workers by phases.
    """
    names = ["epoch", "update_seconds", "exchange_seconds", *_NAMES]
    rows, lost = [], None
    for number, line in lines:
        if line["key"] == "train_loss" and _NAMES[0] in line:
            rows.append([number_of(path, number, line, name) for name in names])
            if "wire_overflowed" in line:
                pair = [int(number_of(path, number, line, name)) for name in ("wire_overflowed", "wire_flushed")]
                lost = tuple(map(sum, zip(lost or (0, 0), pair, strict=True)))
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(names))
    told = [line for _, line in lines if line["key"] == "gradient_exchange"]
    return Phases(
        epoch=columns[:, 0],
        update_seconds=columns[:, 1],
        exchange_seconds=columns[:, 2],
        seconds=columns[:, 3:],
        lost=lost,
        by_rank=_by_rank(path, lines),
        exchange=told[-1] if told else {},
    )


def _by_rank(path: Path, lines: Lines) -> np.ndarray | None:
    tables: list[np.ndarray] = []
    weights: list[float] = []
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
        if tables and len(tables[0]) != len(table):  # resumed on another number of workers
            tables, weights = [], []
        tables.append(table)
        weights.append(weight)
    return np.average(np.stack(tables), axis=0, weights=weights) if tables else None
