"""What a point of a frontier tries first."""

import pytest

from recipes.frontiers.proposals import Optimum, beyond_edge, quasi_random, scaled, value_of_share
from recipes.search_space.ranges import Categorical, Float, Int

RATE = "learning_rate.reference"
SPACE = {RATE: Float(low=0.001, high=10, log=True), "1 - optimizer.momentum": Float(low=0.01, high=1, log=True)}


def test_optima_of_neighbours_are_scaled_by_both_rules():
    near = [Optimum(batch=64, values={RATE: 0.1, "1 - optimizer.momentum": 0.05}, rate_factor=1.0)]
    linear, root = scaled(SPACE, near, batch=256, rate_factor=1.0)
    assert linear == {RATE: 0.4, "1 - optimizer.momentum": 0.05}
    assert root == {RATE: 0.2, "1 - optimizer.momentum": 0.05}


def test_the_full_rate_is_scaled_where_the_recipe_scales_the_reference():
    near = [Optimum(batch=64, values={RATE: 0.1}, rate_factor=2.0)]  # a full rate of 0.2 at 64, by a linear recipe
    linear, root = scaled({RATE: SPACE[RATE]}, near, batch=256, rate_factor=8.0)
    assert (linear[RATE], root[RATE]) == (0.1, 0.05)


def test_proposals_outside_of_a_range_become_its_end_and_equal_ones_one():
    near = [Optimum(batch=64, values={RATE: 9.0}, rate_factor=1.0)]
    assert scaled({RATE: SPACE[RATE]}, near, batch=4096, rate_factor=1.0) == [{RATE: 10}]


def test_quasi_random_values_are_spread_evenly():
    made = quasi_random(SPACE, 16, seed=0, point="sgd 64")
    for path, range_ in SPACE.items():
        eighths = {int(8 * range_.share_between(range_.low, values[path])) for values in made}
        assert len(eighths) >= 7, path  # of eight; 16 independent draws would miss one on average
    assert made == quasi_random(SPACE, 16, seed=0, point="sgd 64")
    assert made != quasi_random(SPACE, 16, seed=1, point="sgd 64")
    assert made != quasi_random(SPACE, 16, seed=0, point="sgd 128")


def test_values_of_every_kind_of_range_lie_in_it():
    ranges = [
        Float(low=-1.0, high=3.0, step=0.5),
        Int(low=1, high=5),
        Int(low=2, high=64, log=True),
        Categorical(choices=("a", "b", None)),
    ]
    for range_ in ranges:
        values = [value_of_share(range_, share / 1000) for share in range(1000)]
        assert all(map(range_.holds, values)), range_
        assert set(range_.ends.values()) <= set(values), range_


def test_a_value_with_a_condition_is_tried_only_with_it():
    space = {
        "optimizer.kind": Categorical(choices=("MomentumSGD", "Lars")),
        "optimizer.trust_coefficient": Float(low=1e-3, high=1e-1, when={"optimizer.kind": ("Lars",)}),
    }
    made = quasi_random(space, 8, seed=0, point="p")
    assert {len(values) for values in made} == {1, 2}
    assert all(("optimizer.trust_coefficient" in values) == (values["optimizer.kind"] == "Lars") for values in made)


@pytest.mark.parametrize("value", [0.0011, 9.0])
def test_beyond_an_edge_the_range_goes_on(value):
    wider = beyond_edge(SPACE, {RATE: value, "1 - optimizer.momentum": 0.1})
    assert list(wider) == [RATE]
    range_ = wider[RATE]
    assert (range_.high < 0.002) == (value < 0.01)
    assert range_.high / range_.low == pytest.approx(10 ** (4 * (1 / 3 + 0.05)), rel=1e-6)
    assert range_.share_between(range_.low, value) == pytest.approx(0.5, abs=0.5)


def test_inside_of_all_ranges_nothing_is_widened():
    choices = {"optimizer.kind": Categorical(choices=("A", "B"))}
    assert beyond_edge(SPACE | choices, {RATE: 0.1, "optimizer.kind": "A"}) == {}
    assert list(beyond_edge({"n": Int(low=1, high=4)}, {"n": 4})) == ["n"]
    assert beyond_edge({"n": Float(low=1.0, high=4.0, step=1.0)}, {"n": 4.0}) == {}


def test_below_the_least_logarithmic_whole_number_nothing_is_searched():
    assert beyond_edge({"n": Int(low=1, high=5, log=True)}, {"n": 1}) == {}
    wider = beyond_edge({"n": Int(low=2, high=64, log=True)}, {"n": 2})["n"]
    assert (wider.low, wider.log) == (1, True)


def test_proposals_are_those_of_frontiers_that_have_begun():
    space = {
        "r": Float(low=0.001, high=10, log=True),
        "m": Float(low=0.0, high=0.3),
        "n": Int(low=2, high=64, log=True),
    }
    first, second = quasi_random(space, 2, seed=0, point="p")
    assert first == {"r": 5.5237, "m": 0.00981734, "n": 4}
    assert second == {"r": 0.55237, "m": 0.109817, "n": 8}
    wider = beyond_edge(space, {"r": 9.0, "m": 0.01, "n": 64})
    assert {path: (range_.low, range_.high) for path, range_ in wider.items()} == {
        "r": (6.309573444801931, 215.44346900318823),
        "m": (-0.09999999999999999, 0.015),
        "n": (53, 204),
    }
