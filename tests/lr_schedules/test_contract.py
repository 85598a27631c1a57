"""Every public name of lr_schedules keeps the same promises."""

import dataclasses
import doctest
import inspect
import math
import pickle
import re
import subprocess
import sys
import typing
from functools import partial
from types import SimpleNamespace

import pytest

import lr_schedules
from lr_schedules import (
    BatchRamp,
    Constant,
    ConstantWarmup,
    Cosine,
    CosineRestarts,
    Exponential,
    GradualWarmup,
    Joined,
    MultiStep,
    PiecewiseLinear,
    Polynomial,
    Product,
    SlowStart,
    StableDecay,
)
from lr_schedules.units import Epochs

# Whole numbers stand where a recipe may write them: the factor must come out as a float all the same.
ARGUMENTS = {
    "BatchRamp": {"boundaries": (0.0, 30.0), "sizes": (2048, 4096)},
    "Constant": {"factor": 1},
    "ConstantWarmup": {"epochs": 5, "start": 1},
    "Cosine": {"epochs": 90, "end": 0},
    "CosineRestarts": {"first": 10, "times": 2, "end": 0, "peak": 1},
    "Exponential": {"ratio": 1},
    "GradualWarmup": {"epochs": 5, "start": 0},
    "Joined": {"warmup": GradualWarmup(epochs=5.0), "schedule": Cosine(epochs=90.0), "joins": "before"},
    "MultiStep": {"boundaries": (30, 60, 80), "factor": 1},
    "PiecewiseLinear": {"points": ((1, 0), (2, 1), (16, 0))},
    "Polynomial": {"epochs": 90, "power": 2, "end": 0},
    "Product": {"factors": (Constant(factor=0.5), Exponential(ratio=0.9))},
    "SlowStart": {"boundaries": (40, 70), "factors": (1, 1, 0)},
    "StableDecay": {"decay_from": 60, "epochs": 90, "end": 0},
}
RULES = ("linear_scaling", "no_scaling", "power_scaling", "sqrt_scaling")
EPOCHS = (0.0, 1 / 3, 4.999, 5.0, 29.999, 30.0, 60.0, 89.999, 90.0, 90.02, 1e6)

