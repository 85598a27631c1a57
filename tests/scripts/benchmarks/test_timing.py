"""The parts that the benchmarks share, by hand."""

import doctest

import pytest


@pytest.mark.parametrize("name", ["timing", "timed_training", "methods", "methods_report", "pruning"])
def test_doctests(name):
    assert doctest.testmod(__import__(name)).failed == 0


def test_a_table_in_markdown():
    from timing import head, row

    assert head(["a", "b"]).splitlines() == ["| a | b |", "|---|---|"]
    assert row([1, "x"]) == "| 1 | x |"
