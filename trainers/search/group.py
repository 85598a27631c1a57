"""A group of ranks as the supervisor sees it: one MPI job that trains one run after another."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from trainers.launch import start_ranks, users_environment
from trainers.request import TrainRequest
from trainers.run_folder import LOG
from trainers.search.mail import ANSWERS, ORDERS, SIGN_SECONDS, Inbox, post
from trainers.search.places import Place, launcher

JOBS = "jobs"  # in the search's folder: a folder for each group
_LAST_SECONDS = 10.0  # for dismissed ranks to end by themselves


class MpiJob(Protocol):
    """Ranks that run, or have run; `trainers.launch.Ranks` is one."""

    def poll(self) -> int | None:
        """The exit code; None while they run."""

    def kill(self) -> None:
        """End them at once."""

    def errors(self, since: int = 0) -> str:
        """What they wrote to stderr after its first `since` lines, once they have ended."""

    def num_errors(self) -> int:
        """Lines on stderr so far."""

    def first_to_leave(self) -> int | None:
        """The rank that ended first, once all have; None where that is not known."""


class Group:
    """Ranks that train one run after another; if they have ended, the next run starts them again.

    Args:
        number: of the group, from 0.
        folder: of the search.
        start: (folder for orders and answers, log) -> the ranks, started.
        talk: name of the folder for orders and answers, for ranks that run already; else each start has a new one, so
            that ranks of an earlier start cannot read its orders.
    """

    def __init__(
        self, number: int, folder: Path, start: Callable[[Path, Path], MpiJob], *, talk: str | None = None
    ) -> None:
        self.number, self.folder = number, group_folder(folder, number)
        self.log = self.folder / LOG
        self.num_starts = 0
        self._start, self._talk_name = start, talk
        self._talk = self.folder
        self._job: MpiJob | None = None
        self._killed = False
        self._answers = Inbox(self._talk / ANSWERS)
        self._num_errors, self._log_start, self._signed = 0, 0, 0.0

    def give(self, request: TrainRequest) -> None:
        """Have a run trained; the previous one must have been answered, or its ranks have ended."""
        if self._killed:
            self.wait()
        if self._job is None or self._job.poll() is not None:
            self._begin()
        assert self._job is not None
        self._num_errors, self._log_start = self._job.num_errors(), _size(self.log)
        self._answers.new()
        post(self._talk / ORDERS, {"train": request.as_tree()})

    def answer(self) -> dict[str, Any] | None:
        """How the last run given has ended; None while its ranks have not answered."""
        return next(iter(self._answers.new()), None)

    def poll(self) -> int | None:
        """The exit code of the ranks; None while they run."""
        assert self._job is not None, "a run was given"
        return self._job.poll()

    def kill(self) -> None:
        """End the ranks at once, also one that hangs."""
        self._killed = True
        if self._job is not None:
            self._job.kill()

    def last_words(self) -> tuple[str, str]:
        """What ranks that have ended wrote to stderr and to the log since the last run was given."""
        assert self._job is not None, "a run was given"
        errors = self._job.errors(self._num_errors)
        with open(self.log, "rb") as file:
            file.seek(self._log_start)
            return errors, file.read().decode(errors="replace")

    def first_to_leave(self) -> int | None:
        """The rank that ended first, of ranks that have ended."""
        return self._job and self._job.first_to_leave()

    def sign(self) -> None:
        """Tell the ranks, now and then, that the supervisor lives."""
        if self._job is not None and time.monotonic() - self._signed > SIGN_SECONDS:
            self._signed = time.monotonic()
            os.utime(self._talk / ORDERS)

    def dismiss(self) -> None:
        """No more runs: the ranks end by themselves."""
        if self._talk_name is not None:  # ranks that others started and wait for; they read orders from the start
            dismiss(self.folder / self._talk_name)
            self._job = None
        elif self._job is not None and self._job.poll() is None:
            dismiss(self._talk)

    def wait(self) -> None:
        """Return when dismissed or killed ranks have ended; those that do not end in time are killed."""
        end = time.monotonic() + _LAST_SECONDS
        while self._job is not None and self._job.poll() is None:
            if time.monotonic() > end:
                self._job.kill()
                end += _LAST_SECONDS
            time.sleep(0.02)

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            if old.is_dir() and old.name != self._talk_name:
                shutil.rmtree(old, ignore_errors=True)
        self._talk = self.folder / (self._talk_name or f"start-{time.time_ns()}")
        self._talk.mkdir(exist_ok=True)
        for name in (ANSWERS, ORDERS):
            (self._talk / name).touch()
        self._killed = False
        self._answers, self._signed = Inbox(self._talk / ANSWERS), time.monotonic()
        self._job = self._start(self._talk, self.log)
        self.num_starts += 1


def group_folder(folder: Path, number: int) -> Path:
    """The folder of a group, in that of a search."""
    return folder / JOBS / f"group-{number:02d}"


def dismiss(talk: Path) -> None:
    """Tell the ranks that read their orders in a folder, which need not exist yet, that no run follows."""
    talk.mkdir(parents=True, exist_ok=True)
    post(talk / ORDERS, {"train": None})


def starting_at(place: Place) -> Callable[[Path, Path], MpiJob]:
    """A function that starts the ranks of a group at a place; see `Group`."""

    def start(talk: Path, log: Path) -> MpiJob:
        words = ["search-ranks", str(talk)]
        if place.neighbours is not None:
            words += ["--ranks-here", str(place.neighbours)]
        words += ["--ranks-before", str(place.before)] if place.before else []
        environment = users_environment()  # without our thread limits: each rank sets those of its own machine
        kept = {"log": log, "outlive_us": False, "launcher": launcher(place), "environment": environment}
        return start_ranks(place.ranks, words, **kept)

    return start


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
