from dataclasses import replace

import numpy as np
import pytest

from lr_schedules import BatchRamp, Cosine, CosineRestarts, SlowStart
from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from recipes.reports.curves import (
    curve_points,
    parse_at,
    points_text,
    reads_better_in_decades,
    recipe_curves,
    traced,
)
from trainers.launch.vocabulary import vocabulary


def test_every_jump_is_between_neighbouring_floats():
    jumps = [0.1, 1 / 3, 0.7]
    epochs, values = traced(lambda epoch: float(sum(epoch >= jump for jump in jumps)), 1.0)
    indices = np.flatnonzero(np.diff(values))
    assert epochs[indices + 1].tolist() == jumps
    assert (np.nextafter(epochs[indices], 2) == epochs[indices + 1]).all()
    assert (np.diff(epochs) >= 0).all()


def test_each_point_is_a_value_of_the_curve():
    epochs, values = traced(lambda epoch: epoch**3 if epoch < 5 else 1.0, 10.0)
    assert values.tolist() == [epoch**3 if epoch < 5 else 1.0 for epoch in epochs.tolist()]
    assert (epochs[0], epochs[-1]) == (0.0, 10.0)


def test_a_smooth_curve_is_not_searched_for_jumps_to_the_last_bit():
    schedule, asked = CosineRestarts(first=1.0), []
    traced(lambda epoch: asked.append(epoch) or schedule(epoch), 20.0)
    assert len(asked) < 1024 * 5 + 20 * 60


def test_recipe_curves_reach_published_values(make_recipe):
    curves = recipe_curves(make_recipe())
    epochs, rates = curves.learning_rate
    levels = [float(rates[np.searchsorted(epochs, at)]) for at in (10, 40, 70, 85)]
    assert levels == pytest.approx([0.8, 0.16, 0.016, 0.0016])
    assert np.unique(curves.global_batch_size[1]).tolist() == [2048, 4096]
    assert np.unique(curves.momentum[1]).tolist() == [0.9]


def test_image_size_has_a_curve_where_it_moves(make_recipe):
    steps = BatchRamp(boundaries=(0.0, 30.0, 60.0), sizes=(128, 160, 192))
    epochs, sizes = recipe_curves(replace(make_recipe(), image_size=steps)).image_size
    assert [float(sizes[np.searchsorted(epochs, at)]) for at in (10, 40, 70)] == [128, 160, 192]
    assert recipe_curves(make_recipe()).image_size is None
    constant = replace(make_recipe(), image_size=BatchRamp(boundaries=(0.0,), sizes=(160,)))
    assert recipe_curves(constant).image_size is None


def test_optimizer_without_momentum_has_no_momentum_curve(make_recipe):
    assert recipe_curves(make_recipe(momentum=None)).momentum is None


@pytest.mark.parametrize(
    ("schedule", "decades"),
    [(SlowStart(), True), (Cosine(epochs=90.0), False), (None, True)],
    ids=["slow", "cosine", "step"],
)
def test_steps_by_tenths_get_decades_and_a_cosine_does_not(make_recipe, schedule, decades):
    rates = recipe_curves(make_recipe(schedule=schedule, sizes=(2048,), boundaries=(0.0,))).learning_rate[1]
    assert reads_better_in_decades(rates) is decades


def test_rates_that_are_all_zero_need_no_decades():
    assert reads_better_in_decades(np.zeros(3)) is False


def test_a_table_that_is_wider_than_the_terminal_goes_on_below_and_has_no_empty_column():
    rows = [
        {"batch": 16, "updates": "9,450", "note": "", "epochs": 2.7},
        {"batch": 1024, "updates": "506", "note": "", "epochs": 9.4},
    ]
    whole = "batch  updates  epochs\n   16  9,450       2.7\n 1024  506         9.4"
    assert points_text(rows) == points_text(rows, width=22) == whole
    parts = "batch  updates\n   16  9,450\n 1024  506\n\nbatch  epochs\n   16     2.7\n 1024     9.4"
    assert points_text(rows, width=21) == points_text(rows, width=1) == parts
    titled = [{"name": "a", "epochs": 64.24862333, "title": "A title of thirty-one characters"}]
    assert points_text(titled).endswith("a     64.2486  A title of thirty-one characters")
    assert points_text(titled, width=35, cut="title").endswith("a     64.2486  A title of thirty-o…")
    below = "name   epochs\na     64.2486\n\nname  title\na     A title of thirty-one c…"
    assert points_text(titled, width=30, cut="title") == below
    named = [{"run": "runs/a-name-that-goes-on-and-on/0001", "accuracy": "97.64 %"}]
    assert points_text(named, width=40).endswith("\nruns/a-nam…d-on/0001  97.64 %")


def test_the_end_of_the_last_update_may_be_asked_for():
    """Twenty epochs of 1,500 samples in updates of 512: the 59th ends after 20.14 epochs."""
    batch = "batch={global: 512, norm_span: 32}"
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=[batch])
    assert parse_at("59up", opened) == [59 * 512 / 1500]
    with pytest.raises(RecipeError, match="60up lies after the end of the run"):
        parse_at("60up", opened)


def test_a_point_has_the_rate_that_its_update_trains_with():
    """Three epochs of 1,500 samples in updates of 750."""
    words = ["batch={global: 750, norm_span: 30}", "epochs=3", "learning_rate.schedule={kind: Polynomial}"]
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=words)
    points = curve_points(opened, [1.2, 1.5, 3.0])
    assert [point["update"] for point in points] == [3, 3, None]
    rate = opened.recipe.learning_rate.reference * 750 / 32
    assert [point["learning_rate"] for point in points] == pytest.approx([rate / 2, rate / 2, 0])
    assert [point["samples"] for point in points] == [2250, 2250, 4500]
