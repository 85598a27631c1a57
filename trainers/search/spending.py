"""What a search has spent of its hours and device-hours."""

from __future__ import annotations

import time
import uuid

import optuna

from recipes.schema import Search
from trainers.search import study as studies


class Spending:
    """Hours of all sessions of a search, and device-hours of all its trials.

    Args:
        search: with the budget.
        study: stores both, for all supervisors that share it.
    """

    def __init__(self, search: Search, study: optuna.Study) -> None:
        self._search, self._study = search, study
        self._session = uuid.uuid4().hex
        self._before, self._since = studies.spent_seconds(study), time.monotonic()

    def over(self, working_seconds: float) -> bool:
        """Whether the hours or device-hours are spent, so that no further trial may begin.

        Args:
            working_seconds: of all trials that run now, since they were given to their ranks.
        """
        budget = self._search.budget
        if budget.hours is not None and self._seconds() >= 3600 * budget.hours:
            return True
        return budget.device_hours is not None and self._device_hours(working_seconds) >= budget.device_hours

    def note(self) -> None:
        """Store how long this session has worked, and read the times of the others that share the study."""
        studies.note_spent(self._study, time.monotonic() - self._since, session=self._session)
        self._before = studies.spent_seconds(self._study, besides=self._session)

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._since

    def _device_hours(self, working_seconds: float) -> float:
        trials = self._study.get_trials(deepcopy=False)
        told = sum(trial.user_attrs.get(studies.SECONDS, 0.0) for trial in trials)
        return self._search.ranks_per_trial * (told + working_seconds) / 3600
