"""Hands out trials so that only one supervisor works on each, however many share a study.

Leases: which process works on a trial, so that the trials of a dead search are found.

Claims, and which was made first: an order on which all supervisors of a study agree, over every storage.

A storage of Optuna numbers the trials of a study in order and never changes a finished trial: under a lock of the
study's row in PostgreSQL and MySQL, of the file in SQLite, by the order of the lines in a journal; behind the proxy, as
the server does. A second study, the ledger, holds a finished trial for each claim, with who made it; the lowest number
was first.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from trainers.search.storage_cache import FLUSH_SECONDS, flush, refresh

LEASE = "lease"  # the user attribute of a trial that holds one
LEASE_SECONDS = 120.0
RENEW_SECONDS = 30.0


def own_lease(now: float | None = None) -> dict[str, Any]:
    """A lease of this process, as plain data: host, pid, start of the process, end of the lease, and a unique name."""
    now = time.time() if now is None else now
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began": _began(os.getpid()),
        "until": now + LEASE_SECONDS,
        "grant": uuid.uuid4().hex,
    }


def renewed(lease: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """The same lease, extended."""
    return {**lease, "until": (time.time() if now is None else now) + LEASE_SECONDS}


def released(lease: Mapping[str, Any]) -> dict[str, Any]:
    """The same lease, given back: anybody may take the trial at once."""
    return {**lease, "until": 0.0, "pid": None}


def is_stale(lease: Mapping[str, Any] | None, now: float | None = None) -> bool:
    """Whether nobody works on a trial any more.

    On this host that is seen at once: its process is gone, or another process has its number. On another host it is
    known when the lease has expired.

    Args:
        lease: of the trial; None where there is none.
        now: seconds since 1970; the clock's by default.
    """
    if lease is None or lease["pid"] is None:
        return True
    if is_here(lease):
        return lease["pid"] == os.getpid() or is_gone(lease)
    return (time.time() if now is None else now) > lease["until"]


def is_here(lease: Mapping[str, Any]) -> bool:
    """Whether a lease is held on this host."""
    return lease["host"] == socket.gethostname()


def is_gone(lease: Mapping[str, Any]) -> bool:
    """Whether the process of a lease is known to be dead; never known on another host."""
    return is_here(lease) and _began(lease["pid"]) != lease["began"]


def is_mine(lease: Mapping[str, Any]) -> bool:
    """Whether a lease is this process's."""
    return is_here(lease) and lease["pid"] == os.getpid() and not is_gone(lease)


def _began(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; together with its number they identify it."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]  # a zombie works on nothing


_WHAT = "claim"


def add_claim(study: optuna.Study, what: str, lease: Mapping[str, Any]) -> int:
    """Claim something; returns how many claims of it were made before."""
    ledger = _ledger(study)
    _say(ledger, what, lease)
    grants = [said[LEASE]["grant"] for said in _said(ledger, what)]
    return grants.index(lease["grant"])


def has_first_claim(study: optuna.Study, what: str, lease: Mapping[str, Any]) -> bool:
    """Whether this process may do something that only one may do: it made the first valid claim.

    A claim is valid as long as a lease, and while its process is not known to be dead; act on it within that time.
    """
    ledger = _ledger(study)
    now = time.time()
    if not any(is_mine(said[LEASE]) and now <= said[LEASE]["until"] for said in _said(ledger, what)):
        _say(ledger, what, lease)
    valid = (said[LEASE] for said in _said(ledger, what))
    first = next((claim for claim in valid if now <= claim["until"] and not is_gone(claim)), None)
    return first is not None and is_mine(first)


def _ledger(study: optuna.Study) -> optuna.Study:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(
            study_name=f"{study.study_name}: who works on what", storage=study._storage, load_if_exists=True
        )


def _say(ledger: optuna.Study, what: str, lease: Mapping[str, Any]) -> None:
    # Complete from the start, so that no reader sees a part of it; the value has no meaning.
    ledger.add_trial(create_trial(state=TrialState.COMPLETE, value=0.0, user_attrs={_WHAT: what, LEASE: dict(lease)}))


def _said(ledger: optuna.Study, what: str) -> list[Mapping[str, Any]]:
    """Claims of one thing, the first one first."""
    refresh(ledger)
    trials = sorted(ledger.get_trials(deepcopy=False), key=lambda trial: trial.number)
    return [trial.user_attrs for trial in trials if trial.user_attrs.get(_WHAT) == what]


BEGUN_IN = "home"  # user attribute of a trial: the folder of the search that began it


class TrialLeases:
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
            self._storage.set_trial_user_attr(trial_id, BEGUN_IN, self._home)
            self._storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        number = self._storage.get_trial(trial_id).number
        if number >= budget:  # else fewer than `budget` trials were made before it
            refresh(self._study)
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
        refresh(self._study)
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
        made = create_trial(state=TrialState.RUNNING, user_attrs={LEASE: lease, BEGUN_IN: self._home})
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
        if not has_first_claim(self._study, f"trial {trial.number} after {grant}", lease):
            return False
        refresh(self._study)
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
    began = trial.user_attrs.get(BEGUN_IN)
    if began is not None and not (home / folder).exists() and (Path(began) / folder).exists():
        return Path(began) / folder
    return home / folder


def _begun(trials: list[FrozenTrial]) -> int:
    return sum(trial.state != TrialState.WAITING for trial in trials)
