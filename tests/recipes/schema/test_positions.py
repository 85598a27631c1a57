"""Positions: words to epochs, and the exact arithmetic of samples behind them."""

import pytest

from recipes.schema.positions import first_sample_at, last_multiple, multiple, parse_position

N = 1_281_167


@pytest.mark.parametrize(
    ("value", "epochs"),
    [
        (30, 30.0),
        (2.5, 2.5),
        ("30ep", 30.0),
        ("2.5 ep", 2.5),
        ("1e1ep", 10.0),
        (".5ep", 0.5),
        ("1281167sp", 1.0),
        ("1.281167Msp", 1.0),
        ("1281.167ksp", 1.0),
        ("0.5run", 45.0),
        ("500up", 500 * 8192 / N),
        (0, 0.0),
    ],
)
def test_words_are_epochs(value, epochs):
    assert parse_position(value, num_train=N, epochs=90.0, updates_to_samples=lambda updates: updates * 8192) == epochs


def test_part_of_a_run_is_as_exact_as_its_decimal():
    assert parse_position("0.3run", num_train=N, epochs=0.1) == 0.03  # 0.3 * 0.1 is 0.03 only when written out


@pytest.mark.parametrize(
    "value",
    [
        "30 apples",
        "ep",
        "",
        "-1ep",
        "1.5up",
        "0.5sp",
        "1e500ep",
        "30EP",
        *(f"1{'0' * 400}{unit}" for unit in ("ep", "up", "Gsp", " run")),
        "9" * 5000 + "ep",
        f"0.{'0' * 5000}1ep",
        -1,
        float("nan"),
        float("inf"),
        True,
        None,
        [1],
    ],
)
def test_what_is_no_position_is_refused(value):
    with pytest.raises(ValueError, match="position|unit|whole number|before the start"):
        parse_position(value, num_train=N, epochs=90.0, updates_to_samples=lambda updates: updates)


def test_units_that_cannot_be_known_yet_are_refused():
    with pytest.raises(ValueError, match="length of the run"):
        parse_position("0.5run", num_train=N)
    with pytest.raises(ValueError, match="batch sizes"):
        parse_position("5up", num_train=N)


def test_first_sample_is_the_smallest_that_reaches_the_position():
    for num_train in (7, 1500, N):
        for samples in (0, 1, 2, 3, num_train - 1, num_train, 10 * num_train + 3):
            position = samples / num_train
            result = first_sample_at(position, num_train)
            assert result / num_train >= position
            assert result == samples
            assert result == 0 or (result - 1) / num_train < position


def test_decimal_position_that_is_a_whole_sample_is_that_sample():
    assert [first_sample_at(tenth / 10, 1500) for tenth in range(1, 12)] == [150 * tenth for tenth in range(1, 12)]
    assert first_sample_at(0.1, N) == 128_117


def test_multiples_are_those_of_the_decimal_or_of_the_samples():
    assert [multiple(0.1, times) for times in range(12)] == [times / 10 for times in range(12)]
    assert [multiple(5 * 96 / 1500, times) for times in range(20)] == [times * 5 * 96 / 1500 for times in range(20)]
    assert [multiple(8192 / N, times) for times in range(15_000)] == [times * 8192 / N for times in range(15_000)]


def test_multiples_of_less_than_any_sample_are_not_all_0():
    assert multiple(1e-9, 3) == pytest.approx(3e-9)
    assert last_multiple(0.5, 1e-9) == pytest.approx(0.5)
    assert last_multiple(0.5, 1 / 300_000_000) == pytest.approx(0.5)
    assert [last_multiple(0.7, 10.0**-power) for power in (20, 100, 300)] == [0.7] * 3
    assert last_multiple(0.7, 5e-324) == 0.7


def test_last_multiple_holds_at_the_multiple_and_until_the_next():
    for every in (0.1, 1.0, 2.5, 96 / 1500, 8192 / N):
        for times in range(1, 300):
            here = multiple(every, times)
            assert last_multiple(here, every) == here
            assert last_multiple(here + every / 2, every) == here
