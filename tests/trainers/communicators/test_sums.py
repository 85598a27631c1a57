"""Every communicator, wire and size of buckets on real ranks, with overlap and without, against NumPy's float64.

Each launch of this file runs the cases of a number of ranks, `pairs`: those in which each value of a factor meets each
of another one, over launches of all numbers of ranks; `all`: the whole product; `gpu`: the product of what sums arrays
in the memory of GPUs. Rank 0 prints a case a line, as JSON. See `run` for what a case does.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import sys
from types import SimpleNamespace
from unittest import mock

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from mpi4py import MPI

from trainers import communicators
from trainers.communicators import auto, ring
from trainers.communicators.connection import Connection
from trainers.communicators.host_staging import Staged, connect_on_gpu
from trainers.communicators.wire import WIRES, FullWire
from trainers.gradients.exchange import Exchange
from trainers.gradients.flat_gradients import FlatGradients, backward_order
from trainers.training.device import has_gpu, take_device

WORLD = MPI.COMM_WORLD
RANKS = {"pairs": (1, 2, 3, 4), "all": (1, 2, 3, 4, 5, 8)}
COMMUNICATORS = {
    "Auto": {},
    "Auto 2": {"ranks_per_node": 2},
    "Direct": {},
    "HalvingDoubling": {},
    "Hierarchical": {},
    "Hierarchical 1": {"ranks_per_node": 1},
    "Hierarchical 2": {"ranks_per_node": 2},
    "Hierarchical 2 sockets": {"ranks_per_node": 2, "sockets": True},
    "Hierarchical 3": {"ranks_per_node": 3},
    "MpiAllreduce": {},
    "Ring": {},
    "Ring sockets": {"sockets": True},
    "Ring staged": {},
    "SharedWindow": {},
    "SharedWindow 1": {"ranks_per_node": 1},
    "SharedWindow 1 sockets": {"ranks_per_node": 1, "sockets": True},
    "SharedWindow 2": {"ranks_per_node": 2},
    "SharedWindow staged": {},
    "Torus": {},
    "Torus 1": {"row": 1},
    "Torus 2": {"row": 2},
    "Torus sockets": {"sockets": True},
}
ON_GPUS = {
    "Auto": {},
    "Direct": {},
    "Nccl": {},
    "Ring": {},
    "SharedWindow": {},
}
SUMMING = {*communicators.__all__} - {"Dummy", "Nccl"}  # which sum nowhere, or in ON_GPUS only
COMMUNICATORS |= {name: {} for name in sorted(SUMMING) if name not in COMMUNICATORS}
DEVICE = take_device("gpu" if sys.argv[1:] == ["gpu"] else "cpu", WORLD)
FORMATS = ("float32", "float64", "float16", "bfloat16")
BUCKET_BYTES = (1, 100, 1 << 30)
SIZES = (0, 1, 2, 7, 1001, 150_001 if WORLD.size <= 2 else 20_001)  # more than a piece of SharedWindow's on two
HALF_OF_THE_LEAST = {"float16": 2.0**-25}  # what flushing to zero or rounding the smallest numbers may cost
REFUSED = {"MpiAllreduce": "MPI has no sum of", "SharedWindow 2": "different numbers", "Torus 2": "do not divide"}
REFUSED |= {"ChainerMN": REFUSED["MpiAllreduce"]}
REFUSED |= {"Nccl": "share GPU"}
FACTORS = ("ranks", "communicator", "wire", "bucket_bytes")
NEVER_TOGETHER = {
    ("MpiAllreduce", "float16"),
    ("MpiAllreduce", "bfloat16"),
    ("ChainerMN", "float16"),
    ("ChainerMN", "bfloat16"),
    (1, "Torus 2"),
    (3, "Torus 2"),
    (3, "SharedWindow 2"),
}

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def launched(run_on_ranks):
    """Lines that the program printed: launched(which, ranks); each launch happens once."""
    done = {}

    def launch(which, ranks):
        if (which, ranks) not in done:
            ended = run_on_ranks(ranks, __file__, which, timeout=1200)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            done[which, ranks] = [json.loads(line) for line in ended.stdout.splitlines()]
        return done[which, ranks]

    return launch


def assert_right(lines, ranks, measured=("Auto 2",)):
    assert lines
    for line in lines:
        assert line["ranks"] == ranks
        if "refused" not in line:
            assert line["error_over_bound"] <= 1, line
            assert line["identical"], line
            assert line["overlap_changes_no_bit"] or not line["same_algorithm"], line
            assert line["same_algorithm"] or line["communicator"] in measured, line


@pytest.mark.parametrize("ranks", RANKS["pairs"])
def test_sums_are_numpys_the_same_bits_on_all_ranks_and_with_overlap(launched, ranks):
    assert_right(launched("pairs", ranks), ranks)


def test_every_two_values_of_two_factors_have_met(launched):
    lines = [line for ranks in RANKS["pairs"] for line in launched("pairs", ranks)]
    met = {pair for line in lines if "refused" not in line for pair in pairs_of(line)}
    values = [dict.fromkeys(line[factor] for line in lines) for factor in FACTORS]
    assert [len(names) for names in values[::2]] == [4, 4]
    assert {name.split()[0] for name in values[1]} == SUMMING
    possible = {pair for some, more in itertools.combinations(values, 2) for pair in itertools.product(some, more)}
    assert possible - met == NEVER_TOGETHER


def pairs_of(line):
    return itertools.combinations([line[factor] for factor in FACTORS], 2)


def test_what_cannot_be_summed_is_refused_on_all_ranks_alike(launched):
    refused = [line for ranks in RANKS["pairs"] for line in launched("pairs", ranks) if "refused" in line]
    met = {pair for line in refused for pair in pairs_of(line)}
    assert met >= NEVER_TOGETHER


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS["all"])
def test_the_whole_product(launched, ranks):
    lines = launched("all", ranks)
    assert_right(lines, ranks)
    assert len(lines) >= 14 * 4 * 2
    assert {line["communicator"].split()[0] for line in lines} == SUMMING


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_in_the_memory_of_gpus(launched, ranks):
    """One rank through NCCL, two through host memory; where there is one GPU, NCCL refuses two ranks on it."""
    lines = launched("gpu", ranks)
    assert len(lines) == 5 * 4 * 3
    assert_right(lines, ranks, measured=("Auto",))
    refused = {(line["communicator"], line["wire"]) for line in lines if "refused" in line}
    assert {name for name, _ in refused} <= {"Nccl"}
    assert ranks > 1 or not any(name == "Nccl" for name, _ in refused)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
def test_auto_reports_how_two_ranks_sum_in_the_memory_of_gpus(launched):
    lines = launched("gpu", 2)
    expected = "through host memory, "
    if not any("refused" in line for line in lines if line["communicator"] == "Nccl"):
        expected = "Nccl: every worker has a GPU of its own"
    choices = {line["choices"][0].partition("because ")[0] for line in lines if line["communicator"] == "Auto"}
    assert choices == {expected}


class HostInPlaceOfGpu:
    """Memory of the host where communicators have that of a GPU: the copies are real, and nothing is waited for."""

    zeros = staticmethod(np.zeros)
    on_stream_after = contextlib.nullcontext
    stream = SimpleNamespace(synchronize=lambda: None)
    record_event = staticmethod(lambda: None)

    def pin(self, host):
        self.pinned = host.ctypes.data

    def unpin(self, host):
        assert host.ctypes.data == self.pinned

    def download(self, values, host):
        assert not np.shares_memory(values, host)
        np.copyto(host, values)

    def upload(self, host, values):
        np.copyto(values, host)


def cases(which):
    """(ranks, communicator, wire, bucket bytes) of all launches; the same list on every rank."""
    if which == "gpu":
        yield from itertools.product([WORLD.size], ON_GPUS, FORMATS, BUCKET_BYTES)
        return
    product = list(itertools.product(RANKS[which], COMMUNICATORS, FORMATS, BUCKET_BYTES))
    if which == "all":
        yield from product
        return
    seen, shuffled = set(), [product[number] for number in np.random.RandomState(0).permutation(len(product))]
    for fewest in range(6, 0, -1):  # first those in which most pairs meet: so few are needed
        for case in shuffled:  # about as many for each number of ranks
            pairs = set(itertools.combinations(enumerate(case), 2))
            if is_refused(*case[:3]):  # shows nothing of the others
                pairs = {case[:3]}
            if len(pairs - seen) >= fewest:
                seen |= pairs
                yield case


def is_refused(ranks, name, wire):
    if name in ("MpiAllreduce", "ChainerMN"):
        return wire in ("float16", "bfloat16")
    if name == "Nccl":
        return ranks > DEVICE.xp.cuda.runtime.getDeviceCount()
    return ranks % 2 == 1 and (name == "Torus 2" or (name == "SharedWindow 2" and ranks > 1))


def connected(name):
    """The connection of a case, for arrays on the device."""
    component = getattr(communicators, name.split()[0])(**{**COMMUNICATORS, **ON_GPUS}[name])
    if DEVICE.xp is not np:
        return connect_on_gpu(component, WORLD.Dup())
    # Within one host such rings go by MPI: as if each rank had a host of its own.
    alone = {"ranks_here": lambda mpi: frozenset({mpi.rank})} if name.endswith("sockets") else {}
    with mock.patch.multiple(ring, **alone) if alone else contextlib.nullcontext():
        connection = component.connect(WORLD.Dup())
    return Staged(connection, HostInPlaceOfGpu()) if name.endswith("staged") else connection


def on_host(array):
    return np.array(array) if isinstance(array, np.ndarray) else array.get()


def wire_of(name):
    return FullWire(np.float64) if name == "float64" else WIRES[name]()


def of_rank(rank, count, dtype):
    """What a rank has: numbers around zero, and a few far from it."""
    random = np.random.RandomState(1000 + rank)
    values = random.normal(size=count)
    values[:: max(1, count // 3)] *= 100
    return values.astype(dtype)


@functools.cache
def of_all(count, dtype):
    """The numbers of all ranks in float64, a row each."""
    return np.stack([of_rank(rank, count, dtype).astype(np.float64) for rank in range(WORLD.size)])


def error_over_bound(actual, rows, scale, connection, wire, unit):
    """The largest error of scale * sum over what rounding may cost; `unit`: the wire's numbers are that much larger."""
    epsilon = np.finfo(actual.dtype).eps
    roundings = connection.num_roundings + 1  # the last one when the sum is whole
    relative = (1 + wire.epsilon) ** roundings * (1 + epsilon) ** (WORLD.size + 4) - 1
    least = roundings * WORLD.size * HALF_OF_THE_LEAST.get(wire.name, 0.0) / unit
    allowed = np.abs(rows).sum(axis=0) * abs(scale) * relative + least * abs(scale)
    error = np.abs(actual - rows.sum(axis=0) * scale)
    return float((error / np.maximum(allowed, np.finfo(np.float64).tiny)).max(initial=0.0))


