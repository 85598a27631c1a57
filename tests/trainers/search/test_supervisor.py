"""When a trial or a search ends before its budget is spent, without ranks."""

import json
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState

from recipes.schema import Budget, Objective
from trainers.runs.run_folder import METRICS
from trainers.search.status import Display
from trainers.search.study import PRUNED_AT, new_study
from trainers.search.supervisor import Supervisor, _Work


@pytest.fixture
def supervisor(made, tmp_path):
    """`supervisor(**keys)`: that of a search with these keys."""

    def supervisor(**keys):
        search = made(**keys)
        display = Display(search, new_study(search), tmp_path, SimpleNamespace(is_terminal=False), groups=1, epochs=20)
        return Supervisor(SimpleNamespace(search=search), None, display, [])

    return supervisor


@pytest.mark.parametrize(
    ("seeds", "epoch", "pruned"), [(1, 2.0, False), (1, 3.0, True), (2, 5.0, False), (2, 6.0, True)]
)
def test_a_trial_ends_early_only_if_even_the_mean_over_its_seeds_cannot_be_better(
    supervisor, tmp_path, seeds, epoch, pruned
):
    """The best trial took 3 epochs in the mean; of a trial with two seeds the other one may take hardly any."""
    own = supervisor(objective=Objective(metric="epochs_to", target=0.9), seeds_per_trial=seeds)
    own.study.tell(own.study.ask(), 3.0)
    work = _Work(own.study.ask(), [tmp_path / f"run-{seed}" for seed in range(seeds)])
    work.folder.mkdir()
    line = {"key": "eval_accuracy", "value": 0.5, "update": 9, "epoch": epoch, "time_ms": 0}
    (work.folder / METRICS).write_text(json.dumps(line) + "\n")
    recipe = SimpleNamespace(evaluation=SimpleNamespace(every=1.0))
    plan = SimpleNamespace(timeline=SimpleNamespace(num_updates=99))
    work.prepared = SimpleNamespace(opened=SimpleNamespace(recipe=recipe), plan=plan)
    own._judge(work)
    assert (PRUNED_AT in work.trial.user_attrs) == (work.folder / "stop").exists() == pruned


@pytest.mark.parametrize("best", [None, 0])
def test_patience_ends_a_search_after_so_many_trials_without_a_better_one(supervisor, best):
    """Also where no trial at all is complete."""
    own = supervisor(budget=Budget(trials=9, patience=3))
    if best is not None:
        own.study.tell(own.study.ask(), 0.5)
    for _ in range(3):
        assert not own._budget_is_spent()
        own.study.tell(own.study.ask(), state=TrialState.PRUNED)
    assert own._budget_is_spent()
