"""What the searches of a frontier have found so far, read from their folders."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial

from recipes.frontiers.fit import Fit, fit, interval
from recipes.frontiers.open_frontier import RATE, OpenedFrontier
from recipes.frontiers.proposals import EDGE, Optimum, share_of
from recipes.search_space.ranges import Space
from trainers.search.folder import SEARCH, opened_storage, read_record, run_folders
from trainers.search.outcome import has_ended, metrics_lines
from trainers.search.results import confirm_folder
from trainers.search.study import DIVERGED, finished, state_of


@dataclass(frozen=True, kw_only=True)
class Part:
    """One search of a point: the first one, or one beyond the edge of its ranges.

    Args:
        folder, file: of the search.
        trials: that have ended.
        seeds: updates to the goal of the runs with fresh seeds, infinite where one missed it.
    """

    folder: Path
    file: Path
    trials: tuple[FrozenTrial, ...]
    seeds: tuple[float, ...]

    @cached_property
    def tree(self) -> dict[str, Any]:
        """Its file."""
        return yaml.safe_load(self.file.read_text(encoding="utf-8"))

    @property
    def best(self) -> FrozenTrial | None:
        reached = [trial for trial in self.trials if state_of(trial) == "complete"]
        return min(reached, key=lambda trial: (trial.values[0], trial.number), default=None)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left to run in it."""
        seeds = 0 if self.best is None or self.tree["confirm"] is None else self.tree["confirm"]["seeds"]
        return len(self.trials) >= self.tree["budget"]["trials"] and len(self.seeds) >= seeds


@dataclass(frozen=True, kw_only=True)
class Point:
    """One batch of one method.

    Args:
        opened, method, batch: whose.
        parts: its searches, in the order in which they ran; none before it begins.
    """

    opened: OpenedFrontier
    method: str
    batch: int
    parts: tuple[Part, ...]

    @property
    def trials(self) -> list[FrozenTrial]:
        return [trial for part in self.parts for trial in part.trials]

    @property
    def reached(self) -> int:
        return sum(state_of(trial) == "complete" for trial in self.trials)

    @property
    def diverged(self) -> int:
        return sum(DIVERGED in trial.user_attrs for trial in self.trials)

    @property
    def best_part(self) -> Part | None:
        """The search whose best trial is the best of all."""
        found = [part for part in self.parts if part.best is not None]
        return min(found, key=lambda part: part.best.values[0], default=None)

    @property
    def optimum(self) -> Optimum | None:
        """The values of the best trial."""
        if self.best_part is None:
            return None
        factor = self.opened.rate_factor(self.method, self.batch)
        return Optimum(batch=self.batch, values=self.best_part.best.params, rate_factor=factor)

    @property
    def runs(self) -> tuple[float, ...]:
        """Updates to the goal of each run that counts: those with fresh seeds, else the best trial."""
        part = self.best_part
        return () if part is None else part.seeds or (part.best.values[0],)

    @property
    def updates(self) -> float | None:
        """The median over `runs`: infinite where most of them missed the goal, None where no trial reached it."""
        return median(self.runs) if self.runs else None

    @property
    def epochs(self) -> float | None:
        num_train = self.opened.bases[self.method].dataset.num_train
        return None if self.updates is None else self.updates * self.batch / num_train

    @property
    def rate(self) -> float | None:
        """The full learning rate of the best trial."""
        if self.optimum is None:
            return None
        own = self.opened.bases[self.method].recipe.learning_rate.reference
        return self.optimum.values.get(RATE, own) * self.optimum.rate_factor

    @property
    def space(self) -> Space:
        """The ranges of all its searches together."""
        frontier = self.opened.frontier
        space = {**frontier.space, **frontier.branches[self.method].space}
        for part in self.parts[1:]:
            for path, range_ in part.tree["space"].items():
                if "low" in range_:
                    low, high = min(space[path].low, range_["low"]), max(space[path].high, range_["high"])
                    space[path] = replace(space[path], low=low, high=high)
        return space

    @property
    def edges(self) -> list[str]:
        """The paths whose best value lies on an edge of its range."""
        space, values = self.space, {} if self.optimum is None else self.optimum.values
        shares = {path: share_of(space[path], value) for path, value in values.items()}
        return [path for path, share in shares.items() if share is not None and not EDGE < share < 1 - EDGE]

    def accuracy_at(self, *, epochs: float = math.inf, updates: float = math.inf) -> float | None:
        """The best accuracy of all trials within a budget; None before there is an evaluation in it."""
        found = [
            line["value"]
            for part in self.parts
            for trial in part.trials
            for line in metrics_lines(run_folders(part.folder, trial.number, seeds=1)[0])
            if line.get("key") == "eval_accuracy" and line["epoch"] <= epochs + 1e-9 and line["update"] <= updates
        ]
        return max(found, default=None)


def read_point(opened: OpenedFrontier, folder: Path, method: str, batch: int) -> Point:
    """A point as it is now; `folder` is the frontier's."""
    parts = tuple(_parts(opened, point_folder(folder, method, batch)))
    return Point(opened=opened, method=method, batch=batch, parts=parts)


def point_folder(folder: Path, method: str, batch: int) -> Path:
    """The folder of a point, in that of a frontier."""
    return folder / "points" / f"{method}-{batch:06d}"


def _parts(opened: OpenedFrontier, folder: Path) -> Iterator[Part]:
    for file in sorted(folder.glob("search-*.yaml")):
        search, trials, seeds = file.with_suffix(""), [], []
        if (search / SEARCH).is_file():
            record = read_record(search)
            with opened_storage(record["storage"], search) as storage:
                study = optuna.load_study(study_name=record["study"], storage=storage)
                trials = finished(study)
        part = Part(folder=search, file=file, trials=tuple(trials), seeds=())
        if part.best is not None:
            first = confirm_folder(search, part.best.number, 0).parent
            seeds = [_updates_to_goal(run) for run in sorted(first.glob("seed-*")) if has_ended(run)]
        yield replace(part, seeds=tuple(seeds))


def _updates_to_goal(run: Path) -> float:
    return next((float(line["update"]) for line in metrics_lines(run) if line.get("key") == "goal"), math.inf)


def fit_of(points: Sequence[Point]) -> tuple[Fit, tuple[float, float]] | None:
    """The curve through the points of a method, and the 95 % interval of its critical batch; None if there are too few.

    The interval is over the seeds of every point; without seeds over its trials, of which the best counts.
    """
    found = [point for point in points if point.updates is not None and math.isfinite(point.updates)]
    made = fit([(point.batch, point.updates) for point in found])
    if made is None:
        return None
    frontier = found[0].opened.frontier
    if frontier.seeds:
        return made, interval([(point.batch, point.runs) for point in found], seed=frontier.seed)
    trials = [(point.batch, [*map(_of_trial, point.trials)]) for point in found]
    return made, interval(trials, seed=frontier.seed, statistic=min)


def _of_trial(trial: FrozenTrial) -> float:
    return trial.values[0] if state_of(trial) == "complete" else math.inf
