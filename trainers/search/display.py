"""What a user sees of a search: a table on a terminal, lines in a log, and how scores and values are written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from recipes.errors import printable
from recipes.reports.wording import duration, number, percent
from recipes.schema import Search
from trainers.runs.run_folder import LOG
from trainers.search.study import FOLDER, SECONDS, pareto_front, reason_of, state_of
from trainers.search.trial_run import Report


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
    if len(search.objectives) == 1:
        return shown(search.objectives[0].metric, next(iter(values)))
    pairs = zip(search.objectives, values, strict=True)
    return ", ".join(score(objective.metric, value) for objective, value in pairs)


def values_text(values: Mapping[str, Any]) -> str:
    """A trial's values in a line."""
    return ", ".join(f"{path} {short(value)}" for path, value in values.items())


def short(value: Any) -> str:
    """A value of a recipe in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def column_names(paths: Sequence[str]) -> list[str]:
    """The last word of each path, with as many words before it as distinguish it from the others.

    >>> column_names(["epochs", "learning_rate.warmup.epochs", "learning_rate.reference"])
    ['epochs', 'warmup.epochs', 'reference']
    """
    names = []
    for path in paths:
        words = path.split(".")
        endings = [".".join(words[-count:]) for count in range(1, len(words) + 1)]
        others = [other for other in paths if other != path]
        free = (end for end in endings if not any(f".{other}".endswith(f".{end}") for other in others))
        names.append(next(free, path))
    return names


_ROWS = 20  # of the table
_STYLES = {
    "running": "cyan",
    "complete": "green",
    "short": "blue",
    "infeasible": "magenta",
    "pruned": "yellow",
    "failed": "red",
    "diverged": "red",
}


@dataclass(kw_only=True)
class _Row:
    """A trial in the table."""

    number: int
    values: Mapping[str, Any]
    state: str
    scores: Sequence[float] | None = None
    note: str = ""
    earlier: float = 0.0  # seconds, in earlier sessions and runs
    current: float = 0.0  # seconds, in the run that is trained now

    @property
    def seconds(self) -> float:
        return self.earlier + self.current


@dataclass(kw_only=True)
class Display:
    """Shows the progress of a search on the console and in its log."""

    search: Search
    folder: Path
    console: Console
    groups: int
    _rows: dict[int, _Row] = field(default_factory=dict)
    _live: Live | None = None
    _began: float = field(default_factory=time.monotonic)  # moved back by the time of earlier sessions

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(Text("starting"), console=self.console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            self._live.__exit__(*failure)

    def add_trials(self, trials: Sequence[optuna.trial.FrozenTrial], *, spent_seconds: float = 0.0) -> None:
        """Add the trials of earlier sessions and of other supervisors, and the time they have spent.

        A trial that is in the table already is only replaced if it has ended since.
        """
        self._began -= spent_seconds
        for trial in trials:
            row = self._rows.get(trial.number)
            is_new = row is None or (row.state == "running" and trial.state.is_finished())
            if is_new and FOLDER in trial.user_attrs and state_of(trial) in _STYLES:
                self._rows[trial.number] = _Row(
                    number=trial.number,
                    values=trial.params,
                    state=state_of(trial),
                    scores=trial.values,
                    note=reason_of(trial),
                    earlier=trial.user_attrs.get(SECONDS, 0.0),
                )

    def say(self, text: str) -> None:
        """Print a line on the console and write it to the log."""
        text = printable(text)
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        with open(self.folder / LOG, "a", encoding="utf-8", errors="backslashreplace") as file:  # paths
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def began(self, number: int, values: Mapping[str, Any], *, resumed: bool) -> None:
        """A trial's run has begun."""
        row = self._rows.get(number)
        self._rows[number] = _Row(number=number, values=values, state="running", earlier=row.seconds if row else 0.0)
        self.say(f"trial {number} {'goes on' if resumed else 'begins'}: {values_text(values)}")

    def reported(self, number: int, report: Report) -> None:
        """A trial has reported."""
        row = self._rows[number]
        row.scores = (report.value,) if self.search.reported else None
        row.note = f"report {report.number} of {self.search.reports}"

    def ended(self, number: int, state: str, *, values: Sequence[float] | None = None, reason: str = "") -> None:
        """A trial has ended: complete, short (of a lower rung), infeasible, pruned or failed."""
        row = self._rows.setdefault(number, _Row(number=number, values={}, state=state))
        row.state, row.note = state, reason
        row.scores = row.scores if values is None else values
        details = ", ".join(filter(None, [scores(self.search, values) if values is not None else "", reason]))
        self.say("; ".join(filter(None, [f"trial {number} {state}: {details}", *self._summary()])))

    def show(self, running: Mapping[int, float]) -> None:
        """Redraw the table, on a terminal; `running`: number of a trial -> seconds of its run so far."""
        for trial, seconds in running.items():
            self._rows[trial].current = seconds
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)

    def device_hours(self) -> float:
        """Ranks times hours of all trials so far."""
        return sum(map(self._device_hours, self._rows.values()))

    def seconds_left(self) -> float | None:
        """Estimated seconds until the first limit of the budget is reached.

        The time of the trials left is taken from the mean of those that have ended; None if none or all have ended.
        """
        budget, timed = self.search.budget, [row.seconds for row in self._ended() if row.seconds]
        waiting = budget.trials - len(self._ended())
        if not timed or waiting <= 0:
            return None
        running = sum(row.seconds for row in self._rows.values() if row.state == "running")
        left = [(waiting * sum(timed) / len(timed) - running) / self.groups]
        if budget.hours is not None:
            left.append(3600 * budget.hours - (time.monotonic() - self._began))
        if budget.device_hours is not None:
            ranks = self.groups * self.search.ranks_per_trial
            left.append(3600 * (budget.device_hours - self.device_hours()) / ranks)
        return max(0.0, min(left))

    def _device_hours(self, row: _Row) -> float:
        return row.seconds * self.search.ranks_per_trial / 3600

    def _ended(self) -> list[_Row]:
        return [row for row in self._rows.values() if row.state != "running"]

    def _best(self) -> list[_Row]:
        """The best trial; with several objectives the Pareto front."""
        complete = {row.number: row.scores for row in self._rows.values() if row.state == "complete" and row.scores}
        numbers = pareto_front(complete, [objective.direction for objective in self.search.objectives])
        several = len(self.search.objectives) > 1
        return [self._rows[each] for each in (numbers if several else numbers[:1])]

    def _summary(self, *more: str) -> list[str]:
        left = self.seconds_left()
        about = f"about {duration(left)} left" if left and left >= 1 else ""
        return [self._best_text(), f"{len(self._ended())}/{self.search.budget.trials} trials", *more, about]

    def _best_text(self) -> str:
        best = self._best()
        if len(self.search.objectives) > 1:
            return f"trials not beaten: {', '.join(str(row.number) for row in best)}" if best else ""
        return f"best {scores(self.search, best[0].scores)} (trial {best[0].number})" if best else ""

    def _picture(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for head in ("trial", *column_names(list(self.search.space))):
            table.add_column(head, justify="right")
        for head in (*(metric_name(objective.metric) for objective in self.search.objectives), "device-hours"):
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("state", no_wrap=True)
        table.add_column("", overflow="ellipsis", no_wrap=True)
        best = {row.number for row in self._best()}
        for row in sorted(self._rows.values(), key=lambda row: row.number)[-_ROWS:]:
            table.add_row(*self._cells(row, bold=row.number in best))
        limit = self.search.budget.device_hours
        used = f"{number(self.device_hours(), digits=3)}{f' of {limit:g}' if limit else ''} device-hours"
        best, trials, *others = self._summary(used)
        return Group(table, Text("  ".join(filter(None, [trials, best, *others])), style="dim"))

    def _cells(self, row: _Row, *, bold: bool) -> list[str | Text]:
        values = [short(row.values[path]) if path in row.values else "" for path in self.search.space]
        objectives = self.search.objectives
        pairs = zip(objectives, row.scores or [None] * len(objectives), strict=True)
        own = [Text(shown(objective.metric, value), style="bold" if bold else "") for objective, value in pairs]
        hours = number(self._device_hours(row), digits=2)
        return [str(row.number), *values, *own, hours, Text(row.state, style=_STYLES[row.state]), row.note]