# Every one of these once trained something the author of the recipe did not mean.
REFUSED = [
    (BatchRamp, {"boundaries": (0.0, 30.0, 20.0), "sizes": (1, 2, 3)}, "BatchRamp.boundaries must increase"),
    (BatchRamp, {"boundaries": (0.0, 30.0, 30.0), "sizes": (1, 2, 3)}, "BatchRamp.boundaries must increase"),
    (BatchRamp, {"boundaries": (1.0,), "sizes": (32,)}, "BatchRamp.boundaries must begin with 0"),
    (BatchRamp, {"boundaries": (0.0, 30.0), "sizes": (32,)}, "BatchRamp.sizes must be a tuple of 2"),
    (BatchRamp, {"boundaries": (0.0,), "sizes": (0,)}, "BatchRamp.sizes must be whole numbers > 0, got 0"),
    (BatchRamp, {"boundaries": (0.0,), "sizes": (32.0,)}, "BatchRamp.sizes must be whole numbers > 0, got 32.0"),
    (BatchRamp, {"boundaries": (0.0,), "sizes": (True,)}, "BatchRamp.sizes must be whole numbers > 0, got True"),
    (Constant, {"factor": 0.0}, "Constant.factor must be > 0, got 0.0"),
    (Constant, {"factor": "1e-4"}, "Constant.factor must be a finite number, got '1e-4'"),
    (ConstantWarmup, {"epochs": 5.0, "start": 0.0}, "ConstantWarmup.start must be > 0"),
    (ConstantWarmup, {"epochs": -5.0, "start": 0.1}, "ConstantWarmup.epochs must be > 0"),
    (Cosine, {"epochs": 0.0}, "Cosine.epochs must be > 0, got 0.0"),
    (Cosine, {"epochs": True}, "Cosine.epochs must be a finite number, got True"),
    (Cosine, {"epochs": 90.0, "end": 1.5}, "Cosine.end must be <= 1, got 1.5"),
    (CosineRestarts, {"first": 0.0}, "CosineRestarts.first must be > 0, got 0.0"),
    (CosineRestarts, {"first": 1.0, "times": 0.5}, "CosineRestarts.times must be >= 1, got 0.5"),
    (CosineRestarts, {"first": 1.0, "end": 1.5}, "CosineRestarts.end must be <= 1, got 1.5"),
    (CosineRestarts, {"first": 1.0, "peak": 0.0}, "CosineRestarts.peak must be > 0, got 0.0"),
    (Exponential, {"ratio": 0.0}, "Exponential.ratio must be > 0"),
    (Exponential, {"ratio": 1.01}, "Exponential.ratio must be <= 1"),
    (GradualWarmup, {"epochs": 0.0}, "GradualWarmup.epochs must be > 0"),
    (GradualWarmup, {"epochs": 5.0, "start": -0.1}, "GradualWarmup.start must be >= 0"),
    (GradualWarmup, {"epochs": 5.0, "start": 2.0}, "GradualWarmup.start must be <= 1, got 2.0"),
    (Joined, ARGUMENTS["Joined"] | {"joins": "after"}, "Joined.joins must be one of before, multiply, over"),
    (Joined, ARGUMENTS["Joined"] | {"warmup": Constant()}, "Joined needs a warmup and a schedule"),
    (Joined, ARGUMENTS["Joined"] | {"warmup": SimpleNamespace(epochs=5.0)}, "Joined needs a warmup and a schedule"),
    (Joined, ARGUMENTS["Joined"] | {"schedule": 0.1}, "Joined needs a warmup and a schedule"),
    (MultiStep, {"boundaries": ()}, "MultiStep.boundaries must be a tuple of at least one position"),
    (MultiStep, {"boundaries": [30.0]}, "MultiStep.boundaries must be a tuple of at least one position"),
    (MultiStep, {"boundaries": (0.0, 30.0)}, "MultiStep.boundaries must be > 0"),
    (MultiStep, {"boundaries": (30.0, -60.0)}, "MultiStep.boundaries must be >= 0"),
    (MultiStep, {"boundaries": (60.0, 30.0)}, "MultiStep.boundaries must increase, got 30.0 after 60.0"),
    (MultiStep, {"boundaries": (30.0,), "factor": 0.0}, "MultiStep.factor must be > 0"),
    (PiecewiseLinear, {"points": ()}, "PiecewiseLinear.points must be a tuple of at least one position"),
    (PiecewiseLinear, {"points": ((0.0, 1.0, 2.0),)}, "PiecewiseLinear.points must be a tuple of pairs"),
    (PiecewiseLinear, {"points": ([0.0, 1.0],)}, "PiecewiseLinear.points must be a tuple of pairs"),
    (PiecewiseLinear, {"points": ((1.0, 1.0), (0.0, 2.0))}, "PiecewiseLinear.points must increase"),
    (PiecewiseLinear, {"points": ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))}, "PiecewiseLinear.points must increase"),
    (PiecewiseLinear, {"points": ((0.0, 1.0),) * 3}, "PiecewiseLinear.points must have at most two points at one"),
    (PiecewiseLinear, {"points": ((0.0, -1.0),)}, "PiecewiseLinear.points must be >= 0"),
    (Polynomial, {"epochs": 90.0, "power": 0.0}, "Polynomial.power must be > 0"),
    (Polynomial, {"epochs": 0.0}, "Polynomial.epochs must be > 0"),
    (Polynomial, {"epochs": 90.0, "end": -0.1}, "Polynomial.end must be >= 0"),
    (Product, {"factors": ()}, "Product.factors must be a tuple of at least one schedule"),
    (Product, {"factors": (0.5,)}, "Product.factors must be a tuple of at least one schedule"),
    (SlowStart, {"factors": (1.0, 0.1)}, "SlowStart.factors must be a tuple of 4"),
    (SlowStart, {"boundaries": (0.0,), "factors": (1.0, 0.1)}, "SlowStart.boundaries must be > 0"),
    (SlowStart, {"boundaries": (9.0,), "factors": (1.0, -0.1)}, "SlowStart.factors must be >= 0"),
    (StableDecay, {"decay_from": 9.0, "epochs": 9.0}, "StableDecay.decay_from must be before epochs 9.0, got 9.0"),
    (StableDecay, {"decay_from": -1.0, "epochs": 9.0}, "StableDecay.decay_from must be >= 0"),
    (StableDecay, {"decay_from": 1.0, "epochs": 9.0, "end": 2.0}, "StableDecay.end must be <= 1"),
]


def with_number_replaced(value, bad):
    """Every copy of a value, tuples inside tuples too, with one of its numbers replaced."""
    if isinstance(value, int | float):
        yield bad
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from ((*value[:i], changed, *value[i + 1 :]) for changed in with_number_replaced(item, bad))


