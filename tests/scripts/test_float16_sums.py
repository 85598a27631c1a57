"""Sums of 1,024 workers' gradients in 16 bits; the algorithms of the script are the communicators', bit for bit."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainers.communicators.wire import BFloat16Wire, Float16Wire
from trainers.gradients.exchange import wire_factor

SCRIPT = Path(__file__).parents[2] / "scripts" / "float16_sums.py"
RANKS, VALUES = 1024, 2048
WAYS = ("direct", "halving", "ring")


@pytest.fixture(scope="module")
def sums():
    spec = importlib.util.spec_from_file_location("float16_sums", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures(sums):
    """{(large, deviation): {way: (error, infinite, zero)}} of 1,024 workers in float16."""
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            (large, deviation): {
                name: found
                for name, *found in sums.figures(sums.gradients(RANKS, VALUES, deviation, large), Float16Wire())
            }
            for large in sums.LARGE
            for deviation in sums.DEVIATIONS
        }


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 8])
def test_an_algorithm_in_one_array_is_the_communicators(run_on_ranks, ranks):
    program = Path(__file__).with_name("float16_sums_on_ranks.py")
    done = run_on_ranks(ranks, program, SCRIPT)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert sorted(lines) == sorted([name, wire, "same", "bits"] for name in WAYS for wire in ("float16", "bfloat16"))


def test_nothing_overflows_where_chainermns_order_does(figures):
    overflowed = {case for case, ways in figures.items() if ways["chainermn"][1]}
    assert {("common", 1e-2), ("equal", 1e-2)} <= overflowed
    assert all(ways[way][1] == 0 for ways in figures.values() for way in (*WAYS, "divided"))


def test_nothing_becomes_zero_where_a_division_before_the_cast_makes_zeros(figures):
    assert figures["none", 1e-5]["divided"][2] > VALUES / 4
    assert figures["none", 1e-6]["divided"][2] == VALUES
    assert all(ways[way][2] == 0 for ways in figures.values() for way in WAYS)


def test_with_a_float32_sum_the_error_is_at_most_a_thousandth(figures):
    assert max(ways["direct"][0] for ways in figures.values()) <= 1e-3


def test_with_partial_sums_in_float16_it_is_at_most_a_hundredth(figures):
    assert max(ways["halving"][0] for ways in figures.values()) <= 1e-3, "ten roundings"
    assert max(ways["ring"][0] for (large, _), ways in figures.items() if large in ("none", "single")) <= 1e-2


def test_a_ring_of_1024_loses_more_where_all_workers_have_a_like_large_number(figures):
    """There a worker's number is no more than a rounding of the partial sum: many workers want another algorithm."""
    assert max(ways["ring"][0] for (large, _), ways in figures.items() if large == "common") > 1e-2
    assert max(ways["ring"][0] for (large, _), ways in figures.items() if large == "equal") > 5e-2


def test_the_factor_by_hand():
    assert wire_factor(1.0, Float16Wire(), 0) == 2.0**15, "2**16 lies above 65,504"
    assert wire_factor(65504 / (1 + 2.0**-11) ** 2 / 4, Float16Wire(), 1) == 4
    assert wire_factor(65504 / 4, Float16Wire(), 1) == 2, "a rounding upwards would reach the end"
    assert wire_factor(1e10, Float16Wire(), 0) == 2.0**-18
    assert wire_factor(1e-40, Float16Wire(), 0) == 2.0**126, "a number of float32"
    for total in (0.0, np.inf, np.nan):
        assert wire_factor(total, Float16Wire(), 0) == 1
    assert wire_factor(1e30, BFloat16Wire(), 5) == 1


@pytest.mark.parametrize("num_roundings", [1, 10, 1023])
def test_the_largest_sums_stay_within_float16_after_every_rounding(num_roundings):
    wire = Float16Wire()
    for total in np.geomspace(1e-3, 1e9, 50):
        scaled = total * wire_factor(total, wire, num_roundings)
        assert scaled * (1 + wire.epsilon) ** num_roundings <= wire.largest
        assert 2 * scaled * (1 + wire.epsilon) ** (num_roundings + 1) > wire.largest, "a power of two more is too much"


def test_the_table_of_a_few_workers():
    command = [sys.executable, str(SCRIPT), "--ranks", "8", "--values", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("| deviation | large | direct: error, inf, zero |")
    assert len(lines) == 2 + 4 * 5
