"""Values in words."""

import pytest

from recipes.reading.tree_diff import MISSING, Difference, value_text, value_texts


def texts(*values, key="key"):
    return value_texts(Difference(path=("batch", key), values=values, tree_paths=("batch.key",) * len(values)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        ("linear", "linear"),
        ({}, "{}"),
        ({"keep": 0.9, "per": "update"}, "keep 0.9, per update"),
        ([{"from": 0, "size": 8}], "[{from 0, size 8}]"),
        ({"kind": "Constant"}, "Constant"),
    ],
)
def test_values_read_as_a_recipe_says_them(value, text):
    assert value_text(value) == text


def test_floats_are_as_long_as_tells_them_apart():
    assert texts(37.000107714294856, 35.0) == ["37.0001", "35"]
    assert texts(0.3, 0.1 + 0.2) == ["0.3", "0.30000000000000004"]


def test_what_is_missing_is_a_dash_and_in_a_ramp_nothing_that_moves():
    assert texts(MISSING, None) == ["-", "null"]
    assert texts(MISSING, 4096, key="from 30") == ["as before", "4096"]