def test_every_public_name_has_arguments_here():
    assert {*lr_schedules.__all__} == {*ARGUMENTS, *RULES}


@pytest.mark.parametrize("name", lr_schedules.__all__)
def test_docstring_has_formula_arguments_refusals_example_and_source(name):
    doc = inspect.getdoc(getattr(lr_schedules, name))  # Python 3.13 strips the indentation, earlier ones do not
    assert re.search(r"^ {4}(\w+: +)?\w\((t|B)\) = ", doc, re.MULTILINE), "no formula"
    assert all(section in doc for section in ("Args:", "Raises:", "\nSource: "))
    assert len(doctest.DocTestParser().get_examples(doc)) >= 1


@pytest.mark.parametrize("name", ARGUMENTS)
class TestSchedule:
    def make(self, name):
        return getattr(lr_schedules, name)(**ARGUMENTS[name])

    def test_is_frozen_and_has_no_state(self, name):
        schedule = self.make(name)
        field = dataclasses.fields(schedule)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(schedule, field, getattr(schedule, field))
        forwards = [schedule(epoch) for epoch in EPOCHS]
        assert [schedule(epoch) for epoch in reversed(EPOCHS)] == forwards[::-1]
        assert vars(schedule) == ARGUMENTS[name]

    def test_its_positions_may_be_written_with_a_unit(self, name):
        hints = typing.get_type_hints(getattr(lr_schedules, name), include_extras=True)
        marked = {"boundaries": tuple[Epochs, ...], "points": tuple[tuple[Epochs, float], ...]}
        marked |= {"epochs": Epochs, "first": Epochs, "decay_from": Epochs}
        assert all(hints[field] == hint for field, hint in marked.items() if field in hints)

    def test_is_equal_hashable_and_pickles(self, name):
        schedule = self.make(name)
        assert schedule == self.make(name)
        assert hash(schedule) == hash(self.make(name))
        assert pickle.loads(pickle.dumps(schedule)) == schedule

    def test_repr_round_trips(self, name):
        schedule = self.make(name)
        assert eval(repr(schedule), vars(lr_schedules)) == schedule

    def test_takes_keywords_only(self, name):
        with pytest.raises(TypeError, match="positional"):
            getattr(lr_schedules, name)(*ARGUMENTS[name].values())

    def test_gives_a_finite_number_at_every_epoch(self, name):
        schedule = self.make(name)
        kind = int if name == "BatchRamp" else float
        for epoch in (*EPOCHS, 0, 5, 30):
            assert type(schedule(epoch)) is kind
            assert math.isfinite(schedule(epoch))
            assert schedule(epoch) >= 0

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_refuses_every_number_that_is_not_finite(self, name, bad):
        arguments = ARGUMENTS[name]
        tried = [
            {**arguments, key: broken} for key in arguments for broken in with_number_replaced(arguments[key], bad)
        ]
        assert tried or name in ("Joined", "Product")
        for wrong in tried:
            with pytest.raises(ValueError, match=rf"^{name}\.\w+ must be .*(nan|inf)"):
                getattr(lr_schedules, name)(**wrong)


@pytest.mark.parametrize(("kind", "arguments", "message"), REFUSED)
def test_wrong_argument_is_refused_by_name(kind, arguments, message):
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}"):
        kind(**arguments)


@pytest.mark.parametrize("name", RULES)
def test_scaling_rule_is_pure_takes_per_by_keyword_and_refuses_nonsense(name):
    rule = getattr(lr_schedules, name)
    rule = partial(rule, exponent=0.7) if name == "power_scaling" else rule
    assert type(rule(512, per=32)) is float
    assert rule(512, per=32) == rule(512, per=32)
    assert rule(256, per=256) == 1.0
    with pytest.raises(TypeError, match="positional"):
        rule(512, 32)
    for wrong in (0, -32, math.nan, math.inf, True, "512"):
        with pytest.raises(ValueError, match=f"^{name}: global_batch_size must be "):
            rule(wrong, per=32)
        with pytest.raises(ValueError, match=f"^{name}: per must be "):
            rule(512, per=wrong)


def test_import_needs_the_standard_library_only():
    code = (
        "import sys; before = set(sys.modules); import lr_schedules; "
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "sys.exit(str(names - set(sys.stdlib_module_names) - {'lr_schedules'} or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
