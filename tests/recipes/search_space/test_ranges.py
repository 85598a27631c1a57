"""Ranges of a search's space."""

import pytest

from recipes.search_space.ranges import Categorical, Float, Int


def test_ends_are_what_a_recipe_must_allow():
    assert Float(low=0.1, high=1.0).ends == {("low",): 0.1, ("high",): 1.0}
    assert Int(low=1, high=5).ends == {("low",): 1, ("high",): 5}
    assert Categorical(choices=("a", None)).ends == {("choices", 0): "a", ("choices", 1): None}


@pytest.mark.parametrize(
    ("made", "points", "values"),
    [
        (Float(low=1.0, high=3.0), 3, [1.0, 2.0, 3.0]),
        (Float(low=0.01, high=1.0, log=True), 3, [0.01, pytest.approx(0.1), 1.0]),
        (Float(low=0.0, high=1.0, step=0.5), 9, [0.0, 0.5, 1.0]),
        (Float(low=0.0, high=0.7, step=0.5), 2, [0.0, 0.5]),
        (Float(low=2.0, high=3.0), 1, [2.0]),
        (Int(low=1, high=5), 3, [1, 3, 5]),
        (Int(low=0, high=10, step=4), 9, [0, 4, 8]),
        (Int(low=1, high=100, log=True), 3, [1, 10, 100]),
        (Categorical(choices=(True, "a")), 1, [True, "a"]),
    ],
)
def test_points_of_a_grid(made, points, values):
    assert made.spread(points) == values
    assert all(made.holds(value) for value in made.spread(points))


@pytest.mark.parametrize(
    ("made", "inside", "outside"),
    [
        (Float(low=0.1, high=1.0), [0.1, 1.0, 1], [0.09, 1.1, True, "0.5", None]),
        (Float(low=0.0, high=1.0, step=0.1), [0.3, 0.7000000000000001], [0.35]),
        (Int(low=1, high=9, step=4), [1, 5, 9], [2, 13, 5.0, True]),
        (Categorical(choices=(1, "a", None)), [1, "a", None], [True, 1.0, "b"]),
    ],
)
def test_what_lies_in_a_range(made, inside, outside):
    assert all(made.holds(value) for value in inside)
    assert not any(made.holds(value) for value in outside)


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (Float, {"low": 1.0, "high": 1.0}, "Float.high must be above low, got 1.0"),
        (Float, {"low": 0.0, "high": 1.0, "log": True}, "Float.low must be above 0 where log is true, got 0.0"),
        (Float, {"low": 0.0, "high": float("inf")}, "Float.high must be finite, got inf"),
        (Float, {"low": 0.1, "high": 1.0, "log": True, "step": 0.1}, "Float.step must be null where log is true"),
        (Float, {"low": 0.0, "high": 1.0, "step": 2.0}, "Float.step must be above 0 and at most high - low, got 2.0"),
        (Int, {"low": 0, "high": 4, "log": True}, "Int.low must be at least 1 where log is true, got 0"),
        (Int, {"low": 1, "high": 4, "log": True, "step": 2}, "Int.step must be 1 where log is true, got 2"),
        (Categorical, {"choices": ()}, "Categorical.choices must hold at least one value"),
        (Categorical, {"choices": (1, 1)}, "Categorical.choices must differ from each other"),
        (Categorical, {"choices": ([1],)}, "Categorical.choices must be numbers, texts, true, false or null"),
    ],
)
def test_refused(cls, fields, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        cls(**fields)
