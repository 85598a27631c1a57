"""Hands out trials so that only one supervisor works on each, however many share a study."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from trainers.search.batched import FLUSH_SECONDS, flush
from trainers.search.leases import LEASE, LEASE_SECONDS, RENEW_SECONDS, is_here, is_stale, own_lease, released, renewed
from trainers.search.ledger import is_first
from trainers.search.view import read_again

HOME = "home"  # user attribute of a trial: the folder of the search that began it


class HandOut:
    """The trials that a supervisor may begin or continue, and those that it holds.

    Args:
        study: of `open_study`.
        home: folder of this supervisor's search.
    """

    def __init__(self, study: optuna.Study, home: Path) -> None:
        self._study, self._storage, self._home = study, study._storage, os.fspath(home.resolve())
        self._held: dict[int, dict[str, Any]] = {}
        self._renewed = time.monotonic()
        self._first_seen: dict[int, float] = {}  # end of the lease of another host's trial, when it was first seen

    def left(self) -> optuna.Trial | None:
        """A trial that a dead supervisor left running, now held by this one; None where there is none."""
        trial_id = self._take_first(self._running())
        return None if trial_id is None else optuna.Trial(self._study, trial_id)

    def new(self, budget: int) -> optuna.Trial | None:
        """A trial that nobody has begun, from the queue or made now; None where `budget` trials have begun already.

        Trials are numbered in order, so if two supervisors begin the last trial at once, one of them sees that it was
        the later, and puts its trial back into the queue.
        """
        trials = self._study.get_trials(deepcopy=False)
        if _begun(trials) >= budget:
            return None
        trial_id = self._take_first([trial for trial in trials if trial.state == TrialState.WAITING])
        if trial_id is None:
            trial_id = self._make()
        else:
            self._storage.set_trial_user_attr(trial_id, HOME, self._home)
            self._storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        number = self._storage.get_trial(trial_id).number
        if number >= budget:  # else fewer than `budget` trials were made before it
            read_again(self._study)
        if number >= budget and _begun(self._study.get_trials(deepcopy=False)[:number]) >= budget:
            self._storage.set_trial_user_attr(trial_id, LEASE, released(self._held.pop(trial_id)))
            self._storage.set_trial_state_values(trial_id, TrialState.WAITING)
            return None
        return optuna.Trial(self._study, trial_id)

    def release(self, trial: optuna.Trial) -> None:
        """Give a trial back as it is: the next session may continue it at once."""
        lease = self._held.pop(trial._trial_id, None)
        if lease is not None:
            trial.set_user_attr(LEASE, released(lease))

    def done(self, trial: optuna.Trial) -> None:
        """A trial's result was told to the study: hold it no longer."""
        self._held.pop(trial._trial_id, None)

    def holds(self, trial: optuna.Trial) -> bool:
        """Whether a trial is still this supervisor's.

        The storage is asked only after a pause that was long enough for another host to take it.
        """
        if time.monotonic() - self._renewed > LEASE_SECONDS:
            self.renew(now=True)
        return trial._trial_id in self._held

    def renew(self, *, now: bool = False) -> None:
        """Write what waits to be written; when due, renew the leases and drop trials that another supervisor took."""
        flush(self._study, after=FLUSH_SECONDS)
        if not now and time.monotonic() - self._renewed < RENEW_SECONDS:
            return
        self._renewed = time.monotonic()
        read_again(self._study)
        for trial_id, lease in list(self._held.items()):
            there = self._storage.get_trial(trial_id)
            if there.state.is_finished() or there.user_attrs[LEASE]["grant"] != lease["grant"]:
                del self._held[trial_id]
                continue
            self._held[trial_id] = renewed(lease)
            self._storage.set_trial_user_attr(trial_id, LEASE, self._held[trial_id])

    def undecided(self) -> bool:
        """Whether a trial runs elsewhere of which it is not known yet whether its supervisor is alive.

        After two minutes at most it is: the supervisor has renewed the lease, or lost the trial.
        """
        for trial in self._running():
            lease = trial.user_attrs.get(LEASE)
            if is_stale(lease):
                return True
            first = self._first_seen.setdefault(trial._trial_id, lease["until"])
            if not is_here(lease) and lease["until"] == first:
                return True
        return False

    def _running(self) -> list[FrozenTrial]:
        """Running trials that this supervisor does not hold."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [trial for trial in running if trial._trial_id not in self._held]

    def _make(self) -> int:
        lease = own_lease()
        made = create_trial(state=TrialState.RUNNING, user_attrs={LEASE: lease, HOME: self._home})
        trial_id = self._storage.create_new_trial(self._study._study_id, made)
        self._held[trial_id] = lease
        return trial_id

    def _take_first(self, trials: list[FrozenTrial]) -> int | None:
        """Take the first of these trials that nobody holds; returns its id, None where there is none."""
        for trial in trials:
            if is_stale(trial.user_attrs.get(LEASE)) and self._take(trial):
                return trial._trial_id
        return None

    def _take(self, trial: FrozenTrial) -> bool:
        """Try to take a trial that nobody holds; returns whether this supervisor got it."""
        before = trial.user_attrs.get(LEASE)
        lease, grant = own_lease(), "nobody" if before is None else before["grant"]
        if not is_first(self._study, f"trial {trial.number} after {grant}", lease):
            return False
        read_again(self._study)
        now = self._storage.get_trial(trial._trial_id)
        if now.state != trial.state or now.user_attrs.get(LEASE) != before:
            return False  # taken, and perhaps finished, since this supervisor looked
        self._storage.set_trial_user_attr(trial._trial_id, LEASE, lease)
        self._held[trial._trial_id] = lease
        return True


def run_folder(trial: optuna.Trial, folder: str, home: Path) -> Path:
    """Folder of a trial's run: in this search's folder, or in that of another search that began it, where that exists.

    Args:
        trial: whose.
        folder: its name in a search's folder.
        home: folder of this search.
    """
    began = trial.user_attrs.get(HOME)
    if began is not None and not (home / folder).exists() and (Path(began) / folder).exists():
        return Path(began) / folder
    return home / folder


def _begun(trials: list[FrozenTrial]) -> int:
    return sum(trial.state != TrialState.WAITING for trial in trials)
