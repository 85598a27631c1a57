"""A request to train, as ranks get it, and what became of it once it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.planner import Plan
from recipes.reading.open import OpenedRecipe


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
    verbosity: int = 0  # -1 quiet, 1 verbose
    loader_workers: int | None = None  # of each rank; None: as it pays
    loader: str | None = None  # threads or processes

    def __post_init__(self) -> None:
        least = {"workers": 1, "micro_batch_size": 1, "profile": 1, "loader_workers": 0, "watchdog_seconds": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            kinds = int | float if name == "watchdog_seconds" else int
            if value is not None and not (isinstance(value, kinds) and value >= bound):
                which, whole = ("ranks" if name == "workers" else name), " as a whole number" * (kinds is int)
                raise InputRefused(f"{which} is {value!r}; write {bound} or more{whole}")

    def as_tree(self) -> dict[str, Any]:
        """The same request as plain data."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> TrainRequest:
        """A request of `as_tree`, also after it was JSON."""
        paths = {name: tree[name] and Path(tree[name]) for name in ("out", "data")}
        lists = {name: tuple(tree.get(name, ())) for name in ("overrides", "accept_changed")}
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
