"""Buckets, scaling on 16 bits by hand on one rank, and the exchange of a model's gradients on two and three."""

import contextlib
import itertools

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from mpi4py import MPI

from trainers.communicators import Auto, Direct, HalvingDoubling, Ring, SharedWindow
from trainers.communicators.connection import Connection
from trainers.communicators.host_staging import connect_on_gpu
from trainers.communicators.wire import WIRES, BFloat16Wire, Float16Wire, FullWire
from trainers.gradients.exchange import Exchange, buckets_of, wire_factor
from trainers.gradients.flat_gradients import FlatGradients, backward_order
from trainers.models import SmallCNN
from trainers.runs.phase_clock import PhaseClock, RankSeconds
from trainers.training.device import has_gpu

WORLD = MPI.COMM_WORLD


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
    flat = FlatGradients(backward_order(Deep(*sizes), np.ones((1, 1), np.float32)), connection.allocate)
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
        stats = exchange.begin(scale=0.5).finish()
        assert flat.values.tolist() == [0.5, 1, 1.5, 2, 2.5]
        assert stats.lost.sum(axis=0).tolist() == [0, 0]
        assert stats.seconds <= stats.waited_seconds, "nothing goes on beside it"


@pytest.mark.parametrize("waits", [True, False])
def test_without_overlap_nothing_is_sent_before_it_is_waited_for_unless_a_sum_takes_no_time(waits):
    flat, exchange = alone(FullWire(), 1, 1, bucket_bytes=1)
    exchange.connection.waits = waits
    flat.values[...] = [1, 2]
    sent = exchange.begin(scale=2.0)
    sent.finished(0)
    sent.finished(1)
    assert flat.values.tolist() == [1, 2]
    sent.send_rest()
    assert flat.values.tolist() == ([1, 2] if waits else [2, 4])
    sent.finish()
    sent.finish()
    assert flat.values.tolist() == [2, 4], "once"


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
def test_one_worker_with_a_gpu_waits_for_nothing():
    connection = connect_on_gpu(Auto(), MPI.COMM_SELF.Dup())
    assert not connection.waits
    values = connection.allocate(3, np.float32)
    values[...] = 2
    with connection.on_stream_after(connection.record_event()):
        assert connection.mean(values, FullWire(), 1.0, 0.5) == (0, 0)
    assert values.tolist() == [1, 1, 1]
    connection.close()


@pytest.mark.parametrize("exponent", [-100, -20, 0, 16, 100])
def test_each_bucket_fills_float16_whatever_its_size(exponent):
    largest = 2.0**exponent
    flat, exchange = alone(Float16Wire(), 4, 2, bucket_bytes=1)
    flat.values[...] = expected = np.float32([largest, -0.75 * largest, largest * 2.0**-24, 0, 1, 0.75])
    stats = exchange.begin(scale=1.0).finish()
    assert (flat.values == expected).all()
    assert stats.lost.sum(axis=0).tolist() == [0, 0]


def test_what_is_flushed_beside_a_large_number_is_counted():
    flat, exchange = alone(Float16Wire(), 5, 2, bucket_bytes=1)
    flat.values[...] = [1e10, 1.0, 1e-3, 0.0, -1e-3, 1e-3, 0.0]
    stats = exchange.begin(scale=1.0).finish()
    assert stats.lost.sum(axis=0).tolist() == [0, 2], "1e-3 twice beside 1e10, and not in its own bucket"
    assert stats.lost.tolist() == [[0, 2], [0, 0]]
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
    stats = exchange.begin(scale=1.0).finish()
    assert stats.lost.sum(axis=0).tolist() == [1, 1]
    assert flat.values.tolist() == [np.inf, 0.0, 1.0]


