from dataclasses import replace

import pytest

from lr_schedules import BatchRamp, Cosine
from recipes.reports.terminal import curve_text

AXIS = 9  # columns before the picture


def dots(line):
    return [position for position, cell in enumerate(line[AXIS:]) if 0x2800 < ord(cell) <= 0x28FF]


@pytest.mark.parametrize(("width", "height"), [(30, 12), (80, 24), (200, 60)])
def test_picture_has_the_size_asked_for(make_recipe, imagenet, width, height):
    for recipe in (make_recipe(), make_recipe(sizes=(2048,), boundaries=(0.0,))):
        lines = curve_text(recipe, imagenet, width, height).splitlines()
        assert len(lines) == height
        assert max(map(len, lines)) <= width


def test_levels_of_the_rate_stand_beside_the_axis(make_recipe, imagenet):
    lines = curve_text(make_recipe(), imagenet, 80, 24).splitlines()
    assert lines[0] == "ramped: 90 epochs of imagenet, 1,281,167 samples each"
    assert lines[1] == "learning rate (logarithmic)"
    labels = [line[: AXIS - 2].strip() for line in lines]
    assert [label for label in labels if label in ("0.8", "0.1", "0.01", "0.0016")] == ["0.8", "0.1", "0.01", "0.0016"]
    assert labels.index("4,096") < labels.index("2,048") < labels.index("0")


def test_batch_steps_at_a_third_of_the_axis(make_recipe, imagenet):
    lines = curve_text(make_recipe(), imagenet, 9 + 90, 24).splitlines()
    upper = next(line for line in lines if line.startswith("  4,096"))
    lower = next(line for line in lines if line.startswith("  2,048"))
    assert (min(dots(upper)), max(dots(upper))) == (30, 89)
    assert (min(dots(lower)), max(dots(lower))) == (0, 30)


@pytest.mark.parametrize("height", [12, 24])
@pytest.mark.parametrize("sizes", [(2048, 4096), (2048,)])
def test_image_size_that_moves_has_steps_of_its_own_in_the_same_height(make_recipe, imagenet, height, sizes):
    recipe = make_recipe(sizes=sizes, boundaries=(0.0, 30.0)[: len(sizes)])
    recipe = replace(recipe, image_size=BatchRamp(boundaries=(0.0, 60.0), sizes=(128, 192)))
    lines = curve_text(recipe, imagenet, 9 + 90, height).splitlines()
    assert len(lines) == height
    picture = lines[lines.index("image size (pixels)") + 1 :]
    upper = next(line for line in picture if line.startswith("    192"))
    assert (min(dots(upper)), max(dots(upper))) == (60, 89)


def test_every_column_of_the_rate_has_a_dot(make_recipe, imagenet):
    lines = curve_text(make_recipe(schedule=Cosine(epochs=90.0)), imagenet, 80, 24).splitlines()
    rate = lines[2 : lines.index("global batch size (samples)")]
    assert lines[1] == "learning rate"
    assert {position for line in rate for position in dots(line)} == set(range(80 - AXIS))


def test_batch_that_does_not_move_is_a_sentence(make_recipe, imagenet):
    text = curve_text(make_recipe(sizes=(8192,), boundaries=(0.0,)), imagenet, 80, 24)
    assert text.splitlines()[-1] == "global batch size: 8,192 samples throughout"


@pytest.mark.parametrize("epochs", [0.01, 1.0, 12.5, 90.0, 1000.0])
def test_epoch_axis_starts_at_zero_and_is_labelled_with_round_numbers(make_recipe, imagenet, epochs):
    recipe = make_recipe(warmup=False, sizes=(2048,), boundaries=(0.0,), epochs=epochs)
    axis, labels = curve_text(recipe, imagenet, 100, 24).splitlines()[-3:-1]
    numbers = [float(word) for word in labels.split()[1:]]
    assert labels.startswith("epochs")
    assert numbers[0] == 0.0
    assert numbers[-1] <= epochs
    assert len(numbers) == axis.count("┬") >= 4


def test_picture_too_small_to_read_is_refused(make_recipe, imagenet):
    with pytest.raises(ValueError, match="at least 30 x 12"):
        curve_text(make_recipe(), imagenet, 20, 24)


@pytest.mark.parametrize(("columns", "width"), [(60, 60), (12, 30), (200, 80)])
def test_a_picture_is_as_wide_as_the_terminal_within_bounds(make_recipe, imagenet, monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, curve_text(make_recipe(), imagenet).splitlines())) == width