def same_everywhere(array):
    return len(set(WORLD.allgather(hashlib.sha256(array.tobytes()).digest()))) == 1


OUTSIDE = 0.7123456789  # no sum, on no wire


def sums_of_parts(name, wire, dtype):
    """Sums of views into the middle of what was allocated, whose neighbours stay as they are."""
    connection = connected(name)
    assert connection.sent_values(2) is None or connection.sent_values(2) >= 0
    gap = 3
    memory = connection.allocate(sum(SIZES) + gap * (len(SIZES) + 1), dtype)
    memory[...] = OUTSIDE
    worst, start, identical = 0.0, gap, True
    inside = DEVICE.xp.zeros(len(memory), bool)
    for size in SIZES:
        part = memory[start : start + size]
        part[...] = DEVICE.send(of_rank(WORLD.rank, size, dtype))
        inside[start : start + size] = True
        with connection.on_stream_after(connection.record_event()):
            connection.sum(part, wire)
        actual = on_host(part)
        worst = max(worst, error_over_bound(actual, of_all(size, dtype), 1.0, connection, wire, unit=1.0))
        identical &= same_everywhere(actual)
        start += size + gap
        assert (memory[~inside] == dtype(OUTSIDE)).all(), "a sum has changed its neighbours"
        assert_mean_is_scaled_sum(connection, part, wire)
        assert (memory[~inside] == dtype(OUTSIDE)).all(), "a mean has changed its neighbours"
    connection.close()
    return worst, identical


