"""What a user sees of a search while it runs: lines on the terminal and in its log, a table, and `status.json`."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.live import Live
from rich.text import Text

from recipes.errors import printable
from recipes.reports.wording import duration
from recipes.schema import Search
from trainers.runs.run_folder import LOG
from trainers.search.confirm import Confirmed, confirmed_rows
from trainers.search.search_folder import trial_folder
from trainers.search.status import status_text, write_status
from trainers.search.study import SECONDS, SPENT, begun, best_trials, reason_of, state_of
from trainers.search.wording import scores


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """A trial as the terminal and the page show it; one that runs has its last report as scores."""

    number: int
    values: dict[str, Any]
    state: str
    scores: Sequence[float] | None
    note: str
    seconds: float


def row_of(trial: FrozenTrial, search: Search, *, running_seconds: float = 0.0) -> TrialRow:
    """A trial of the study as a row; `running_seconds` are those of its present run."""
    last, own, note = trial.last_step, trial.values, reason_of(trial)
    if not trial.state.is_finished() and last is not None:
        own, note = [trial.intermediate_values[last]], f"report {last} of {search.reports}"
    if search.has_goal and trial.state != TrialState.COMPLETE:
        own = None  # it reported what it lacks of the target
    seconds = trial.user_attrs.get(SECONDS, 0.0) + running_seconds
    values = dict(trial.params)
    return TrialRow(number=trial.number, values=values, state=state_of(trial), scores=own, note=note, seconds=seconds)


class Display:
    """Shows the progress of a search on the console, in its log and in its `status.json`.

    Args:
        search, study, folder: of the search.
        console: where to.
        groups: how many trials run side by side.
    """

    def __init__(self, search: Search, study: optuna.Study, folder: Path, console: Console, *, groups: int) -> None:
        self.search, self.study, self.folder, self.console, self.groups = search, study, folder, console, groups
        self.running: dict[int, float] = {}  # number of a trial -> seconds of its present run; filled by the supervisor
        self.set_aside: dict[str, str] = {}  # host or group -> why
        self.confirmed: Sequence[Confirmed] = ()
        self._began, self._spent = time.monotonic(), study.user_attrs.get(SPENT, 0.0)
        self._rows: dict[int, TrialRow] = {}
        self._ended: set[int] = set()  # numbers of the trials that have
        self._best: list[TrialRow] = []
        self._live: Live | None = None
        self._shown = -math.inf

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(Text("starting"), console=self.console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        try:
            self.show(every=0.0, ended=True)
        finally:  # the study may be what has failed
            if self._live is not None:
                self._live.__exit__(*failure)

    @property
    def spent_seconds(self) -> float:
        """How long all sessions have searched."""
        return self._spent + time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Print a line on the console and write it to the log."""
        text = printable(text)
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        with open(self.folder / LOG, "a", encoding="utf-8", errors="backslashreplace") as file:  # paths
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def ended(self, number: int) -> None:
        """Say how a trial has ended, the best so far, and what is left."""
        rows = self.rows()
        row = next(row for row in rows if row.number == number)
        details = ", ".join(filter(None, [scores(self.search, row.scores) if row.scores else "", row.note]))
        left = self.seconds_left(rows)
        about = f"about {duration(left)} left" if left and left >= 1 else ""
        ended = f"{sum(row.state != 'running' for row in rows)}/{self.search.budget.trials} trials"
        parts = [f"trial {number} {row.state}: {details}", self._best_text(), ended, about]
        self.say("; ".join(filter(None, parts)))

    def show(self, *, every: float = 5.0, ended: bool = False) -> None:
        """Redraw the terminal and write `status.json`, if they are `every` seconds old."""
        if time.monotonic() - self._shown < every:
            return
        tree = self.tree(ended=ended)
        write_status(self.folder, tree)
        if self._live is not None:
            self._live.update(Text(status_text(tree)), refresh=True)
        self._shown = time.monotonic()

    def rows(self) -> list[TrialRow]:
        """All trials that have begun; those that have ended do not change any more, and are made once."""
        ended = len(self._ended)
        for trial in begun(self.study):
            if trial.number not in self._ended:
                seconds = self.running.get(trial.number, 0.0)
                self._rows[trial.number] = row_of(trial, self.search, running_seconds=seconds)
                if trial.state.is_finished():
                    self._ended.add(trial.number)
        if len(self._ended) > ended:
            self._best = [self._rows[trial.number] for trial in best_trials(self.study)]
        return list(self._rows.values())

    def seconds_left(self, rows: Sequence[TrialRow]) -> float | None:
        """Estimated seconds until the first limit of the budget is reached.

        The time of the trials left is taken from the mean of those that have ended; None if none or all have ended.
        """
        budget, ended = self.search.budget, [row for row in rows if row.state != "running"]
        timed, waiting = [row.seconds for row in ended if row.seconds], budget.trials - len(ended)
        if not timed or waiting <= 0:
            return None
        running = sum(row.seconds for row in rows if row.state == "running")
        left = [(waiting * sum(timed) / len(timed) - running) / self.groups]
        if budget.hours is not None:
            left.append(3600 * budget.hours - self.spent_seconds)
        if budget.device_hours is not None:
            ranks = self.groups * self.search.ranks_per_trial
            left.append(3600 * (budget.device_hours - self.device_hours(rows)) / ranks)
        return max(0.0, min(left))

    def device_hours(self, rows: Sequence[TrialRow]) -> float:
        """Ranks times hours of all trials so far."""
        return sum(row.seconds for row in rows) * self.search.ranks_per_trial / 3600

    def tree(self, *, ended: bool = False) -> dict[str, Any]:
        """What the terminal and `status.json` show, as plain data."""
        rows = self.rows()
        return {
            "search": self.search.name,
            "recipe": self.search.recipe,
            "ended": ended,
            "states": Counter(row.state for row in rows),
            "budget": asdict(self.search.budget),
            "ranks": self.groups * self.search.ranks_per_trial,
            "device_hours": self.device_hours(rows),
            "seconds_left": None if ended else self.seconds_left(rows),
            "best": list(map(self._plain, self._best)),
            "running": [self._plain(row) for row in rows if row.state == "running"],
            "set_aside": self.set_aside,
            "confirmed": confirmed_rows(self.search, self.confirmed),
        }

    def _plain(self, row: TrialRow) -> dict[str, Any]:
        own = [value if math.isfinite(value) else None for value in row.scores or ()]  # JSON knows no infinity
        words = {"text": scores(self.search, row.scores) if row.scores else "", "note": row.note}
        words["folder"] = trial_folder(row.number)
        return {"trial": row.number, "scores": own, "values": row.values, "seconds": row.seconds, **words}

    def _best_text(self) -> str:
        if len(self.search.objectives) > 1:
            return f"trials not beaten: {', '.join(str(row.number) for row in self._best)}" if self._best else ""
        best = self._best[0] if self._best else None
        return f"best {scores(self.search, best.scores)} (trial {best.number})" if best else ""
