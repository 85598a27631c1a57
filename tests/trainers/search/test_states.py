"""What became of trials, in words."""

import optuna

from trainers.search.study import state_counts


def test_trials_are_counted_by_what_became_of_them():
    study = optuna.create_study()
    assert state_counts(study.get_trials()) == "no trial has ended yet"
    study.tell(study.ask(), 1.0)
    study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)
    study.tell(study.ask(), 2.0)
    assert state_counts(study.get_trials()) == "3 trials: 2 complete, 1 failed"
