"""What a user sees of a search: lines on the terminal and in its log, its page, and `kilobatch search status`.

The supervisor writes the status as `status.json`. The command shows that file, and locks and writes nothing.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from rich.console import Console
from rich.live import Live
from rich.text import Text

from recipes.errors import printable
from recipes.reports.json_text import finite
from recipes.reports.wording import duration, number
from recipes.search_space.open_search import OpenedSearch
from recipes.search_space.ranges import values_text
from trainers.runs.run_folder import LOG, FolderRefused, note_in_log, write_whole
from trainers.search import results
from trainers.search.page import write_search_page
from trainers.search.results import Confirmed, confirmed_in, confirmed_text, device_hours, row_of, trials_text
from trainers.search.study import SPENT, begun, finished

STATUS = "status.json"  # written by the supervisor, every few seconds
_SILENT_SECONDS = 60.0  # after which a supervisor on another host is taken for dead
_LAST_LINES = 5
_EVERY_SECONDS, _PAGE_SHARE = 5.0, 0.03  # between two writings; of the time that writing the page may take


class Display:
    """Shows the progress of a search on the console, in its log, in its `status.json` and on its page.

    Args:
        groups: how many trials run side by side.
    """

    def __init__(
        self, opened: OpenedSearch, study: optuna.Study, folder: Path, console: Console, *, groups: int
    ) -> None:
        self.opened, self.search = opened, opened.search
        self.study, self.folder, self.console, self.groups = study, folder, console, groups
        # Filled by the supervisor: number of a trial, and the seed of a run that confirms it -> how far it is; name of
        # a group -> why it is set aside; by whom the search was stopped, and which limit of the budget ended it.
        self.running: dict[tuple[int, int | None], dict[str, Any]] = {}
        self.set_aside: dict[str, str] = {}
        self.stopped_by = self.ended_by = ""
        # What fresh seeds say of the best trials; how many of these runs have ended, and of how many.
        self.confirmed: Sequence[Confirmed] = []
        self.confirmation = 0, 0
        self._began, self._spent = time.monotonic(), study.user_attrs.get(SPENT, 0.0)
        self._ended: dict[int, dict[str, Any]] = {}  # rows of trials that have, by number: they change no more
        self._best: list[dict[str, Any]] = []
        self._shown, self._page_due, self._page_every = -math.inf, 0.0, _EVERY_SECONDS
        live = Live(Text("starting"), console=console, auto_refresh=False)
        self._live = live if console.is_terminal else nullcontext()

    def __enter__(self) -> Display:
        self._live.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        try:
            self.show(ended=True)
        finally:  # the study may be what has failed
            self._live.__exit__(*failure)

    @property
    def spent_seconds(self) -> float:
        """How long all sessions have searched."""
        return self._spent + time.monotonic() - self._began

    @property
    def unconfirmed(self) -> str:
        """How many runs with fresh seeds have ended, and once the search has how the rest can; empty if all have."""
        (ended, runs), (limit, *_) = self.confirmation, self.ended_by.split(" ")
        way_out = "; the same command trains the rest" if self.stopped_by else ""
        if limit.endswith("hours"):
            way_out = f"; raise budget.{limit}, with budget.trials at {len(finished(self.study))}"
        return f"confirmation: {ended} of {runs} runs{way_out}" if ended < runs else ""

    def say(self, text: str) -> None:
        """Print a line on the console and write it to the log."""
        text = printable(text)
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.log(text)

    def log(self, text: str) -> None:
        """Write a line to the log."""
        note_in_log(self.folder, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def ended(self, number: int) -> None:
        """Say how a trial has ended, the best so far, and what is left."""
        left, best, row = self.seconds_left(self.rows()), self._best, self._ended[number]
        words = [f"trial {number} {row['state']}: {', '.join(filter(None, (row['text'], row['note'])))}"]
        if best and len(self.search.objectives) > 1:
            words.append(f"trials not beaten: {', '.join(str(one['trial']) for one in best)}")
        elif best:
            words.append(f"best {best[0]['text']} (trial {best[0]['trial']})")
        words.append(f"{len(self._ended)}/{self.search.budget.trials} trials")
        self.say("; ".join([*words, f"about {duration(left)} left"] if left and left >= 1 else words))

    def show(self, *, ended: bool = False) -> None:
        """Redraw the terminal, and write `status.json` and the page, where they are old enough or the search ended."""
        began = time.monotonic()
        if ended or began - self._shown >= _EVERY_SECONDS:
            self._shown, tree = began, self._tree(ended=ended)
            with suppress(OSError):  # a full disk does not end the search for it
                write_whole(self.folder / STATUS, json.dumps(finite(tree), indent=1))
            if isinstance(self._live, Live):
                self._live.update(Text(status_text(tree)), refresh=True)
        if ended or began >= self._page_due:
            with suppress(OSError):  # likewise
                write_search_page(
                    self.folder,
                    self.study,
                    self.opened,
                    self.rows(),
                    confirmed=self.confirmed,
                    note=self.unconfirmed,
                    live=0.0 if ended else self._page_every,
                )
            self._page_every = max(self._page_every, (time.monotonic() - began) / _PAGE_SHARE)
            self._page_due = began + self._page_every

    def rows(self) -> list[dict[str, Any]]:
        """All trials that have begun."""
        trials, ended = begun(self.study), len(self._ended)
        old, running = self._ended, self.running
        rows = [old.get(it.number) or row_of(it, self.search) | running.get((it.number, None), {}) for it in trials]
        self._ended |= {it.number: row for it, row in zip(trials, rows, strict=True) if it.state.is_finished()}
        if len(self._ended) > ended:
            self.find_best()
        return rows

    def find_best(self) -> None:
        """Look which of the trials that have ended is the best, after a run with a fresh seed has ended too."""
        self.confirmed, self.confirmation = confirmed_in(self.folder, self.search, self.study)
        self._best = [self._ended[trial.number] for trial in results.best_by_seeds(self.study, self.confirmed)]

    def seconds_left(self, rows: Sequence[Mapping[str, Any]]) -> float | None:
        """Estimated seconds until the first limit of the budget is reached; None if no trial or all have ended.

        By the mean of the trials that have ended; with rungs, where most trials train a part of their run, by the part
        of all runs that has been trained.
        """
        search, trials = self.search, self.search.budget.trials
        running = sum(row["seconds"] for row in rows if row["state"] == "running")
        ended = [row["seconds"] for row in rows if row["state"] != "running"]
        if search.rungs is None:
            timed, waiting = [seconds for seconds in ended if seconds], trials - len(ended)
            left = waiting * fmean(timed) - running if timed and waiting > 0 else None
        else:
            whole = search.rungs.whole_runs(trials, reports=search.reports)
            done = sum(trial.last_step or 0 for trial in begun(self.study)) / search.reports
            left = (running + sum(ended)) / done * (whole - done) if 0 < done < whole else None
        return None if left is None else max(0.0, min(left / self.groups, *self.limits_left(rows).values()))

    def limits_left(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Seconds until the hours and the device-hours of the budget are spent, infinite without such a limit."""
        budget, ranks = self.search.budget, self.groups * self.search.ranks_per_trial
        hours = math.inf if budget.hours is None else budget.hours - self.spent_seconds / 3600
        of_devices = math.inf if budget.device_hours is None else budget.device_hours - device_hours(self.study, rows)
        return {"hours": 3600 * hours, "device_hours": 3600 * of_devices / ranks}

    def _tree(self, *, ended: bool = False) -> dict[str, Any]:
        """What the terminal and `status.json` show, as plain data."""
        rows = self.rows()
        running = [row for row in rows if row["state"] == "running"]
        own, fresh = {"state": "running", "scores": (), "text": "", "note": ""}, [*self.running.items()]
        running += [self._ended[it] | own | {"seed": seed} | how for (it, seed), how in fresh if seed is not None]
        return {
            "search": self.search.name,
            "recipe": self.search.recipe,
            "ended": ended,
            "stopped_by": self.stopped_by,
            "ended_by": self.ended_by,
            "states": Counter(row["state"] for row in rows),
            "budget": asdict(self.search.budget),
            "ranks": self.groups * self.search.ranks_per_trial,
            "device_hours": device_hours(self.study, rows),
            "seconds_left": None if ended else self.seconds_left(rows),
            "best": self._best,
            "name_of_best": results.name_of_best(self.confirmed),
            "running": running,
            "set_aside": self.set_aside,
            "confirmation": self.confirmation,
            "unconfirmed": self.unconfirmed,
            "confirmed": [{**asdict(one), "text": confirmed_text(self.search, one)} for one in self.confirmed],
            "written": time.time(),
            "host": socket.gethostname(),
            "process": os.getpid(),
        }


