"""A request to train, as ranks get it, and what became of it once it was checked."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.planner import Plan
from recipes.reading.open import OpenedRecipe

_LEAST = {"workers": 1, "micro_batch_size": 1, "profile": 1, "loader_workers": 0}


def _whole(value: object) -> int | None:
    """A whole number, also of NumPy; None for anything else, a bool too."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _truth(value: object) -> bool | None:
    """A bool, also of NumPy, or 0 or 1; None for anything else."""
    try:
        return bool(value) if value in (True, False) else None
    except ValueError:  # an array
        return None


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What `kilobatch train` was asked for, word for word.

    The process that starts ranks gives it to them as JSON; ranks of mpiexec or srun make it from the command line.
    """

    recipe: str
    workers: int | None = None
    cluster: str | None = None
    overrides: tuple[str, ...] = ()
    overrides_from: str | None = None
    out: Path | None = None
    resume: bool = False
    accept_changed: tuple[str, ...] = ()
    stop_after: str | None = None
    checkpoint_every: str = "1ep"
    micro_batch_size: int | None = None
    device: str | None = None
    trace: bool = False
    measure_noise: bool = False
    exact: bool | None = None
    profile: int | None = None
    allow_code: bool = False
    data: Path | None = None
    report: bool = True
    watchdog_seconds: float = 120.0
    verbosity: int = 0  # -2 silent, -1 quiet, 1 verbose
    loader_workers: int | None = None  # of each rank; None: as it pays
    loader: str | None = None  # threads or processes
    checked_id: str | None = None  # `recipe_and_code_id` of what a search has checked before the ranks open it
    warnings: tuple[str, ...] = ()  # that were printed before the ranks started; they note them in the run's record

    def __post_init__(self) -> None:
        """Check what Python gave; numbers of NumPy become Python's, and a cluster's path a text.

        Raises:
            InputRefused: a value has another type, or is out of its range.
        """
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) is not None:
                whole = _whole(value)
                if whole is None or whole < least:
                    called = "ranks" if name == "workers" else name
                    raise InputRefused(f"{called} is {value!r}; write {least} or more as a whole number")
                object.__setattr__(self, name, whole)
        if _whole(self.verbosity) not in (-2, -1, 0, 1):
            raise InputRefused(f"verbosity is {self.verbosity!r}; write -2, -1, 0 or 1")
        object.__setattr__(self, "verbosity", _whole(self.verbosity))
        seconds = self.watchdog_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, Real) or not seconds >= 0:
            raise InputRefused(f"watchdog_seconds is {seconds!r}; write 0 or more")
        object.__setattr__(self, "watchdog_seconds", float(seconds))
        for name in ("cluster", "stop_after", "checkpoint_every", "device", "loader"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, str(value))
        for name in ("resume", "trace", "measure_noise", "exact", "allow_code", "report"):
            if (value := getattr(self, name)) is not None or name != "exact":
                if (truth := _truth(value)) is None:
                    raise InputRefused(f"{name} is {value!r}; write True or False")
                object.__setattr__(self, name, truth)

    def as_tree(self) -> dict[str, Any]:
        """The same request as plain data."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> TrainRequest:
        """A request of `as_tree`, also after it was JSON."""
        paths = {name: tree[name] and Path(tree[name]) for name in ("out", "data")}
        lists = {name: tuple(tree.get(name, ())) for name in ("overrides", "accept_changed", "warnings")}
        return cls(**{**tree, **paths, **lists})


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What `launch.request.prepare` made of a request that has passed every check.

    Args:
        stop_after_update: end with a checkpoint after so many updates from the start of the run; None for all.
        checkpoint_every: epochs, or `update`.
    """

    opened: OpenedRecipe
    plan: Plan
    stop_after_update: int | None
    checkpoint_every: float | str
