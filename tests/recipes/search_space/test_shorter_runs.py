"""A compressed run is the same run in less time."""

from fractions import Fraction

import pytest

import trainers.compat  # noqa: F401
from recipes.errors import InputRefused
from recipes.planning.rates import (
    batch_size_at,
    full_rate_at,
    image_size_at,
    learning_rate_at,
    norm_span_at,
    rate_shape,
    slow_until,
)
from recipes.reading.open import open_recipe
from recipes.reading.registry import names
from recipes.search_space.open_search import assignments
from recipes.search_space.shorter_runs import compressed
from trainers.launch.vocabulary import vocabulary

NINTH, THIRD = Fraction(1, 9), Fraction(1, 3)
STEPS = "batch.global=[{from: 0, size: 32}, {from: 1, size: 64}, {from: END, size: 128}]"
LIBRARY = [name for name in names("recipes") if not name.startswith("digits/")]


def opened(name, *overrides):
    return open_recipe(name, vocabulary=vocabulary(), overrides=overrides)


def short(name, share, *overrides):
    whole = opened(name, *overrides)
    return opened(name, *overrides, *assignments(compressed(whole, share)))


def test_goyal2017_in_ten_epochs():
    recipe = short("goyal2017", NINTH).recipe
    assert recipe.epochs == 10
    assert recipe.learning_rate.warmup.shape.epochs == pytest.approx(5 / 9)
    assert recipe.learning_rate.schedule.boundaries == pytest.approx((30 / 9, 60 / 9, 80 / 9))


def test_only_what_is_time_moves():
    assert set(compressed(opened("goyal2017"), NINTH)) == {
        "epochs",
        "learning_rate.warmup.epochs",
        "learning_rate.schedule.boundaries",
    }


def test_a_ramp_and_the_boundary_it_meets_stay_together_to_the_sample():
    whole, recipe = opened("suzuki2018"), short("suzuki2018", NINTH).recipe
    assert whole.recipe.batch.global_.boundaries[1] == whole.recipe.learning_rate.schedule.boundaries[0]
    start = recipe.batch.global_.boundaries[1]
    assert start == recipe.learning_rate.schedule.boundaries[0] == recipe.batch.norm_span.boundaries[1]
    assert start * 1281167 == round(30 * 1281167 / 9)


def test_the_transition_of_rmsprop_and_the_samples_of_an_average_shrink_too():
    average = "weight_average={keep: 0.9, per: 9000, start: 9}"
    recipe = short("akiba2017", NINTH, average).recipe
    assert (recipe.optimizer.beta_center, recipe.optimizer.beta_period) == pytest.approx((10 / 9, 5 / 9))
    assert (recipe.weight_average.per, recipe.weight_average.start) == (1000, pytest.approx(1))
    assert (recipe.weight_average.keep, recipe.optimizer.mu2) == (0.9, opened("akiba2017").recipe.optimizer.mu2)


def test_a_ratio_an_epoch_falls_as_far_in_a_third_of_them():
    schedule = "learning_rate.schedule={kind: Exponential, ratio: 0.5}"
    assert short("goyal2017", THIRD, schedule).recipe.learning_rate.schedule.ratio == pytest.approx(0.125)


def test_points_and_positions_of_any_unit_are_time():
    points = "learning_rate.schedule={kind: PiecewiseLinear, points: [[0, 0.1], [0.2run, 1.0], [18, 0.0]]}"
    recipe = short("digits/baseline", THIRD, points, "learning_rate.every=150sp").recipe
    assert recipe.learning_rate.schedule.points == ((0, 0.1), (4 / 3, 1.0), (6, 0.0))
    assert recipe.learning_rate.every == pytest.approx(1 / 30)


@pytest.mark.parametrize("share", [THIRD, NINTH], ids=["third", "ninth"])
@pytest.mark.parametrize("name", LIBRARY)
def test_every_published_recipe_moves_alike_in_a_part_of_its_time(name, share):
    whole = opened(name)
    try:
        part = short(name, share)
    except InputRefused:
        pytest.skip("too short: test_most_of_the_library_can_be_compressed counts these")
    sample = 1 / whole.dataset.num_train
    assert part.recipe.epochs == pytest.approx(float(whole.recipe.epochs * share), rel=0, abs=sample)
    assert rate_shape(part.recipe) == rate_shape(whole.recipe)
    assert slow_until(part.recipe) == pytest.approx(slow_until(whole.recipe) * float(share), abs=max(1e-5, sample))
    for index in range(40):
        seen = (index + 0.4142) / 40 * whole.recipe.epochs
        then = seen * float(share)
        for read in (batch_size_at, norm_span_at, image_size_at):
            assert read(part.recipe, then) == read(whole.recipe, seen)
        if whole.recipe.learning_rate.every == "update":
            rates = learning_rate_at(part.recipe, then), learning_rate_at(whole.recipe, seen)
            assert rates[0] == pytest.approx(rates[1], rel=1e-3, abs=1e-4 * full_rate_at(whole.recipe, seen))


def test_most_of_the_library_can_be_compressed():
    refused = []
    for name in LIBRARY:
        try:
            compressed(opened(name), NINTH)
        except InputRefused:
            refused.append(name)
    assert len(refused) < len(LIBRARY) / 4, refused


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["batch.global=512", "epochs=10"], "1/9 of its 10 epochs: 4 updates are fewer than 5"),
        ([STEPS.replace("END", "1.02")], "a step of its batch or images would have no update"),
        ([STEPS.replace("END", "1501sp")], "a step of its batch or images would have no update"),
    ],
)
def test_a_run_too_short_to_say_anything_is_refused(overrides, message):
    with pytest.raises(InputRefused, match=message):
        compressed(opened("digits/baseline", *overrides), NINTH)
