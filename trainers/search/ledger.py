"""Claims, and which was made first: an order on which all supervisors of a study agree, over every storage.

A storage of Optuna numbers the trials of a study in order and never changes a finished trial: under a lock of the
study's row in PostgreSQL and MySQL, of the file in SQLite, by the order of the lines in a journal; behind the proxy, as
the server does. A second study, the ledger, holds a finished trial for each claim, with who made it; the lowest number
was first.
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
    """Claim something; returns how many claims of it were made before."""
    ledger = _ledger(study)
    _say(ledger, what, lease)
    grants = [said[LEASE]["grant"] for said in _said(ledger, what)]
    return grants.index(lease["grant"])


def is_first(study: optuna.Study, what: str, lease: Mapping[str, Any]) -> bool:
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
    read_again(ledger)
    trials = sorted(ledger.get_trials(deepcopy=False), key=lambda trial: trial.number)
    return [trial.user_attrs for trial in trials if trial.user_attrs.get(_WHAT) == what]
