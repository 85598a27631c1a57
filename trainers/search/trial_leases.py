"""Leases on trials: one supervisor works on each trial, however many share a study, and a dead one's trials are found.

A lease is a user attribute of a trial: which process works on it, and until when. Supervisors that want the same trial
each add a claim, and the first valid claim wins. Claims are finished trials of a second study, because every storage of
Optuna numbers the trials of a study in order and never changes a finished one: under a lock of the study's row in
PostgreSQL and MySQL, of the file in SQLite, by the order of the lines in a journal.

Optuna's own heartbeat is not used: it ends a stale trial and enqueues a copy with another number, which counts twice,
and only database storages have it.
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

LEASE, BEGUN_IN = "lease", "home"  # user attributes of a trial; the second is the folder of the search that began it
LEASE_SECONDS = 120.0
RENEW_SECONDS = 30.0
_CLAIM = "claim"  # user attribute of a claim: what is claimed


def new_lease(now: float | None = None) -> dict[str, Any]:
    """A lease of this process, as plain data: host, pid, start of the process, end of the lease, and a unique name."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began": _process_start(os.getpid()),
        "until": (time.time() if now is None else now) + LEASE_SECONDS,
        "grant": uuid.uuid4().hex,
    }


def renewed(lease: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """The same lease, extended."""
    return {**lease, "until": (time.time() if now is None else now) + LEASE_SECONDS}


def released(lease: Mapping[str, Any]) -> dict[str, Any]:
    """The same lease, given back: any supervisor may take the trial at once."""
    return {**lease, "until": 0.0, "pid": None}


def is_stale(lease: Mapping[str, Any] | None, now: float | None = None) -> bool:
    """Whether no process works on a trial any more.

    A process of this host that is gone is noticed at once, also if another process has its number. A lease of another
    host must expire first.

    Args:
        lease: of the trial; None where there is none.
        now: seconds since 1970; the clock's by default.
    """
    if lease is None or lease["pid"] is None:
        return True
    if _is_here(lease):
        return lease["pid"] == os.getpid() or _is_gone(lease)
    return (time.time() if now is None else now) > lease["until"]


def _is_here(lease: Mapping[str, Any]) -> bool:
    return lease["host"] == socket.gethostname()


def _is_gone(lease: Mapping[str, Any]) -> bool:
    """Whether the process of a lease is known to be dead; never known on another host."""
    return _is_here(lease) and _process_start(lease["pid"]) != lease["began"]


def _is_own(lease: Mapping[str, Any]) -> bool:
    return _is_here(lease) and lease["pid"] == os.getpid() and not _is_gone(lease)


def _process_start(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; together with its number they identify it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]  # a zombie does not work


def add_claim(study: optuna.Study, what: str, lease: Mapping[str, Any]) -> int:
    """Claim something; returns how many claims of it were made before."""
    claims = _claims_study(study)
    _add(claims, what, lease)
    return [claim["grant"] for claim in _claims(claims, what)].index(lease["grant"])


def has_first_claim(study: optuna.Study, what: str) -> bool:
    """Whether this process may do something that only one may do: it made the first valid claim.

    A claim is valid as long as a lease, and while its process is not known to be dead; act on it within that time.
    """
    claims, now = _claims_study(study), time.time()
    if not any(_is_own(claim) and now <= claim["until"] for claim in _claims(claims, what)):
        _add(claims, what, new_lease())
    valid = (claim for claim in _claims(claims, what) if now <= claim["until"] and not _is_gone(claim))
    first = next(valid, None)
    return first is not None and _is_own(first)


def _add(claims: optuna.Study, what: str, lease: Mapping[str, Any]) -> None:
    # Complete from the start, so that no reader sees a part of it; the value has no meaning.
    claims.add_trial(create_trial(state=TrialState.COMPLETE, value=0.0, user_attrs={_CLAIM: what, LEASE: dict(lease)}))


def _claims(claims: optuna.Study, what: str) -> list[Mapping[str, Any]]:
    """The leases of all claims of one thing, the first one first."""
    refresh(claims)
    trials = sorted(claims.get_trials(deepcopy=False), key=lambda trial: trial.number)
    return [trial.user_attrs[LEASE] for trial in trials if trial.user_attrs.get(_CLAIM) == what]


def _claims_study(study: optuna.Study) -> optuna.Study:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(
            study_name=f"{study.study_name}: who works on what", storage=study._storage, load_if_exists=True
        )


class TrialLeases:
    """The trials that a supervisor holds, and those that it may begin or continue."""

    def __init__(self, study: optuna.Study, folder: Path) -> None:
        self._study, self._storage, self._folder = study, study._storage, os.fspath(folder.resolve())
        self._held: dict[int, dict[str, Any]] = {}
        self._renewed = time.monotonic()
        self._first_seen: dict[int, float] = {}  # end of the lease of another host's trial, when it was first seen

    def take_stale(self) -> optuna.Trial | None:
        """A trial that a dead supervisor left running, now held by this one; None where there is none."""
        trial_id = self._take_first(self._running_elsewhere())
        return None if trial_id is None else optuna.Trial(self._study, trial_id)

    def begin(self, budget: int) -> optuna.Trial | None:
        """A trial that no supervisor has begun, from the queue or created now; None if `budget` trials have begun.

        Trials are numbered in order. If two supervisors begin the last trial at once, the later one puts its trial back
        into the queue.
        """
        trials = self._study.get_trials(deepcopy=False)
        if _num_begun(trials) >= budget:
            return None
        trial_id = self._take_first([trial for trial in trials if trial.state == TrialState.WAITING])
        if trial_id is None:
            lease = new_lease()
            template = create_trial(state=TrialState.RUNNING, user_attrs={LEASE: lease, BEGUN_IN: self._folder})
            trial_id = self._storage.create_new_trial(self._study._study_id, template)
            self._held[trial_id] = lease
        else:
            self._storage.set_trial_user_attr(trial_id, BEGUN_IN, self._folder)
            self._storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        number = self._storage.get_trial(trial_id).number
        if number >= budget:  # else fewer than `budget` trials were created before it
            refresh(self._study)
            if _num_begun(self._study.get_trials(deepcopy=False)[:number]) >= budget:
                self._storage.set_trial_user_attr(trial_id, LEASE, released(self._held.pop(trial_id)))
                self._storage.set_trial_state_values(trial_id, TrialState.WAITING)
                return None
        return optuna.Trial(self._study, trial_id)

    def release(self, trial: optuna.Trial) -> None:
        """Give a trial back as it is: the next session may continue it at once."""
        lease = self._held.pop(trial._trial_id, None)
        if lease is not None:
            trial.set_user_attr(LEASE, released(lease))

    def drop(self, trial: optuna.Trial) -> None:
        """Hold a trial no longer, because it has ended or another supervisor has it."""
        self._held.pop(trial._trial_id, None)

    def holds(self, trial: optuna.Trial) -> bool:
        """Whether this supervisor still holds a trial.

        It reads the storage only after a pause that was long enough for another host to take the trial.
        """
        if time.monotonic() - self._renewed > LEASE_SECONDS:
            self.renew(now=True)
        return trial._trial_id in self._held

    def renew(self, *, now: bool = False) -> None:
        """Flush the storage's buffer; when due, renew the leases and drop trials that another supervisor took."""
        flush(self._study, after=FLUSH_SECONDS)
        if not now and time.monotonic() - self._renewed < RENEW_SECONDS:
            return
        self._renewed = time.monotonic()
        refresh(self._study)
        for trial_id, lease in list(self._held.items()):
            stored = self._storage.get_trial(trial_id)
            if stored.state.is_finished() or stored.user_attrs[LEASE]["grant"] != lease["grant"]:
                del self._held[trial_id]
                continue
            self._held[trial_id] = renewed(lease)
            self._storage.set_trial_user_attr(trial_id, LEASE, self._held[trial_id])

    def undecided(self) -> bool:
        """Whether a trial runs elsewhere whose supervisor may be dead.

        After two minutes at most this is decided: the supervisor has renewed the lease, or lost the trial.
        """
        for trial in self._running_elsewhere():
            lease = trial.user_attrs.get(LEASE)
            if is_stale(lease):
                return True
            first = self._first_seen.setdefault(trial._trial_id, lease["until"])
            if not _is_here(lease) and lease["until"] == first:
                return True
        return False

    def _running_elsewhere(self) -> list[FrozenTrial]:
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [trial for trial in running if trial._trial_id not in self._held]

    def _take_first(self, trials: list[FrozenTrial]) -> int | None:
        """Take the first of these trials that has no valid lease; returns its id, None where there is none."""
        for trial in trials:
            if is_stale(trial.user_attrs.get(LEASE)) and self._take(trial):
                return trial._trial_id
        return None

    def _take(self, trial: FrozenTrial) -> bool:
        before = trial.user_attrs.get(LEASE)
        if not has_first_claim(self._study, f"trial {trial.number} after {before['grant'] if before else 'nobody'}"):
            return False
        refresh(self._study)
        stored = self._storage.get_trial(trial._trial_id)
        if stored.state != trial.state or stored.user_attrs.get(LEASE) != before:
            return False  # another supervisor took it, and perhaps finished it, since this one looked
        self._held[trial._trial_id] = lease = new_lease()
        self._storage.set_trial_user_attr(trial._trial_id, LEASE, lease)
        return True


def _num_begun(trials: list[FrozenTrial]) -> int:
    return sum(trial.state != TrialState.WAITING for trial in trials)
