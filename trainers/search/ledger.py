"""Who said what first: an order on which all supervisors of a study agree, over every storage.

A storage of Optuna gives the trials of a study their numbers one after the other, and nothing of a trial that was made
whole is ever changed: under a lock of the study's row in PostgreSQL and MySQL, of the file in SQLite, by the order of
the lines in a journal; behind the proxy, where the server does so. A second study holds a trial for each thing that was
said, with who said it; the lowest number was first.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.trial import TrialState, create_trial

from trainers.search.leases import LEASE, is_gone, is_mine
from trainers.search.view import read_again

_WHAT = "claim"


def place_in_line(study: optuna.Study, what: str, lease: Mapping[str, Any]) -> int:
    """Say something; returns how often it was said before."""
    ledger = _ledger(study)
    _say(ledger, what, lease)
    grants = [said[LEASE]["grant"] for said in _said(ledger, what)]
    return grants.index(lease["grant"])


def is_first(study: optuna.Study, what: str, lease: Mapping[str, Any]) -> bool:
    """Whether this process may do something that only one may: the first to claim it that is alive.

    A claim holds as long as a lease: who does not act on it in that time may have to claim again.
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
    # It is complete from the start, so that no reader sees a part of it; the value says nothing.
    ledger.add_trial(create_trial(state=TrialState.COMPLETE, value=0.0, user_attrs={_WHAT: what, LEASE: dict(lease)}))


def _said(ledger: optuna.Study, what: str) -> list[Mapping[str, Any]]:
    """Claims of one thing, the first one first."""
    read_again(ledger)
    trials = sorted(ledger.get_trials(deepcopy=False), key=lambda trial: trial.number)
    return [trial.user_attrs for trial in trials if trial.user_attrs.get(_WHAT) == what]