def test_a_bucket_is_summed_after_the_event_of_when_it_was_sent():
    """The order on a device that computes later than it is asked to, as a GPU does."""
    message = []

    class Marked(Connection):
        def record_event(self):
            message.append(flat.values.tolist())
            return len(message)

        @contextlib.contextmanager
        def on_stream_after(self, event):
            message.append(f"behind {event}")
            yield
            message.append("done")

    flat, _ = alone(FullWire(), 1, 2)
    connection = Marked(MPI.COMM_SELF, lambda values, wire: message.append(values.tolist()), num_roundings=0)
    sent = Exchange(flat, connection, wire=FullWire(), bucket_bytes=1, overlap=False).begin(scale=1.0)
    flat.values[...] = [1, 2, 3]
    sent.finish()
    assert message == [[1, 2, 3], "behind 1", [1], "done", [1, 2, 3], "behind 5", [2, 3], "done"]


def test_factor_of_16_bits_by_hand():
    assert wire_factor(1.0, Float16Wire(), 0) == 2.0**15, "2**16 lies above 65,504"
    assert wire_factor(65504 / (1 + 2.0**-11) ** 2 / 4, Float16Wire(), 1) == 4
    assert wire_factor(65504 / 4, Float16Wire(), 1) == 2, "a rounding upwards would reach the end"
    assert wire_factor(65504 / 4, Float16Wire(), 0) == 2, "the whole sum is rounded once more"
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


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_on_ranks(run_on_ranks, ranks):
    """Exchanges of a model's gradients while backward goes on, against one rank with all samples."""
    done = run_on_ranks(ranks, __file__)
    assert done.returncode == 0, done.stdout + done.stderr


SAMPLES = 6 * WORLD.size
MICRO_BATCHES = 2


def model_and_images():
    random = np.random.RandomState(0)
    model = SmallCNN(width=4).build(num_classes=3, channels=1, image_size=8)
    for _, parameter in sorted(model.namedparams()):
        parameter.array[...] = random.normal(size=parameter.shape, scale=0.3)
    return model, random.normal(size=(SAMPLES, 1, 8, 8)).astype(np.float32)


def backward(model, images):
    with chainer.using_config("train", False):  # batch normalisation by sample
        y = model(images)
        F.sum(F.tanh(y) * np.array([1, -2, 3], np.float32)).backward()


def mean_of_all_samples():
    model, images = model_and_images()
    model.cleargrads()
    backward(model, images)
    return {path: parameter.grad / SAMPLES for path, parameter in model.namedparams()}


def one_update(component, wire, *, bucket_bytes, overlap, updates=2):
    """Gradients by path after the last of some equal updates, and the figures of the exchange."""
    model, images = model_and_images()
    connection = component.connect(WORLD.Dup())
    flat = FlatGradients(backward_order(model, images[:1]), connection.allocate)
    exchange = Exchange(flat, connection, wire=wire, bucket_bytes=bucket_bytes, overlap=overlap)
    own = np.split(np.split(images, WORLD.size)[WORLD.rank], MICRO_BATCHES)
    for _ in range(updates):
        flat.begin_update()
        with flat.collect():
            backward(model, own[0])
        sent = exchange.begin(scale=1 / SAMPLES)
        with flat.collect(sent.finished):
            backward(model, own[1])
        flat.zero_unwritten()
        stats = sent.finish()
    gradients = {path: array.copy() for path, array in flat.by_path(flat.values).items()}
    exchange.close()
    return gradients, stats


def check_the_mean_is_that_of_all_samples_on_one_rank():
    expected = mean_of_all_samples()
    for component, overlap in itertools.product((Direct(), Ring(), SharedWindow(), Auto()), (False, True)):
        actual, stats = one_update(component, FullWire(), bucket_bytes=200, overlap=overlap)
        for path, gradient in expected.items():
            np.testing.assert_allclose(actual[path], gradient, rtol=1e-4, atol=1e-6, err_msg=f"{component} {path}")
        assert stats.lost.sum(axis=0).tolist() == [0, 0]
        assert stats.seconds > 0
        assert stats.waited_seconds > 0


