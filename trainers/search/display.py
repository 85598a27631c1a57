"""What a user sees of a search on the terminal and in its log, and how scores and values are written."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.live import Live
from rich.text import Text

from recipes.errors import printable
from recipes.reports.wording import duration, number, percent
from recipes.schema import Search
from trainers.runs.run_folder import LOG
from trainers.search.status import status_text, write_status
from trainers.search.study import SECONDS, pareto_front, reason_of, state_of
from trainers.search.trial_run import Report

_STATUS_SECONDS = 2.0  # between two writings of `status.json`


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """A trial's recipe, trained again on fresh seeds: the objective of each, their mean and its 95 % interval."""

    trial: int
    values: tuple[float, ...]
    mean: float
    low: float
    high: float


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
    pairs = [(objective.metric, value) for objective, value in zip(search.objectives, values, strict=True)]
    return shown(*pairs[0]) if len(pairs) == 1 else ", ".join(score(*pair) for pair in pairs)


def values_text(values: Mapping[str, Any]) -> str:
    """A trial's values in a line."""
    return ", ".join(f"{path} {short(value)}" for path, value in values.items())


def short(value: Any) -> str:
    """A value of a recipe in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def column_names(paths: Iterable[str]) -> list[str]:
    """The last word of each path, with as many words before it as distinguish it from the others.

    >>> column_names(["epochs", "learning_rate.warmup.epochs", "learning_rate.reference"])
    ['epochs', 'warmup.epochs', 'reference']
    """
    endings = {path: [path.split(".", skip)[-1] for skip in reversed(range(path.count(".") + 1))] for path in paths}
    counts = Counter(ending for own in endings.values() for ending in own)
    return [next((ending for ending in own if counts[ending] == 1), path) for path, own in endings.items()]


def confirmed_rows(search: Search, confirmed: Sequence[Confirmed]) -> list[dict[str, str]]:
    """The table of confirmed trials, on the page and on the terminal: a row each, by column."""
    metric = search.objectives[0].metric
    return [
        {
            "trial": str(one.trial),
            f"mean {metric_name(metric)}": shown(metric, one.mean),
            "95 % interval": f"{shown(metric, one.low)} to {shown(metric, one.high)}",
            f"{len(one.values)} fresh seeds": ", ".join(shown(metric, value) for value in one.values),
        }
        for one in confirmed
    ]


@dataclass(kw_only=True)
class TrialRow:
    """A trial as the terminal and the page show it; `earlier` seconds are those of sessions and runs that ended."""

    number: int
    values: Mapping[str, Any]
    state: str
    scores: Sequence[float] | None = None
    note: str = ""
    earlier: float = 0.0
    current: float = 0.0

    @property
    def seconds(self) -> float:
        return self.earlier + self.current


def row_of(trial: FrozenTrial, search: Search) -> TrialRow:
    """A trial of the study as a row; one that runs has its last report."""
    row = TrialRow(number=trial.number, values=trial.params, state=state_of(trial), scores=trial.values)
    row.note, row.earlier = reason_of(trial), trial.user_attrs.get(SECONDS, 0.0)
    if row.state == "running" and trial.last_step is not None:
        row.scores = [trial.intermediate_values[trial.last_step]]
        row.note = f"report {trial.last_step} of {search.reports}"
    return row


@dataclass(kw_only=True)
class Display:
    """Shows the progress of a search on the console, in its log and in its `status.json`.

    The supervisor fills `set_aside` (host or GPU -> why) and `confirmed`.
    """

    search: Search
    folder: Path
    console: Console
    groups: int
    set_aside: dict[str, str] = field(default_factory=dict)
    confirmed: Sequence[Confirmed] = ()
    _rows: dict[int, TrialRow] = field(default_factory=dict)
    _live: Live | None = None
    _began: float = field(default_factory=time.monotonic)  # moved back by the time of earlier sessions
    _next_status: float = 0.0

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(Text("starting"), console=self.console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        write_status(self.folder, self._tree(ended=True))
        if self._live is not None:
            self._live.update(Text(status_text(self._tree())), refresh=True)
            self._live.__exit__(*failure)

    def add_trials(self, trials: Sequence[FrozenTrial], *, spent_seconds: float = 0.0) -> None:
        """Add the trials of earlier sessions, and the time that these have spent."""
        self._began -= spent_seconds
        rows = [row_of(trial, self.search) for trial in trials if trial.state != TrialState.WAITING]
        self._rows |= {row.number: row for row in rows}

    def say(self, text: str) -> None:
        """Print a line on the console and write it to the log."""
        text = printable(text)
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        with open(self.folder / LOG, "a", encoding="utf-8", errors="backslashreplace") as file:  # paths
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def began(self, number: int, values: Mapping[str, Any], *, resumed: bool) -> None:
        """A trial's run has begun."""
        earlier = self._rows[number].seconds if number in self._rows else 0.0
        self._rows[number] = TrialRow(number=number, values=values, state="running", earlier=earlier)
        self.say(f"trial {number} {'goes on' if resumed else 'begins'}: {values_text(values)}")

    def reported(self, number: int, report: Report) -> None:
        """A trial has reported."""
        self._rows[number].scores = (report.value,) if self.search.reported else None
        self._rows[number].note = f"report {report.number} of {self.search.reports}"

    def ended(self, number: int, state: str, *, values: Sequence[float] | None = None, reason: str = "") -> None:
        """A trial has ended: complete, diverged, infeasible, pruned or failed."""
        row = self._rows.setdefault(number, TrialRow(number=number, values={}, state=state))
        row.state, row.note, row.scores = state, reason, row.scores if values is None else values
        details = ", ".join(filter(None, [scores(self.search, values) if values is not None else "", reason]))
        left = self.seconds_left()
        about = f"about {duration(left)} left" if left and left >= 1 else ""
        summary = [self._best_text(), f"{len(self._ended())}/{self.search.budget.trials} trials", about]
        self.say("; ".join(filter(None, [f"trial {number} {state}: {details}", *summary])))

    def show(self, running: Mapping[int, float]) -> None:
        """Redraw the terminal; now and then, write `status.json`.

        Args:
            running: number of a trial -> seconds of its run so far.
        """
        for trial, seconds in running.items():
            self._rows[trial].current = seconds
        if self._live is not None:
            self._live.update(Text(status_text(self._tree())), refresh=True)
        if time.monotonic() > self._next_status:
            self._next_status = time.monotonic() + _STATUS_SECONDS
            write_status(self.folder, self._tree())

    def device_hours(self) -> float:
        """Ranks times hours of all trials so far."""
        return sum(row.seconds for row in self._rows.values()) * self.search.ranks_per_trial / 3600

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

    def _ended(self) -> list[TrialRow]:
        return [row for row in self._rows.values() if row.state != "running"]

    def _best(self) -> list[TrialRow]:
        """The best trial; with several objectives the Pareto front."""
        complete = {row.number: row.scores for row in self._rows.values() if row.state == "complete" and row.scores}
        numbers = pareto_front(complete, [objective.direction for objective in self.search.objectives])
        return [self._rows[each] for each in (numbers if len(self.search.objectives) > 1 else numbers[:1])]

    def _best_text(self) -> str:
        best = self._best()
        if len(self.search.objectives) > 1:
            return f"trials not beaten: {', '.join(str(row.number) for row in best)}" if best else ""
        return f"best {scores(self.search, best[0].scores)} (trial {best[0].number})" if best else ""

    def _tree(self, *, ended: bool = False) -> dict[str, Any]:
        """What the terminal and `status.json` show, as plain data."""
        return {
            "search": self.search.name,
            "recipe": self.search.recipe,
            "ended": ended,
            "states": Counter(row.state for row in self._rows.values()),
            "budget": asdict(self.search.budget),
            "ranks": self.groups * self.search.ranks_per_trial,
            "device_hours": self.device_hours(),
            "seconds_left": None if ended else self.seconds_left(),
            "best": [self._plain(row) for row in self._best()],
            "running": [self._plain(row) for row in self._rows.values() if row.state == "running"],
            "set_aside": self.set_aside,
            "confirmed": confirmed_rows(self.search, self.confirmed),
        }

    def _plain(self, row: TrialRow) -> dict[str, Any]:
        own = [value if math.isfinite(value) else None for value in row.scores or ()]  # JSON knows no infinity
        words = {"text": scores(self.search, row.scores) if own else "", "note": row.note}
        return {"trial": row.number, "scores": own, "values": row.values, "seconds": row.seconds, **words}