def assert_mean_is_scaled_sum(connection, part, wire):
    """The same bits whether numbers are scaled on their way or before and after it, and the same of them are lost."""
    before, after = (1.0, 0.3) if isinstance(wire, FullWire) else (0.3 * 2.0**6, 2.0**-6)
    actual = []
    for mean in (connection.mean, functools.partial(Connection.mean, connection)):
        part[...] = DEVICE.send(of_rank(WORLD.rank, len(part), part.dtype))
        part[:2] = DEVICE.xp.array([1e6, 1e-20])[: len(part)]  # overflows and is flushed in float16
        with connection.on_stream_after(connection.record_event()):
            lost = mean(part, wire, before, after)
        actual.append((lost, on_host(part).tobytes()))
    assert actual[0] == actual[1], (connection, wire.name, len(part))
    assert lost == ((len(part) > 0, len(part) > 1) if wire.name == "float16" else (0, 0))


class Uneven(chainer.Chain):
    """Parameters of 1 to 3,003 numbers."""

    def __init__(self, dtype):
        super().__init__()
        with chainer.using_config("dtype", dtype), self.init_scope():
            self.first = L.Linear(3, 1001)
            self.second = L.Linear(1001, 2)
            self.third = L.Linear(2, 1, nobias=True)
            self.scale = L.Scale(axis=1, W_shape=(1,), bias_term=True)

    def forward(self, x):
        return self.scale(self.third(self.second(F.relu(self.first(x)))))


