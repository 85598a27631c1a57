"""Ranges of a search's space, and spaces some of whose ranges belong to some trials only."""

import pytest
from optuna.trial import FixedTrial

from recipes.search_space.ranges import Categorical, Float, Int, active_values, condition_values, suggested


@pytest.mark.parametrize(
    ("made", "inside", "outside"),
    [
        (Float(low=0.1, high=1.0), [0.1, 1.0, 1], [0.09, 1.1, True, "0.5", None]),
        (Float(low=0.0, high=1.0, step=0.1), [0.3, 0.7000000000000001], [0.35]),
        (Float(low=0.0, high=0.3, step=0.1), [0.3], [0.30000000000000004]),
        (Int(low=1, high=9, step=4), [1, 5, 9], [2, 13, 5.0, True]),
        (Categorical(choices=(1, "a", None)), [1, "a", None], ["b", 2]),
    ],
)
def test_what_lies_in_a_range(made, inside, outside):
    assert all(made.holds(value) for value in inside)
    assert not any(made.holds(value) for value in outside)
    assert isinstance(made, Categorical) or made.holds(made.nearest(made.high))


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (Float, {"low": 1.0, "high": 1.0}, "Float.high must be above low, got 1.0"),
        (Float, {"low": 0.0, "high": 1.0, "log": True}, "Float.low must be above 0 where log is true, got 0.0"),
        (Float, {"low": 0.1, "high": 1.0, "log": True, "step": 0.1}, "Float.step must be null where log is true"),
        (Float, {"low": 0.0, "high": 1.0, "step": 2.0}, "Float.step must be above 0 and at most high - low, got 2.0"),
        (Float, {"low": 0.0, "high": 1.0, "step": 0.3}, "Float.high must be low plus whole steps, such as 0.9"),
        (Int, {"low": 1, "high": 6, "step": 4}, "Int.high must be low plus whole steps, such as 5, got 6"),
        (Int, {"low": 0, "high": 4, "log": True}, "Int.low must be above 0 where log is true, got 0"),
        (Int, {"low": 1, "high": 4, "log": True, "step": 2}, "Int.step must be 1 where log is true, got 2"),
        (Categorical, {"choices": ()}, "Categorical.choices must hold at least one value"),
        (Categorical, {"choices": (1, 1)}, "Categorical.choices must differ from each other"),
        (Categorical, {"choices": ([1],)}, "Categorical.choices must be numbers, texts, true, false or null"),
    ],
)
def test_refused(cls, fields, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        cls(**fields)


SPACE = {
    "depth": Int(low=1, high=2, when={"word": ("b", "c")}),
    "word": Categorical(choices=("a", "b", "c")),
    "rate": Float(low=0.0, high=1.0, when={"depth": (2,)}),
}


@pytest.mark.parametrize(
    "values", [{"word": "a"}, {"word": "c", "depth": 1}, {"word": "b", "depth": 2, "rate": 0.5}], ids=str
)
def test_a_trial_is_asked_for_what_it_has_and_in_the_order_of_the_conditions(values):
    """Optuna's FixedTrial refuses to be asked for anything else."""
    assert list(suggested(SPACE, FixedTrial(values)).items()) == list(values.items())


def test_a_value_whose_condition_has_no_value_is_left_out():
    assert active_values(SPACE, {"rate": 0.5, "depth": 2}.__getitem__) == {}


def test_circumstances_are_every_combination_of_the_named_values_and_what_these_need():
    assert condition_values(SPACE, "word") == [{}]
    assert condition_values(SPACE, "depth") == [{"word": "b"}, {"word": "c"}]
    assert condition_values(SPACE, "rate") == [{"word": "b", "depth": 2}]


def test_parts_of_a_range_are_logarithmic_where_its_draws_are():
    rate, momentum = Float(low=0.001, high=10, log=True), Float(low=0.0, high=0.4)
    assert rate.share_between(0.01, 0.1) == pytest.approx(0.25)
    assert rate.share_between(0.1, 0.01) == pytest.approx(-0.25)
    assert rate.moved(10, 0.25) == pytest.approx(100)
    assert momentum.share_between(0.1, 0.3) == pytest.approx(0.5)
    assert momentum.moved(0.3, -0.5) == pytest.approx(0.1)
    assert rate.moved(0, 0.1) == pytest.approx(0.9999)  # a weight decay of 0 has no logarithm
