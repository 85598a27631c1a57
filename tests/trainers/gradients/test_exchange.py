"""Buckets, scaling on 16 bits by hand on one rank, and the exchange of a model's gradients on two and three."""

import contextlib
import re
from pathlib import Path

import chainer
import numpy as np
import pytest
from chainer import links as L
from mpi4py import MPI

from trainers.communicators import Auto, Direct, Ring
from trainers.communicators.connection import Connection
from trainers.communicators.host_staging import connect_on_gpu
from trainers.communicators.wire import BFloat16Wire, Float16Wire, FullWire
from trainers.gradients.exchange import Exchange, buckets_of, wire_factor
from trainers.gradients.flat_gradients import FlatGradients
from trainers.training.device import has_gpu

PROGRAM = Path(__file__).with_name("exchange_on_ranks.py")
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(), re.MULTILINE)


class Deep(chainer.ChainList):
    """Weights of these numbers of elements, in the order in which backward finishes them."""

    def __init__(self, *sizes):
        super().__init__(*(L.Linear(1, size, nobias=True) for size in sizes))

    def forward(self, x):
        for layer in reversed(list(self)):
            x = chainer.functions.sum(layer(x), axis=1, keepdims=True)
        return x


def alone(wire, *sizes, bucket_bytes=10**9, component=None):
    """Gradients and their exchange on one rank."""
    connection = (component or Direct()).connect(MPI.COMM_SELF)
    flat = FlatGradients(Deep(*sizes), np.ones((1, 1), np.float32), connection.allocate)
    assert [slot.parameter.size for slot in flat.slots] == list(sizes)
    return flat, Exchange(flat, connection, wire=wire, bucket_bytes=bucket_bytes, overlap=False)


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (1, [(0, 3, 1), (3, 8, 1), (8, 9, 1), (9, 11, 1)]),
        (12, [(0, 3, 1), (3, 8, 1), (8, 11, 2)]),
        (13, [(0, 8, 2), (8, 11, 2)]),
        (36, [(0, 9, 3), (9, 11, 1)]),
        (37, [(0, 11, 4)]),
        (10**9, [(0, 11, 4)]),
    ],
)
def test_a_bucket_is_closed_by_the_slot_that_reaches_its_size(bucket_bytes, expected):
    flat, _ = alone(FullWire(), 3, 5, 1, 2)
    buckets, bucket_of = buckets_of(flat, bucket_bytes)
    assert [(bucket.span.start, bucket.span.stop, bucket.num_slots) for bucket in buckets] == expected
    assert bucket_of == [number for number, (_, _, slots) in enumerate(expected) for _ in range(slots)]


def test_on_one_rank_the_mean_is_the_scaled_gradient():
    for component in (Direct(), Ring()):
        flat, exchange = alone(FullWire(), 3, 2, component=component, bucket_bytes=1)
        flat.values[...] = [1, 2, 3, 4, 5]
        found = exchange.begin(scale=0.5).finish()
        assert flat.values.tolist() == [0.5, 1, 1.5, 2, 2.5]
        assert found.lost.sum(axis=0).tolist() == [0, 0]
        assert found.seconds <= found.waited_seconds, "nothing goes on beside it"


def test_without_overlap_nothing_is_sent_before_it_is_waited_for():
    flat, exchange = alone(FullWire(), 1, 1, bucket_bytes=1)
    flat.values[...] = [1, 2]
    sent = exchange.begin(scale=2.0)
    sent.finished(0)
    sent.finished(1)
    assert flat.values.tolist() == [1, 2]
    sent.finish()
    sent.finish()
    assert flat.values.tolist() == [2, 4], "once"


def test_where_a_sum_takes_no_time_it_is_asked_for_before_anybody_waits():
    flat, exchange = alone(FullWire(), 1, 1, bucket_bytes=1)
    exchange.connection.waits = False
    flat.values[...] = [1, 2]
    sent = exchange.begin(scale=2.0)
    sent.send_rest()
    assert flat.values.tolist() == [2, 4]
    sent.finish()
    assert flat.values.tolist() == [2, 4], "once"


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
def test_one_worker_with_a_gpu_waits_for_nothing():
    connection = connect_on_gpu(Auto(), MPI.COMM_SELF.Dup())
    assert not connection.waits
    values = connection.allocate(3, np.float32)
    values[...] = 2
    with connection.after(connection.mark()):
        assert connection.mean(values, FullWire(), 1.0, 0.5) == (0, 0)
    assert values.tolist() == [1, 1, 1]
    connection.close()


