"""What is chosen by measurement: who competes on which wire, what counts as its cost."""

import math
import statistics
import time

import numpy as np
import pytest
from mpi4py import MPI

from trainers.communicators import auto
from trainers.communicators.auto import Fastest, cost_of
from trainers.communicators.connection import Connection
from trainers.communicators.wire import WIRES, FullWire
from trainers.gradients.exchange import wire_factor


class Sums(Connection):
    """A sum over one worker, which is nothing to do, and how often it was asked for."""

    def __init__(self, name, num_roundings, *, sent=1.0, sums_16_bits=True):
        self.name, self.calls = name, 0
        options = {"num_roundings": num_roundings, "sent": sent, "sums_16_bits": sums_16_bits}
        super().__init__(MPI.COMM_SELF.Dup(), self._sum, **options)

    def _sum(self, values, wire):
        self.calls += 1


@pytest.fixture
def fastest(monkeypatch):
    """fastest(*sums): a connection that chooses among them in all its repeats, closed afterwards."""
    monkeypatch.setattr(auto, "_ENOUGH_SECONDS", math.inf)  # a busy machine makes fewer
    made = []

    def make(*sums):
        made.append(Fastest(MPI.COMM_SELF.Dup(), {one.name: one for one in sums}))
        return made[-1]

    yield make
    for connection in made:
        connection.close()


def test_the_scale_of_16_bits_leaves_room_for_those_alone_that_may_sum_them(fastest):
    ring, direct = Sums("Ring", 1023), Sums("Direct", 1)
    connection = fastest(ring, direct, Sums("MPI", 5, sums_16_bits=False))
    assert connection.num_roundings == 1
    wire = WIRES["float16"]()
    assert wire_factor(1.9, wire, connection.num_roundings) == 2.0**15, "by hand: 1.9 * 2^15 < 65504 < 1.9 * 2^16"
    assert wire_factor(1.9, wire, ring.num_roundings) == 2.0**14, "65504 / 1.649 < 1.9 * 2^15"
    connection.sum(np.ones(5, np.float32), wire)
    assert (ring.calls, direct.calls) == (0, 1)


@pytest.mark.parametrize(("num_roundings", "calls"), [(32, 9), (33, 0)])
def test_on_16_bits_more_than_32_roundings_are_too_many(fastest, num_roundings, calls):
    one, sums = Sums("one", 1), Sums("more", num_roundings)
    connection = fastest(one, sums)
    assert connection.num_roundings == (32 if calls else 1)
    connection._fastest(np.ones(5, np.float32), WIRES["bfloat16"](), 1.0)
    assert sums.calls == calls
    connection._fastest(np.ones(5, np.float32), FullWire(), 1.0)
    assert sums.calls == calls + 9, "with 32 bits it competes"


def test_who_is_alone_is_not_measured(fastest):
    alone, by_mpi = Sums("through host memory", 0), Sums("MpiAllreduce", 0, sums_16_bits=False)
    connection = fastest(alone, by_mpi)
    for _ in range(2):
        connection.sum(np.ones(1_000_000, np.float32), WIRES["float16"]())
    assert (alone.calls, by_mpi.calls) == (2, 0)
    assert connection.choices == ["through host memory for buckets like 4 MB, alone on float16"]


def test_each_sums_nine_times_for_a_size_and_the_chosen_one_once_more(fastest):
    sums = [Sums("one", 0), Sums("other", 0)]
    connection = fastest(*sums)
    for count in (5, 7, 8):  # 8 is another power of two
        connection.sum(np.ones(count, np.float32), FullWire())
    assert sum(one.calls for one in sums) == 2 * 2 * 9 + 3
    assert len(connection.choices) == 2


@pytest.mark.parametrize(("seconds", "calls"), [((0.0, 0.0, 0.2), 3), ((0.04,) * 9, 3), ((0.0, 1.2), 3), ((1.2,), 1)])
def test_what_takes_longer_is_repeated_less_and_its_median_counts(seconds, calls):
    waits = []

    def run():
        waits.append(seconds[min(len(waits), len(seconds) - 1)])
        time.sleep(waits[-1])

    cost = cost_of(MPI.COMM_SELF, run, 0)
    assert len(waits) == calls
    assert statistics.median(waits) <= cost < statistics.median(waits) + 0.15


@pytest.mark.parametrize("sent", [0.0, 1.0])
def test_nothing_is_sent_where_the_first_sends_nothing(fastest, sent):
    assert fastest(Sums("one", 0, sent=sent), Sums("other", 0, sent=None)).sends_nothing() is (sent == 0.0)
