"""Samplers: what each proposes, in studies of Optuna without runs."""

import dataclasses
import importlib.util
import inspect

import optuna
import pytest

from recipes.schema import Objective
from recipes.search_space.ranges import Categorical, Float, Int, suggested
from trainers.search import samplers
from trainers.search.study import best_trials, left_running, new_study, next_trial, store_constraints

HAS_TORCH = importlib.util.find_spec("torch") is not None
NEEDS_TORCH = pytest.mark.skipif(not HAS_TORCH, reason="no PyTorch on this machine")


def test_samplers_are_frozen_documented_dataclasses_in_order():
    assert samplers.__all__ == sorted(samplers.__all__)
    for component in (getattr(samplers, name) for name in samplers.__all__):
        assert component.__dataclass_params__.frozen
        for field in dataclasses.fields(component):
            assert f"    {field.name}: " in inspect.getdoc(component)


CONDITIONAL = {
    "kind": Categorical(choices=("a", "b")),
    "x": Float(low=0.0, high=1.0),
    "y": Float(low=0.0, high=1.0, when={"kind": ("b",)}),
}
ALL = [
    samplers.RandomSampler(),
    samplers.TPESampler(n_startup_trials=4),
    samplers.TPESampler(n_startup_trials=4, multivariate=True, group=True),
    samplers.NSGAIISampler(population_size=4),
    pytest.param(samplers.GPSampler(n_startup_trials=4), marks=[pytest.mark.torch, NEEDS_TORCH]),
]


@pytest.fixture
def worked(made):
    """`worked(sampler, score)`: a study whose trials have `score(values)` as objectives and constraint violations."""

    def worked(sampler, score, *, trials=20, space=CONDITIONAL, **keys):
        search = made(sampler=sampler, space=space, **keys)
        study = new_study(search)
        for _ in range(trials):
            trial = next_trial(study, search)
            values, violations = score(trial.params)
            store_constraints(trial, violations)
            study.tell(trial, values)
        return study

    return worked


@pytest.mark.parametrize("sampler", ALL, ids=repr)
def test_every_sampler_works_with_conditions_constraints_and_several_objectives(worked, sampler):
    """Accuracy x, at most a half, and cost x + (1 - x) y: with x fixed a higher y only costs."""
    both = (Objective(), Objective(metric="device_hours"))
    study = worked(
        sampler, lambda own: ([own["x"], own["x"] + own.get("y", 0.0)], {"x <= 0.5": own["x"] - 0.5}), objective=both
    )
    for trial in study.trials:
        assert ("y" in trial.params) == (trial.params["kind"] == "b")
    assert {trial.params["kind"] for trial in study.trials} == {"a", "b"}
    best = best_trials(study)
    assert any(trial.params["x"] > 0.5 for trial in study.trials)
    assert all(trial.params["x"] <= 0.5 for trial in best)
    assert {trial.number for trial in best} == {trial.number for trial in study.best_trials}
    assert [trial.values[0] for trial in best] == sorted((trial.values[0] for trial in best), reverse=True)
    assert len(best) > 1


def test_brute_force_tries_each_combination_that_a_trial_can_have_once(worked):
    """Two words, for the second of which there is a number too: 3 times 1 and 3 times 2; then some again."""
    condition = {"y": Int(low=1, high=2, when={"kind": ("b",)}), "x": Float(low=0.0, high=1.0, step=0.5)}
    space = {**condition, "kind": CONDITIONAL["kind"]}  # trials have the kind before the number
    study = worked(samplers.BruteForceSampler(), lambda values: ([values["x"]], {}), space=space, trials=11)
    tried = [tuple(trial.params.items()) for trial in study.trials]
    assert len(set(tried[:9])) == len(set(tried)) == 9


@pytest.mark.parametrize(
    "sampler",
    [
        samplers.TPESampler(n_startup_trials=8),
        samplers.NSGAIISampler(population_size=8),
        pytest.param(samplers.GPSampler(n_startup_trials=8), marks=[pytest.mark.torch, NEEDS_TORCH]),
    ],
    ids=repr,
)
def test_a_sampler_heeds_constraints(worked, sampler):
    """The more x the better, and y above a fifth is too much: a fifth of random draws keep it."""
    space = {"x": CONDITIONAL["x"], "y": Float(low=0.0, high=1.0)}
    trials = 30 if isinstance(sampler, samplers.GPSampler) else 120
    study = worked(sampler, lambda own: ([own["x"]], {"y <= 0.2": own["y"] - 0.2}), space=space, trials=trials)
    late = [trial.params["y"] <= 0.2 for trial in study.trials[-len(study.trials) // 3 :]]
    assert sum(late) > 0.5 * len(late)


@pytest.mark.parametrize("sampler", [*ALL[:-1], samplers.CmaEsSampler()], ids=repr)
def test_a_search_that_is_stopped_proposes_what_it_would_have(made, worked, sampler):
    """Opened anew for every trial, and killed in the middle of the proposals of each fifth, against never."""
    search, storage = made(sampler=sampler, space=CONDITIONAL), optuna.storages.InMemoryStorage()
    for number in range(20):
        study = new_study(search, storage=storage)
        trial = study.ask()
        if number % 5 == 2:  # killed after the first value
            CONDITIONAL["kind"].suggest(trial, "kind")
            (trial,) = left_running(new_study(search, storage=storage))
        suggested(CONDITIONAL, trial)
        study.tell(trial, trial.params["x"] - trial.params.get("y", 0.5))
    whole = worked(sampler, lambda own: ([own["x"] - own.get("y", 0.5)], {}))
    assert [trial.params for trial in study.trials] == [trial.params for trial in whole.trials]


def test_tpe_with_groups_draws_a_value_that_has_a_condition_together_with_the_others(made):
    search = made(sampler=samplers.TPESampler(n_startup_trials=4, multivariate=True, group=True), space=CONDITIONAL)
    study = new_study(search)
    for _ in range(9):
        trial = next_trial(study, search)
        study.tell(trial, trial.params["x"] - trial.params.get("y", 0.5))
    assert trial.relative_params.keys() == CONDITIONAL.keys()


def test_constraints_are_stored_once_although_a_killed_search_stores_them_again(made):
    study = new_study(made())
    trial = study.ask()
    for _ in range(2):  # Optuna's warning would be an error here
        store_constraints(trial, {"x <= 1": -0.5, "y <= 1": 2.0})
    assert study.tell(trial, 1.0).constraints == {"x <= 1": -0.5, "y <= 1": 2.0}
