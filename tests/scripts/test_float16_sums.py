"""Sums of 1,024 workers' gradients in 16 bits; the algorithms of the script are the communicators', bit for bit."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from trainers.communicators import Direct, HalvingDoubling, Ring
from trainers.communicators.wire import BFloat16Wire, Float16Wire
from trainers.exchange import wire_factor

SCRIPT = Path(__file__).parents[2] / "scripts" / "float16_sums.py"
RANKS, VALUES = 1024, 2048
COMPONENTS = {"direct": Direct, "halving": HalvingDoubling, "ring": Ring}


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


class Threads:
    """Workers that are threads of this process, with the calls of MPI that the communicators use."""

    def __init__(self, size):
        self.size = size
        self.boxes = {}
        self.changed = threading.Condition()

    def run(self, work):
        """What work(mpi) gives on each worker."""
        found = [None] * self.size

        def one(rank):
            found[rank] = work(_Rank(self, rank))

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a worker waits for a message that never comes"
        return found


class _Rank:
    def __init__(self, threads, rank):
        self._threads, self.rank, self.size = threads, rank, threads.size

    def Send(self, array, dest):
        with self._threads.changed:
            self._threads.boxes.setdefault((self.rank, dest), []).append(array.copy())
            self._threads.changed.notify_all()

    def Recv(self, array, source):
        with self._threads.changed:
            assert self._threads.changed.wait_for(lambda: self._threads.boxes.get((source, self.rank)), timeout=30)
            array[...] = self._threads.boxes[source, self.rank].pop(0)

    def Sendrecv(self, sent, dest, recvbuf, source):
        self.Send(sent, dest)
        self.Recv(recvbuf, source)

    def Isend(self, array, dest):
        self.Send(array, dest)
        return _Request(lambda: None)

    def Irecv(self, array, source):
        return _Request(lambda: self.Recv(array, source))


class _Request:
    def __init__(self, wait):
        self.Wait = wait


@pytest.mark.parametrize("wire", [Float16Wire, BFloat16Wire])
@pytest.mark.parametrize("algorithm", COMPONENTS)
@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_an_algorithm_in_one_array_is_the_communicators(sums, algorithm, ranks, wire):
    rows = sums.gradients(ranks, 203, 1.0)
    expected = sums.ALGORITHMS[algorithm][0](rows, wire())

    def work(mpi):
        values = rows[mpi.rank].copy()
        connection = COMPONENTS[algorithm]().connect(mpi)
        connection.sum(values, wire())
        return values, connection.num_roundings

    for values, num_roundings in Threads(ranks).run(work):
        assert values.tobytes() == expected.tobytes()
        assert num_roundings == sums.ALGORITHMS[algorithm][1](ranks)


def test_nothing_overflows_where_chainermns_order_does(figures):
    overflowed = {case for case, ways in figures.items() if ways["chainermn"][1]}
    assert {("common", 1e-2), ("equal", 1e-2)} <= overflowed
    assert all(ways[way][1] == 0 for ways in figures.values() for way in (*COMPONENTS, "divided"))


def test_nothing_becomes_zero_where_a_division_before_the_cast_makes_zeros(figures):
    assert figures["none", 1e-5]["divided"][2] > VALUES / 4
    assert figures["none", 1e-6]["divided"][2] == VALUES
    assert all(ways[way][2] == 0 for ways in figures.values() for way in COMPONENTS)


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