def check_on_16_bits_it_is_so_within_their_precision():
    expected = mean_of_all_samples()
    for name, component in itertools.product(("float16", "bfloat16"), (Direct(), HalvingDoubling())):
        wire = WIRES[name]()
        actual, _ = one_update(component, wire, bucket_bytes=200, overlap=True)
        error = sum(float(np.square(actual[path] - expected[path]).sum()) for path in expected)
        norm = sum(float(np.square(gradient).sum()) for gradient in expected.values())
        assert 0 < (error / norm) ** 0.5 < wire.epsilon * WORLD.size, (name, component)


def check_what_16_bits_lose_is_counted_by_bucket_over_all_ranks():
    model, images = model_and_images()
    connection = Direct().connect(WORLD.Dup())
    flat = FlatGradients(backward_order(model, images[:1]), connection.allocate)
    exchange = Exchange(flat, connection, wire=WIRES["float16"](), bucket_bytes=1, overlap=True)
    flat.values[...] = 1.0
    second = flat.values[exchange.buckets[1].span]
    second[0] = 1e10  # beside which 1e-3 vanishes, on every rank but 0 twice
    second[1 : 2 if WORLD.rank == 0 else 3] = 1e-3
    exchanged = exchange.begin(scale=1.0).finish()
    seconds = RankSeconds(PhaseClock(), WORLD, counts_lost=True).gather(exchanged)
    exchange.close()
    if WORLD.rank == 0:
        line, num_lost = seconds.as_line(), 2 * WORLD.size - 1
        assert line["wire_flushed_by_bucket"] == [0, num_lost, *[0] * (len(exchange.buckets) - 2)]
        assert (line["wire_overflowed"], line["wire_flushed"]) == (0, num_lost)


def check_all_ranks_have_the_same_bits_with_overlap_and_without():
    for component, name, size in itertools.product((Direct(), SharedWindow()), WIRES, (1, 10**9)):
        gradients_of_both = [
            one_update(component, WIRES[name](), bucket_bytes=size, overlap=overlap)[0] for overlap in (0, 1)
        ]
        bits = [{path: gradient.tobytes() for path, gradient in gradients.items()} for gradients in gradients_of_both]
        assert bits[0] == bits[1], (component, name, size)
        assert len(set(map(str, WORLD.allgather(bits[0])))) == 1, (component, name, size)


def check_with_overlap_the_first_bucket_leaves_before_backward_ends():
    sums = []
    sent_after = []

    def sum_of(values, wire):
        sums.append(len(values))
        WORLD.Allreduce(MPI.IN_PLACE, values)

    model, images = model_and_images()
    connection = Connection(WORLD.Dup(), sum_of, num_roundings=0)
    flat = FlatGradients(backward_order(model, images[:1]))
    exchange = Exchange(flat, connection, wire=FullWire(), bucket_bytes=1, overlap=True)
    flat.begin_update()
    sent = exchange.begin(scale=1.0)

    def finished(number):
        sent.finished(number)
        if number == 1:
            deadline = MPI.Wtime() + 30
            while len(sums) < 2 and MPI.Wtime() < deadline:
                pass
            sent_after.append(len(sums))

    with flat.collect(finished):
        backward(model, images)
    sent.finish()
    assert sent_after == [2], "both gradients of the last layer are sums while the layers below wait"
    assert sums == [slot.span.stop - slot.span.start for slot in flat.slots]
    exchange.close()


def check_what_fails_on_the_thread_is_raised_where_it_is_waited_for():
    def sum_of(values, wire):
        raise FloatingPointError("stop here")

    model, images = model_and_images()
    for overlap in (False, True):
        flat = FlatGradients(backward_order(model, images[:1]))
        connection = Connection(WORLD.Dup(), sum_of, num_roundings=0)
        exchange = Exchange(flat, connection, wire=FullWire(), bucket_bytes=10**9, overlap=overlap)
        with pytest.raises(FloatingPointError, match="stop here"):
            exchange.begin(scale=1.0).finish()
        exchange.close()


if __name__ == "__main__":  # on a rank
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