@pytest.mark.parametrize("exponent", [-100, -20, 0, 16, 100])
def test_each_bucket_fills_float16_whatever_its_size(exponent):
    largest = 2.0**exponent
    flat, exchange = alone(Float16Wire(), 4, 2, bucket_bytes=1)
    flat.values[...] = expected = np.float32([largest, -0.75 * largest, largest * 2.0**-24, 0, 1, 0.75])
    found = exchange.begin(scale=1.0).finish()
    assert (flat.values == expected).all()
    assert found.lost.sum(axis=0).tolist() == [0, 0]


def test_what_is_flushed_beside_a_large_number_is_counted():
    flat, exchange = alone(Float16Wire(), 5, 2, bucket_bytes=1)
    flat.values[...] = [1e10, 1.0, 1e-3, 0.0, -1e-3, 1e-3, 0.0]
    found = exchange.begin(scale=1.0).finish()
    assert found.lost.sum(axis=0).tolist() == [0, 2], "1e-3 twice beside 1e10, and not in its own bucket"
    assert found.lost.tolist() == [[0, 2], [0, 0]]
    assert (flat.values[2:5] == 0).all()
    np.testing.assert_allclose(flat.values[[0, 1, 5]], [1e10, 1.0, 1e-3], rtol=2.0**-6)


@pytest.mark.parametrize("wire", [FullWire(), Float16Wire(), BFloat16Wire()], ids=lambda wire: wire.name)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_has_overflowed_before_is_seen_after(wire, value):
    flat, exchange = alone(wire, 3, 1, bucket_bytes=1)
    flat.values[...] = [1.0, value, 2.0, 3.0]
    exchange.begin(scale=0.5).finish()
    np.testing.assert_array_equal(flat.values, [0.5, value * 0.5, 1.0, 1.5])


def test_numbers_that_bfloat16_cannot_hold_are_counted():
    flat, exchange = alone(BFloat16Wire(), 3)
    flat.values[...] = [3.4e38, 1e-41, 1.0]
    found = exchange.begin(scale=1.0).finish()
    assert found.lost.sum(axis=0).tolist() == [1, 1]
    assert flat.values.tolist() == [np.inf, 0.0, 1.0]


def test_an_exception_while_sending_is_raised_where_it_is_waited_for():
    def sum_of(values, wire):
        raise FloatingPointError("stop here")

    flat, _ = alone(FullWire(), 1)
    connection = Connection(MPI.COMM_SELF, sum_of, num_roundings=0)
    sent = Exchange(flat, connection, wire=FullWire(), bucket_bytes=1, overlap=False).begin(scale=1.0)
    with pytest.raises(FloatingPointError, match="stop here"):
        sent.finish()


def test_a_bucket_is_summed_behind_the_mark_of_when_it_was_sent():
    """The order on a device that computes later than it is asked to, as a GPU does."""
    message = []

    class Marked(Connection):
        def mark(self):
            message.append(flat.values.tolist())
            return len(message)

        @contextlib.contextmanager
        def after(self, mark):
            message.append(f"behind {mark}")
            yield
            message.append("done")

    flat, _ = alone(FullWire(), 1, 2)
    connection = Marked(MPI.COMM_SELF, lambda values, wire: message.append(values.tolist()), num_roundings=0)
    sent = Exchange(flat, connection, wire=FullWire(), bucket_bytes=1, overlap=False).begin(scale=1.0)
    flat.values[...] = [1, 2, 3]
    sent.finish()
    assert message == [[1, 2, 3], "behind 1", [1], "done", [1, 2, 3], "behind 5", [2, 3], "done"]


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def launch(request, run_on_ranks):
    return run_on_ranks(request.param, PROGRAM)


@pytest.mark.mpi
@pytest.mark.parametrize("check", CHECKS)
def test_on_real_ranks(launch, check):
    assert f"passed {check}\n" in launch.stdout, f"failed here or in an earlier check:\n{launch.stderr}"


@pytest.mark.mpi
def test_all_ranks_end_well(launch):
    assert len(CHECKS) == 6
    assert launch.returncode == 0, launch.stderr


def test_factor_of_16_bits_by_hand():
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
