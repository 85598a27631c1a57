"""Samplers and pruners: what each proposes or ends, through Optuna."""

import dataclasses
import importlib
import importlib.util
import inspect

import optuna
import pytest

from recipes.search_space.ranges import Categorical, Float, Int
from trainers.launch.vocabulary import PACKAGES
from trainers.search.comparability import COMPARED

SPACE = {"a": Float(low=0.001, high=1.0, log=True), "b": Int(low=1, high=9), "c": Categorical(choices=("x", "y"))}
GROUPS = {name: importlib.import_module(PACKAGES[name]) for name in ("samplers", "pruners")}
COMPONENTS = [getattr(package, name) for package in GROUPS.values() for name in package.__all__]


HAS_TORCH = importlib.util.find_spec("torch") is not None
NEEDS_TORCH = pytest.mark.skipif(not HAS_TORCH, reason="no PyTorch on this machine")
NAMES = [
    pytest.param(name, marks=[pytest.mark.torch, NEEDS_TORCH]) if name == "Gp" else name
    for name in GROUPS["samplers"].__all__
]


@pytest.fixture(params=NAMES)
def sampler(request):
    return getattr(GROUPS["samplers"], request.param)()


def draws(sampler, *, seed, trials=15):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler.build(seed=seed))
    found = []
    for _ in range(trials):
        trial = study.ask()
        found.append({path: range_.suggest(trial, path) for path, range_ in SPACE.items()})
        study.tell(trial, found[-1]["a"] + found[-1]["b"])
    return found


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.__name__)
def test_a_component_is_a_frozen_documented_dataclass(component):
    assert dataclasses.is_dataclass(component)
    assert component.__dataclass_params__.frozen
    assert component() == component()
    for field in dataclasses.fields(component):
        assert f"    {field.name}: " in inspect.getdoc(component)


@pytest.mark.parametrize("package", GROUPS.values(), ids=GROUPS)
def test_public_names_are_sorted(package):
    assert package.__all__ == sorted(package.__all__)


def test_a_sampler_stays_in_the_space(sampler):
    for values in draws(sampler, seed=0):
        assert all(range_.holds(values[path]) for path, range_ in SPACE.items())


def test_a_seed_gives_the_same_draws_and_another_one_others(sampler):
    assert draws(sampler, seed=3) == draws(sampler, seed=3)
    assert draws(sampler, seed=3) != draws(sampler, seed=4)


def test_a_grid_is_every_combination_with_the_last_path_moving_first():
    grid = GROUPS["samplers"].Grid(points=3).first({"b": SPACE["b"], "c": SPACE["c"]})
    assert grid == [{"b": b, "c": c} for b in (1, 5, 9) for c in ("x", "y")]


@pytest.mark.parametrize(
    ("pruner", "pruned"),
    [
        (GROUPS["pruners"].Median(startup_trials=4), [False, False, True, True]),
        (GROUPS["pruners"].Percentile(keep=25.0, startup_trials=4), [False, True, True, True]),
        (GROUPS["pruners"].Median(startup_trials=5), [False] * 4),
    ],
    ids=repr,
)
def test_a_pruner_ends_what_is_worse_than_its_part_of_the_complete_trials(pruner, pruned):
    """Four complete trials of 0.9, 0.8, 0.7, 0.6 at report 1; the median is 0.75, the best quarter ends at 0.825."""
    study = optuna.create_study(direction="maximize", pruner=pruner.build())
    for value in (0.9, 0.8, 0.7, 0.6):
        trial = study.ask()
        trial.set_user_attr(COMPARED, {"from": 1, "shape": "Z"})
        trial.report(value, 1)
        study.tell(trial, value)
    found = []
    for value in (0.85, 0.8, 0.7, 0.1):
        trial = study.ask()
        trial.set_user_attr(COMPARED, {"from": 1, "shape": "Z"})
        trial.report(value, 1)
        found.append(trial.should_prune())
    assert found == pruned


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GROUPS["samplers"].Grid(points=0), "Grid.points must be a whole number >= 1"),
        (lambda: GROUPS["samplers"].Tpe(startup_trials=-1), "Tpe.startup_trials must be a whole number >= 0"),
        (lambda: GROUPS["samplers"].Tpe(multivariate=1), "Tpe.multivariate must be true or false"),
        (lambda: GROUPS["samplers"].Gp(startup_trials=0), "Gp.startup_trials must be a whole number >= 1"),
        (lambda: GROUPS["samplers"].NsgaII(population=1), "NsgaII.population must be a whole number >= 2"),
        (lambda: GROUPS["samplers"].CmaEs(startup_trials=0), "CmaEs.startup_trials must be a whole number >= 1"),
        (lambda: GROUPS["pruners"].Median(startup_trials=0), "Median.startup_trials must be a whole number >= 1"),
        (lambda: GROUPS["pruners"].Percentile(keep=0.0), "Percentile.keep must be > 0"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
