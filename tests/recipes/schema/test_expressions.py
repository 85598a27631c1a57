"""Arithmetic over a recipe's values."""

import pytest

from recipes.schema.constraints import Expression

VALUES = {"a.b": 6, "c": 1.5, "train.0.size": 4, "word": "x", "flag": True}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("a.b", 6.0),
        ("a.b * c - 2e-1", 8.8),
        ("-(a.b + train.0.size) / 2", -5.0),
        ("a.b - c - c", 3.0),
        ("  c * 1e3  ", 1500.0),
    ],
)
def test_by_hand(text, number):
    assert Expression(text)(VALUES.__getitem__) == pytest.approx(number)


@pytest.mark.parametrize(
    "text",
    ["", "1 + 2", "a.b +", "a.b ** 2", "f(a)", "a if b else c", "a.b; c", "a < c", "[a]"]
    + ["-" * 5000 + "c", "-" * 50000 + "c", f"c{'+ c' * 900}"],
)
def test_what_is_no_arithmetic_is_refused(text):
    with pytest.raises(ValueError, match="it cannot be read|is none of|names no path"):
        Expression(text)


@pytest.mark.parametrize(("text", "message"), [("word + 1", "'x', which is no number"), ("flag * c", "is no number")])
def test_values_that_are_no_numbers_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Expression(text)(VALUES.__getitem__)


def test_a_division_by_zero_is_refused():
    with pytest.raises(ValueError, match="division by 0"):
        Expression("c / (a.b - 6)")(VALUES.__getitem__)


@pytest.mark.parametrize("text", ["c * 1e999 - c * 1e999", f"c * {'9' * 400}"], ids=["nan", "big"])
def test_what_has_no_number_is_refused(text):
    values = {**VALUES, "c": int(VALUES["c"])}
    with pytest.raises(ValueError, match="it has no number: "):
        Expression(text)(values.__getitem__)