def exchanged(name, wire, dtype, bucket_bytes, *, overlap):
    """Gradients after two exchanges, the largest error of the second, and what `Auto` chose.

    Each rank finishes slots in its own order.
    """
    connection = connected(name)
    order = backward_order(Uneven(dtype).to_device(DEVICE), DEVICE.xp.ones((1, 3), dtype))
    flat = FlatGradients(order, connection.allocate)
    exchange = Exchange(flat, connection, wire=wire, bucket_bytes=bucket_bytes, overlap=overlap)
    scale = 1 / (3 * WORLD.size)
    for update in range(2):
        flat.values[...] = DEVICE.send(of_rank(WORLD.rank, len(flat.values), dtype))
        order = np.random.RandomState(WORLD.rank + update).permutation(len(flat.slots))
        sent = exchange.begin(scale=scale)
        for number in order:
            sent.finished(int(number))
        sent.finish()
    rows, values = of_all(len(flat.values), dtype), on_host(flat.values)
    worst = max(
        error_over_bound(values[span], rows[:, span], scale, connection, wire, unit=_unit(rows[:, span], wire))
        for span in (bucket.span for bucket in exchange.buckets)
    )
    exchange.close()
    return values, worst, list(connection.choices)


def _unit(rows, wire):
    """What the numbers of a bucket become larger by, at least, so that they fill float16."""
    return 2.0**15 / 4 / np.abs(rows).max(axis=1).sum() if np.isfinite(wire.largest) else 1.0


def run(name, wire_name, bucket_bytes):
    dtype = np.float64 if wire_name == "float64" else np.float32
    error, identical = sums_of_parts(name, wire_of(wire_name), dtype)
    (values, errors, choices) = zip(
        *(exchanged(name, wire_of(wire_name), dtype, bucket_bytes, overlap=overlap) for overlap in (False, True)),
        strict=True,
    )
    algorithms = [[choice.split()[0] for choice in chosen] for chosen in choices]  # without the seconds they took
    return {
        "error_over_bound": max(error, *errors),
        "identical": identical and all(map(same_everywhere, values)),
        "same_algorithm": algorithms[0] == algorithms[1],
        "choices": choices[0],
        "overlap_changes_no_bit": values[0].tobytes() == values[1].tobytes(),
    }


if __name__ == "__main__":
    with mock.patch.object(auto, "_REPEATS", (1, 1)):  # sums are compared here, not their times
        for ranks, name, wire_name, bucket_bytes in cases(sys.argv[1]):
            if ranks != WORLD.size:
                continue
            line = {"ranks": ranks, "communicator": name, "wire": wire_name, "bucket_bytes": bucket_bytes}
            try:
                line |= run(name, wire_name, bucket_bytes)
            except ValueError as error:
                if not is_refused(ranks, name, wire_name) or REFUSED[name] not in str(error):
                    raise
                line["refused"] = str(error)
            if WORLD.rank == 0:
                print(json.dumps(line), flush=True)
