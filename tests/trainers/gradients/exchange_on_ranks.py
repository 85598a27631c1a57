"""Run under mpiexec: exchanges of a model's gradients while backward goes on, against one rank with all samples.

Rank 0 prints `passed NAME` for each check; a check that fails raises.
"""

import trainers.compat  # noqa: F401  isort: skip

import itertools

import chainer
import numpy as np
import pytest
from chainer import functions as F
from mpi4py import MPI

from trainers.communicators import Auto, Direct, HalvingDoubling, Ring, SharedWindow
from trainers.communicators.connection import Connection
from trainers.communicators.wire import WIRES, FullWire
from trainers.gradients.exchange import Exchange
from trainers.gradients.flat_gradients import FlatGradients
from trainers.models import SmallCNN
from trainers.runs.phase_clock import PhaseClock, RankSeconds

WORLD = MPI.COMM_WORLD
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
    flat = FlatGradients(model, images[:1], connection.allocate)
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
        found = sent.finish()
    gradients = {path: array.copy() for path, array in flat.by_path(flat.values).items()}
    exchange.close()
    return gradients, found


def check_the_mean_is_that_of_all_samples_on_one_rank():
    expected = mean_of_all_samples()
    for component, overlap in itertools.product((Direct(), Ring(), SharedWindow(), Auto()), (False, True)):
        found, message = one_update(component, FullWire(), bucket_bytes=200, overlap=overlap)
        for path, gradient in expected.items():
            np.testing.assert_allclose(found[path], gradient, rtol=1e-4, atol=1e-6, err_msg=f"{component} {path}")
        assert message.lost.sum(axis=0).tolist() == [0, 0]
        assert message.seconds > 0
        assert message.waited_seconds > 0


def check_on_16_bits_it_is_so_within_their_precision():
    expected = mean_of_all_samples()
    for name, component in itertools.product(("float16", "bfloat16"), (Direct(), HalvingDoubling())):
        wire = WIRES[name]()
        found, _ = one_update(component, wire, bucket_bytes=200, overlap=True)
        error = sum(float(np.square(found[path] - expected[path]).sum()) for path in expected)
        norm = sum(float(np.square(gradient).sum()) for gradient in expected.values())
        assert 0 < (error / norm) ** 0.5 < wire.epsilon * WORLD.size, (name, component)


def check_what_16_bits_lose_is_counted_by_bucket_over_all_ranks():
    model, images = model_and_images()
    connection = Direct().connect(WORLD.Dup())
    flat = FlatGradients(model, images[:1], connection.allocate)
    exchange = Exchange(flat, connection, wire=WIRES["float16"](), bucket_bytes=1, overlap=True)
    flat.values[...] = 1.0
    second = flat.values[exchange.buckets[1].span]
    second[0] = 1e10  # beside which 1e-3 vanishes, on every rank but 0 twice
    second[1 : 2 if WORLD.rank == 0 else 3] = 1e-3
    exchanged = exchange.begin(scale=1.0).finish()
    found = RankSeconds(PhaseClock(), WORLD, counts_lost=True).gather(exchanged)
    exchange.close()
    if WORLD.rank == 0:
        line, num_lost = found.as_line(), 2 * WORLD.size - 1
        assert line["wire_flushed_by_bucket"] == [0, num_lost, *[0] * (len(exchange.buckets) - 2)]
        assert (line["wire_overflowed"], line["wire_flushed"]) == (0, num_lost)


def check_all_ranks_have_the_same_bits_with_overlap_and_without():
    for component, name, size in itertools.product((Direct(), SharedWindow()), WIRES, (1, 10**9)):
        found = [one_update(component, WIRES[name](), bucket_bytes=size, overlap=overlap)[0] for overlap in (0, 1)]
        bits = [{path: gradient.tobytes() for path, gradient in gradients.items()} for gradients in found]
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
    flat = FlatGradients(model, images[:1])
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
        flat = FlatGradients(model, images[:1])
        connection = Connection(WORLD.Dup(), sum_of, num_roundings=0)
        exchange = Exchange(flat, connection, wire=FullWire(), bucket_bytes=10**9, overlap=overlap)
        with pytest.raises(FloatingPointError, match="stop here"):
            exchange.begin(scale=1.0).finish()
        exchange.close()


if __name__ == "__main__":
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            if WORLD.rank == 0:
                print(f"passed {name}", flush=True)
