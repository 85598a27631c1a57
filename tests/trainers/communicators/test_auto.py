"""What is chosen by measurement: who competes on which wire, what counts as its cost, and between GPUs without NCCL."""

import json
import math
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from trainers.communicators import auto
from trainers.communicators.auto import Candidate, Fastest, cost_of
from trainers.communicators.connection import Connection
from trainers.communicators.wire import WIRES, FullWire
from trainers.gradients.exchange import wire_factor

PROGRAM = Path(__file__).with_name("fastest_on_ranks.py")


class Sums:
    """A sum over one worker, which is nothing to do, and how often it was asked for."""

    def __init__(self, name, num_roundings, **more):
        self.calls = 0
        connection = Connection(MPI.COMM_SELF.Dup(), self._sum, num_roundings=num_roundings, sent=more.pop("sent", 1.0))
        self.candidate = Candidate(name=name, connection=connection, **more)

    def _sum(self, values, wire):
        self.calls += 1


@pytest.fixture
def fastest(monkeypatch):
    """fastest(*sums, **options): a connection that chooses among them in all its repeats, closed afterwards."""
    monkeypatch.setattr(auto, "_ENOUGH_SECONDS", math.inf)  # a busy machine makes fewer
    made = []

    def make(*sums, **options):
        made.append(Fastest(MPI.COMM_SELF.Dup(), [one.candidate for one in sums], **options))
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
    assert wire_factor(1.9, wire, ring.candidate.connection.num_roundings) == 2.0**14, "65504 / 1.649 < 1.9 * 2^15"
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
    alone, by_mpi = Sums("through host memory", 0), Sums("CudaAwareMpi", 0, sums_16_bits=False)
    connection = fastest(alone, by_mpi, warms_up=True)
    for _ in range(2):
        connection.sum(np.ones(1_000_000, np.float32), WIRES["float16"]())
    assert (alone.calls, by_mpi.calls) == (2, 0)
    assert connection.choices == ["through host memory for buckets like 4 MB, alone on float16"]


@pytest.mark.parametrize(("warms_up", "calls"), [(False, 9), (True, 10)])
def test_each_sums_nine_times_for_a_size_and_the_chosen_one_once_more(fastest, warms_up, calls):
    sums = [Sums("one", 0), Sums("other", 0)]
    connection = fastest(*sums, warms_up=warms_up)
    for count in (5, 7, 8):  # 8 is another power of two
        connection.sum(np.ones(count, np.float32), FullWire())
    assert sum(one.calls for one in sums) == 2 * 2 * calls + 3
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


@pytest.fixture(scope="module", params=[1, 2, pytest.param(4, marks=pytest.mark.slow)])
def found(request, run_on_ranks):
    """What the program saw, for each size of nodes: by what is slow and by wire, the choices of all ranks."""
    done = run_on_ranks(request.param, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [of_nodes["several_nodes"] for of_nodes in found] == {1: [False], 2: [True, False], 4: [True]}[request.param]
    return found


@pytest.mark.mpi
def test_between_gpus_without_nccl_whatever_waits_longer_for_its_gpu_is_not_chosen(found):
    """Also what a stream still has to do when a sum returns counts: the copy back to the GPU."""
    for of_nodes in found:
        for slow, chosen in {"upload": "CudaAwareMpi", "mpi": "through host memory"}.items():
            assert of_nodes[slow]["float32"][-1].startswith(f"{chosen} for buckets like 0.004 MB (")


@pytest.mark.mpi
def test_the_first_sum_of_each_is_not_timed_between_gpus(found):
    for of_nodes in found:
        assert of_nodes["first"]["float32"][-1].startswith("through host memory for buckets like 0.004 MB (")


@pytest.mark.mpi
def test_on_16_bits_the_host_sums_between_gpus_without_nccl(found):
    for of_nodes in found:
        assert "through host memory for buckets like 0.004 MB, alone on float16" in of_nodes["upload"]["float16"]


@pytest.mark.mpi
def test_what_sums_in_host_memory_chooses_by_itself(found):
    for of_nodes in found:
        first, *more = of_nodes["mpi"]["float32"]
        if of_nodes["several_nodes"]:
            assert first.startswith("rings by ")
            assert more[0].endswith(" ms)")
        else:
            assert first == "SharedWindow: all workers share memory"
        assert len(more) == 1 + of_nodes["several_nodes"]
