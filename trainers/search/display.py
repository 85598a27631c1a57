"""What a user sees of a search: a table on a terminal, lines in a log."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from recipes.reports.wording import duration, percent
from recipes.schema import Search
from trainers.run_folder import LOG
from trainers.search.job import Job, Report
from trainers.search.study import FOLDER, REASON, SECONDS

_ROWS = 20  # of the table
_STYLES = {"running": "cyan", "complete": "green", "short": "blue", "pruned": "yellow", "failed": "red"}
_WORDS = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}


@dataclass(kw_only=True)
class _Row:
    """A trial in the table."""

    number: int
    values: Mapping[str, Any]
    state: str
    value: float | None = None
    note: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class Display:
    """Tells what happens, on the console and in the search's log.

    Args:
        search: what is searched.
        folder: of the search.
        console: where to show it.
        groups: trials side by side.
    """

    search: Search
    folder: Path
    console: Console
    groups: int
    _rows: dict[int, _Row] = field(default_factory=dict)
    _live: Live | None = None

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(Text("starting"), console=self.console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            self._live.__exit__(*failure)

    def know(self, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
        """Take in the trials of sessions before this one."""
        for trial in trials:
            if FOLDER in trial.user_attrs and trial.state.name in _WORDS:
                self._rows[trial.number] = _Row(
                    number=trial.number,
                    values=trial.params,
                    state=_WORDS[trial.state.name],
                    value=trial.value,
                    note=trial.user_attrs.get(REASON, ""),
                    seconds=trial.user_attrs.get(SECONDS, 0.0),
                )

    def say(self, text: str) -> None:
        """A line on the console and in the log."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        with open(self.folder / LOG, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def began(self, number: int, values: Mapping[str, Any], *, resumed: bool) -> None:
        """A trial's ranks were started."""
        self._rows[number] = _Row(number=number, values=values, state="running")
        self.say(f"trial {number} {'goes on' if resumed else 'begins'}: {values_text(values)}")

    def reported(self, number: int, report: Report) -> None:
        """A trial has come to a point where it is compared."""
        row = self._rows[number]
        row.value, row.note = report.value, f"report {report.number} of {self.search.reports}"

    def ended(self, number: int, state: str, *, value: float | None = None, reason: str = "") -> None:
        """A trial was told to the study."""
        row = self._rows.setdefault(number, _Row(number=number, values={}, state=state))
        row.state, row.note = state, reason
        row.value = row.value if value is None else value
        said = self._score(value) if value is not None else reason
        left = self._left()
        best = self._best()
        words = [f"trial {number} {state}: {said}"]
        words += [f"best {self._score(best.value)} (trial {best.number})"] if best else []
        words += [f"{len(self._ended())}/{self.search.budget.trials} trials"]
        words += [f"about {duration(left)} left"] if left else []
        self.say("; ".join(words))

    def show(self, working: Sequence[tuple[int, Job]]) -> None:
        """Draw the table anew, where there is one."""
        for number, job in working:
            self._rows[number].seconds = job.seconds
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)

    def _ended(self) -> list[_Row]:
        return [row for row in self._rows.values() if row.state != "running"]

    def _best(self) -> _Row | None:
        complete = [row for row in self._rows.values() if row.state == "complete"]
        sign = -1 if self.search.objective.direction == "maximize" else 1
        return min(complete, key=lambda row: (sign * row.value, row.number), default=None)

    def _left(self) -> float | None:
        """Seconds until the budget of trials is spent, from the mean of those that have ended; None while none has."""
        timed = [row.seconds for row in self._ended() if row.seconds]
        waiting = self.search.budget.trials - len(self._ended())
        if not timed or waiting <= 0:
            return None
        running = sum(row.seconds for row in self._rows.values() if row.state == "running")
        return max(0.0, waiting * sum(timed) / len(timed) - running) / self.groups

    def _score(self, value: float | None) -> str:
        if value is None:
            return ""
        return percent(value) if self.search.objective.metric == "accuracy" else f"{value:.4f}"

    def _picture(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for head in ("trial", *(path.rpartition(".")[2] for path in self.search.space)):
            table.add_column(head, justify="right")
        for head in (self.search.objective.metric, "state", "time", ""):
            table.add_column(head, no_wrap=head != "")
        best = self._best()
        for row in sorted(self._rows.values(), key=lambda row: row.number)[-_ROWS:]:
            values = (_short(row.values.get(path, "")) for path in self.search.space)
            state = Text(row.state, style=_STYLES[row.state])
            score = Text(self._score(row.value), style="bold" if row is best else "")
            table.add_row(str(row.number), *values, score, state, duration(row.seconds), row.note[:60])
        left = self._left()
        words = f"{len(self._ended())}/{self.search.budget.trials} trials"
        words += f"  best {self._score(best.value)} (trial {best.number})" if best else ""
        return Group(table, Text(words + (f"  about {duration(left)} left" if left else ""), style="dim"))


def values_text(values: Mapping[str, Any]) -> str:
    """A trial's values in a line."""
    return ", ".join(f"{path} {_short(value)}" for path, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