def status_tree(folder: Path) -> dict[str, Any]:
    """What `status.json` holds, whether the search runs, and the end of its log.

    Raises:
        FolderRefused: no search has begun in this folder, or its `status.json` is something else.
    """
    log = folder / LOG
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    try:
        tree = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        tree |= {"state": _state(tree), "log": lines[-_LAST_LINES:]}
        status_text(tree)  # it has all that is shown
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise FolderRefused(f"there is no {STATUS} of a search in {folder}; name the folder of one") from None
    return tree


def status_text(tree: Mapping[str, Any]) -> str:
    """The same in lines; those on the log and on whether it runs only if the tree has them."""
    budget, left = tree["budget"], ""
    begun = "running" if tree.get("state", "running").startswith("running") else "stopped"
    states = {state.replace("running", begun): count for state, count in tree["states"].items()}
    limit = f" of {budget['device_hours']:g}" if budget["device_hours"] else ""
    if tree["seconds_left"]:
        hours = number(tree["seconds_left"] * tree["ranks"] / 3600, digits=2)
        left = f", about {duration(tree['seconds_left'])} and {hours} device-hours left"
    lines = [f"search {tree['search']} over {tree['recipe']}: {tree['state']}"] if "state" in tree else []
    lines.append(trials_text(states, budget["trials"]) + left)
    lines.append(f"device-hours: {tree['device_hours']:.3g}{limit}")
    name = tree.get("name_of_best", "best")  # older versions wrote none, nor the next, and texts below
    lines += [f"{name}: trial {row['trial']}, {row['text']}, with {values_text(row['values'])}" for row in tree["best"]]
    lines += [tree["unconfirmed"]] if tree.get("unconfirmed") else []
    lines += [f"confirmed: {one if isinstance(one, str) else one['text']}" for one in tree["confirmed"]]
    lines += [f"{begun}: trial {row['trial']}, {_progress_text(row)}" for row in tree["running"]]
    lines += [f"set aside: {place}, {why}" for place, why in tree["set_aside"].items()]
    return printable("\n".join(lines + (["log:", *(f"  {line}" for line in tree["log"])] if "log" in tree else [])))


def _progress_text(row: Mapping[str, Any]) -> str:
    seed = f"with seed {row['seed']}" if "seed" in row else ""
    at = f"update {row['update']} of {row['updates']}, epoch {row['epoch']:.2f}" if row.get("update") else ""
    left = f"about {duration(row['seconds_left'])} left" if row.get("seconds_left") else ""
    return ", ".join(filter(None, [seed, at, f"for {duration(row['seconds'])}", row["text"], row["note"], left]))


def _state(tree: Mapping[str, Any]) -> str:
    if tree["ended"]:
        if tree["running"] or tree.get("stopped_by"):
            return "stopped; the same command goes on with it"
        return f"ended: {tree['ended_by']} is spent" if tree.get("ended_by") else "ended"
    here = tree["host"] == socket.gethostname()
    silent = max(0.0, time.time() - tree["written"])
    if silent > _SILENT_SECONDS or (here and not os.path.exists(f"/proc/{tree['process']}")):
        return f"not running: its last sign of life was {duration(silent)} ago; the same command goes on with it"
    return f"running, as process {tree['process']} on {tree['host']}"
