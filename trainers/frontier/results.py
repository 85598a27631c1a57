"""What the searches of a frontier have found so far, read from their folders."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from optuna.trial import FrozenTrial

from recipes.frontiers.fit import Fit, fit, interval, middle
from recipes.frontiers.open_frontier import RATE, OpenedFrontier
from recipes.frontiers.proposals import Optimum, at_edge
from recipes.search_space.ranges import Space
from trainers.runs.metrics_file import has_diverged
from trainers.search.folder import SEARCH, read_study, run_folders
from trainers.search.outcome import evaluations, metrics_lines
from trainers.search.results import BEST, FRESH_SEED, ended_confirmations
from trainers.search.study import DIVERGED, distinct, finished, state_of
from trainers.tasks.verdict import Claimed, judge

FEWEST = 10  # updates of the smallest batch that a curve is drawn for. Assumed.
MOST_PARTS = 3  # searches of a point: the first, and two beyond an edge of its ranges


def trials_beyond_edge(trials: int) -> int:
    """Trials of a search beyond the edge of the ranges of one of `trials`."""
    return max(2, trials // 2)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One search of a point: the first one, or one beyond the edge of its ranges.

    Args:
        folder, file: of the search.
        trials: that have ended.
        seeds: the figures of the best trial's runs with fresh seeds, at most `num_seeds`: updates to the goal, infinite
            where one missed it; or the accuracy, 0 where one diverged.
        num_seeds: how many the frontier asks for.
        missed: numbers of the trials whose fresh seeds mostly missed the goal, so that the next best one was tried.
    """

    folder: Path
    file: Path
    trials: tuple[FrozenTrial, ...]
    seeds: tuple[float, ...]
    num_seeds: int
    missed: frozenset[int] = frozenset()

    @cached_property
    def tree(self) -> dict[str, Any]:
        """Its file."""
        return yaml.safe_load(self.file.read_text(encoding="utf-8"))

    @property
    def best(self) -> FrozenTrial | None:
        """The best trial; one in `missed` only where all are."""
        sign = -1 if self.tree["objective"]["metric"] == "accuracy" else 1
        reached = [trial for trial in self.trials if state_of(trial) == "complete"]
        ranked = distinct(sorted(reached, key=lambda it: (sign * it.values[0], it.number)))
        return min(ranked, key=lambda it: it.number in self.missed, default=None)

    @property
    def best_recipe(self) -> Path | None:
        """The file with the recipe of the best trial; None where that is not written, as after an edit of the recipe.

        It is then that of a trial which was the best before, or there is none.
        """
        file, number = self.folder / BEST, None if self.best is None else self.best.number
        try:
            found = re.search(r"^name: \S+-trial-(\d+)\b", file.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            return None
        return file if found and int(found[1]) == number else None

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left to run in it."""
        seeds = 0 if self.best is None else self.num_seeds
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
    def has_target(self) -> bool:
        """Whether the figures are updates to a goal, and not accuracies after one length."""
        return self.opened.frontier.goal.target is not None

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
    def missed(self) -> int:
        """Trials that reached the goal and whose fresh seeds mostly missed it."""
        return sum(len(part.missed) for part in self.parts)

    @property
    def is_spent(self) -> bool:
        """Whether it has begun, and nothing is left to run in its searches."""
        return bool(self.parts) and all(part.is_spent for part in self.parts)

    @property
    def state(self) -> str:
        """One of not begun, unfinished, missed (no trial or most seeds reached the goal, or all diverged), finished."""
        if not self.is_spent:
            return "unfinished" if self.parts else "not begun"
        return "finished" if self.has_figure else "missed"

    @property
    def cap(self) -> int | None:
        """The updates that no trial of its first search may exceed; None where only the budget ends them."""
        return self.parts[0].tree["objective"].get("at_most") if self.parts else None

    @property
    def best_part(self) -> Part | None:
        """The search with the best figure over its seeds; while one of them has no seeds, with the best trial."""
        sign = 1 if self.has_target else -1
        found = [part for part in self.parts if part.best is not None]
        with_seeds = all(part.seeds for part in found)
        key = (lambda part: self._figure_of(part.seeds)) if with_seeds else lambda part: part.best.values[0]
        return min(found, key=lambda part: sign * key(part), default=None)

    @property
    def optimum(self) -> Optimum | None:
        """The values of the best trial."""
        if self.best_part is None:
            return None
        factor = self.opened.rate_factor(self.method, self.batch)
        return Optimum(batch=self.batch, values=self.best_part.best.params, rate_factor=factor)

    @property
    def runs(self) -> tuple[float, ...]:
        """The figure of each run that counts: those with fresh seeds, else the best trial."""
        part = self.best_part
        return () if part is None else part.seeds or (part.best.values[0],)

    @property
    def figure(self) -> float | None:
        """What the runs come to; None where no trial has a figure.

        The median of the updates, infinite where most missed the goal; or the mean accuracy.
        """
        return self._figure_of(self.runs) if self.runs else None

    @property
    def has_figure(self) -> bool:
        """Whether the runs come to a number: a trial reached the goal, and most of its seeds did too."""
        return self.figure not in (None, math.inf)

    def _figure_of(self, runs: Sequence[float]) -> float:
        return middle(runs) if self.has_target else fmean(runs)

    @property
    def updates(self) -> float | None:
        """To the goal, or those of every trial."""
        return self.figure if self.has_target else self.opened.longest(self.method, self.batch)[1]

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
        space = {**frontier.space, **frontier.all_methods[self.method].space}
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
        return [path for path, value in values.items() if at_edge(space[path], value)]

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


def points_in(folder: Path) -> list[tuple[str, int]]:
    """Method and batch of every point that a frontier's folder has, also of those that it was told to leave out."""
    names = [path.name.rpartition("-") for path in sorted(folder.glob("points/*"))]
    return [(method, int(batch)) for method, _, batch in names if batch.isdecimal()]


def read_point(opened: OpenedFrontier, folder: Path, method: str, batch: int) -> Point:
    """A point as it is now; `folder` is the frontier's. FolderRefused: a study of it is lost."""
    parts = tuple(_parts(opened, method, point_folder(folder, method, batch)))
    return Point(opened=opened, method=method, batch=batch, parts=parts)


def point_folder(folder: Path, method: str, batch: int) -> Path:
    """The folder of a point, in that of a frontier."""
    return folder / "points" / f"{method}-{batch:06d}"


def _parts(opened: OpenedFrontier, method: str, folder: Path) -> Iterator[Part]:
    num_seeds, first = opened.frontier.seeds, opened.bases[method].recipe.seed + FRESH_SEED
    names = [f"seed-{first + number}" for number in range(num_seeds)]  # a session before may have asked for more
    for file in sorted(folder.glob("search-*.yaml")):
        search, trials = file.with_suffix(""), []
        if (search / SEARCH).is_file():
            with read_study(search) as study:
                trials = finished(study)
        part = Part(folder=search, file=file, trials=tuple(trials), seeds=(), num_seeds=num_seeds)
        figure = _accuracy if opened.frontier.goal.target is None else _updates_to_goal
        while (best := part.best) is not None:
            runs = [run for run in ended_confirmations(search, best.number) if run.name in names]
            part = replace(part, seeds=tuple(map(figure, runs)))
            may_count = not part.is_spent or not part.seeds or middle(part.seeds) < math.inf
            if may_count or best.number in part.missed:  # in it only once all trials are
                break
            part = replace(part, missed=part.missed | {best.number})
        yield part


def _updates_to_goal(run: Path) -> float:
    return next((float(line["update"]) for line in metrics_lines(run) if line.get("key") == "goal"), math.inf)


def _accuracy(run: Path) -> float:
    """At its end; 0 if it diverged."""
    return 0.0 if has_diverged(run) else evaluations(metrics_lines(run))[-1]["accuracy"]


def difference(point: Point, other: Point) -> tuple[float, float, float] | None:
    """The mean accuracy of a point minus another's, and its 95 % interval by Welch's t; None without two runs each."""
    if len(point.runs) < 2 or len(other.runs) < 2:
        return None
    one_sample = 1 / point.opened.bases[point.method].dataset.num_eval  # runs that all diverged do not differ at all
    claimed = Claimed(
        value=fmean(other.runs),
        deviation=stdev(other.runs),
        runs=len(other.runs),
        margin=0.0,
        resolution=one_sample,
    )
    judged = judge(claimed, point.runs, level=0.025)
    return judged.difference, judged.lower, judged.upper


def curve_of(points: Sequence[Point]) -> Fit | None:
    """The curve of the updates to a goal; None with too few points.

    None too where the smallest batch takes under `FEWEST` updates: the figures are hardly more than their rounding.
    """
    found = _reached(points)
    made = fit([(point.batch, point.figure) for point in found])
    return None if made is None or found[0].figure < FEWEST else made


def fit_of(points: Sequence[Point]) -> tuple[Fit, tuple[float, float]] | None:
    """The curve, and the 95 % interval of its critical batch; None as for `curve_of`.

    The interval is over the seeds of every point; without seeds over its trials, of which the best counts.
    """
    made, found = curve_of(points), _reached(points)
    if made is None:
        return None
    frontier = found[0].opened.frontier
    if frontier.seeds:
        return made, interval([(point.batch, point.runs) for point in found], seed=frontier.seed)
    trials = [(point.batch, [*map(_of_trial, point.trials)]) for point in found]
    return made, interval(trials, seed=frontier.seed, statistic=min)


def _reached(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.has_target and point.has_figure]


def _of_trial(trial: FrozenTrial) -> float:
    return trial.values[0] if state_of(trial) == "complete" else math.inf
