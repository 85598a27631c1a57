"""What a search has spent of its hours and device-hours."""

from __future__ import annotations

import time
import uuid

import optuna

from recipes.schema import Search
from trainers.search import study as studies


class Spending:
    """Time of all sessions of a search, and of all ranks of its trials.

    Args:
        search: whose budget it is.
        study: where both are kept, of all supervisors that share it.
    """

    def __init__(self, search: Search, study: optuna.Study) -> None:
        self._search, self._study = search, study
        self._session = uuid.uuid4().hex
        self._before, self._since = studies.spent_seconds(study), time.monotonic()

    def over(self, working_seconds: float) -> bool:
        """Whether no trial may begin any more.

        Args:
            working_seconds: of all trials that run now, since their ranks were given them.
        """
        budget = self._search.budget
        if budget.hours is not None and self._seconds() >= 3600 * budget.hours:
            return True
        return budget.device_hours is not None and self._device_hours(working_seconds) >= budget.device_hours

    def note(self) -> None:
        """Keep how long this session has worked, and learn of the others' that share the study."""
        studies.note_spent(self._study, time.monotonic() - self._since, session=self._session)
        self._before = studies.spent_seconds(self._study, besides=self._session)

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._since

    def _device_hours(self, working_seconds: float) -> float:
        trials = self._study.get_trials(deepcopy=False)
        told = sum(trial.user_attrs.get(studies.SECONDS, 0.0) for trial in trials)
        return self._search.ranks_per_trial * (told + working_seconds) / 3600
