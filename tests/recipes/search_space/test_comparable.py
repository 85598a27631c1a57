"""When runs may be compared: past their slow starts, and with one shape of the rate."""

import pytest

import trainers.compat  # noqa: F401
from recipes.planning.rates import rate_shape, slow_until
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

RISE = "learning_rate.schedule={kind: PiecewiseLinear, points: [[0, 0.1], [4, 1.0], [20, 0.0]]}"
BEFORE = "learning_rate.warmup={kind: GradualWarmup, epochs: %d, start: 0, joins: before}"


def recipe(*overrides, name="digits/batch_256"):
    return open_recipe(name, vocabulary=vocabulary(), overrides=overrides).recipe


@pytest.mark.parametrize(
    ("overrides", "end"),
    [
        ([], 5),
        (["learning_rate.warmup=null"], 0),
        (["learning_rate.warmup=null", RISE], 4),
        ([RISE], 5),
        ([BEFORE % 3, RISE], 7),
        (["learning_rate.schedule={kind: SlowStart, boundaries: [9, 12], factors: [0.5, 0.1, 0.01]}"], 9),
        (["optimizer={kind: RmspropWarmup, beta_center: 6, beta_period: 4}"], 8),
        (["learning_rate.schedule={kind: Product, factors: [{kind: Cosine}, {kind: SlowStart}]}", "epochs=90"], 40),
    ],
)
def test_slow_until(overrides, end):
    assert slow_until(recipe(*overrides)) == end


def test_akiba2017_is_slow_until_its_slow_start_ends():
    assert slow_until(recipe(name="akiba2017")) == 40


def test_a_shape_is_drawn_from_a_to_z():
    falls = "learning_rate.schedule={kind: MultiStep, boundaries: [10], factor: 0.1}"
    assert rate_shape(recipe(falls)) == "Z" * 10 + "f" * 10
    assert rate_shape(recipe("learning_rate.schedule={kind: Constant}")) == "Z" * 20


@pytest.mark.parametrize(
    "overrides",
    [
        ["learning_rate.reference=0.3"],
        ["batch.global=64"],
        ["epochs=37"],
        ["learning_rate.warmup.epochs=1"],
        ["learning_rate.warmup=null"],
        ["learning_rate.every=1ep"],
        ["optimizer={kind: Lars}"],
    ],
)
def test_rate_length_batch_and_warmup_make_no_other_shape(overrides):
    assert rate_shape(recipe(*overrides)) == rate_shape(recipe())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([], ["learning_rate.schedule={kind: Polynomial}"]),
        ([], ["learning_rate.schedule={kind: Cosine, epochs: 10}"]),
        ([BEFORE % 5], [BEFORE % 1]),
        ([], ["batch={global: [{from: 0, size: 256}, {from: 7, size: 512}]}"]),
    ],
)
def test_another_decay_is_another_shape(one, other):
    assert rate_shape(recipe(*one)) != rate_shape(recipe(*other))
