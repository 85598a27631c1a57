"""The parts that the benchmarks share, by hand."""

import doctest

import pytest


@pytest.mark.parametrize("name", ["timing", "slow_network", "methods", "pruning"])
def test_doctests(name):
    assert doctest.testmod(__import__(name)).failed == 0


def test_medians_are_those_of_the_turns_of_a_round():
    from timing import medians_of_turns

    order, values = [], {"a": iter([1, 2, 9, 4, 5, 6]), "b": iter(range(6))}

    def call(name):
        order.append(name)
        return next(values[name])

    calls = {name: lambda name=name: call(name) for name in values}
    assert medians_of_turns(calls, rounds=2, turns=3) == {"a": [2, 5], "b": [1, 4]}
    assert "".join(order) == "abba" * 3
