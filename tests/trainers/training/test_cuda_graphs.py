"""A run whose micro-batches are replayed is the eager run, and what cannot be replayed stays eager and says so.

Where no GPU is, a graph is replayed by doing its work again; but of that only what it writes in place remains, and what
the host did when it was captured.
"""

import contextlib
import logging
import weakref
from dataclasses import replace
from types import SimpleNamespace

import chainer
import numpy as np
import pytest
from mpi4py import MPI

from recipes.planning.cluster import GradientExchange
from recipes.planning.stream import Stream
from trainers.datasets.loader import StreamIterator
from trainers.gradients.exchange import Bucket, Exchange, ExchangeHandle
from trainers.launch.request import TrainRequest, prepare
from trainers.models.batch_norm import NormGroups
from trainers.models.batch_norm_statistics import Teams
from trainers.training import mean_gradient
from trainers.training.build import build, build_exchange
from trainers.training.cuda_graphs import GraphRecorder, MicroBatchGraphs
from trainers.training.device import has_gpu
from trainers.training.updater import RecipeUpdater

UPDATES = 7
NET = ("model={kind: SmallCNN, width: 4}", "learning_rate.warmup=null", "epochs=1")
RAMP = "batch={global: [{from: 0, size: 64}, {from: 0.15, size: 128}], norm_span: 32}"
ALL_METHODS = ("evaluation.norm_statistics=by_group", "gradient.clip_norm=1.0", "weight_average={keep: 0.9, per: 64}")


class Cpu:
    def __init__(self):
        self.lost, self.launched, self.forgotten = False, 0, 0
        self.rehearsal = contextlib.nullcontext

    def record(self, work):
        before, host = self._arrays(), self._host()
        given, cuts = [array.copy() for array in before], []
        actual = work(lambda: cuts.append(0))
        for array, kept in zip(before, given, strict=True):
            array[...] = kept
        actual[0][...] = np.nan

        def launch():
            self.launched += 1
            now = self._host()
            self._set_host(host)
            actual[0][...] = work(lambda: None)[0]
            self._set_host(now)

        return actual, [launch, *(lambda: None for _ in cuts)]

    def forget(self):
        self.forgotten += 1

    def of(self, updater):
        self._flat, self._groups = updater.exchange.flat, updater._norm_groups
        return self

    def _arrays(self):
        return [self._flat.values, self._flat.flags, *self._groups.seen]

    def _host(self):
        return self._flat.written, dict(vars(self._groups))

    def _set_host(self, state):
        self._flat.written, groups = state
        vars(self._groups).update(groups)


def trained(*overrides, device=None, measure=False, micro_batch_size=32, mpi=MPI.COMM_SELF):
    """Records of the updates, and the weights behind them; with a device graphs are captured there."""
    how = {"micro_batch_size": micro_batch_size, "exact": False}
    request = TrainRequest(recipe="digits/ramp", overrides=(*NET, RAMP, *overrides), **how)
    prepared = prepare(request, workers=mpi.size)
    plan = replace(prepared.plan, cluster=replace(prepared.plan.cluster, cuda_graph=device is not None))
    recipe, dataset = plan.recipe, plan.dataset
    parts = build(recipe, dataset)
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train)
    groups = NormGroups(recipe.evaluation)
    groups.install(parts.model)
    updater = RecipeUpdater(
        StreamIterator(plan=plan, rank=mpi.rank, stream=stream, load=parts.load_train),
        parts.optimizer,
        loss=parts.loss,
        plan=plan,
        exchange=build_exchange(GradientExchange(bucket_bytes=2000), parts, mpi, recipe=recipe),
        mpi=mpi,
        norm_groups=groups,
        measure_noise=measure,
    )
    if device is not None:
        device.of(updater)
    records = []
    for _ in range(UPDATES):
        updater.update()
        records.append(updater.record)
    kept = {path: parameter.array.copy() for path, parameter in parts.model.namedparams()}
    kept |= {path: link.avg_var for path, link in parts.model.namedlinks() if hasattr(link, "avg_var")}
    updater.close()
    return records, kept


@pytest.fixture
def run(monkeypatch):
    """`trained`, with graphs on the device that it is given."""

    def run_on(*overrides, device=None, **options):
        monkeypatch.setattr(mean_gradient, "GraphRecorder", lambda: device)
        return trained(*overrides, device=device, **options)

    return run_on


def assert_same(actual, expected):
    for record, other in zip(actual[0], expected[0], strict=True):
        assert (record.loss, record.norms, record.loss_scale, record.overflows) == (
            (other.loss, other.norms, other.loss_scale, other.overflows)
        ), record.update
    for path, array in actual[1].items():
        np.testing.assert_array_equal(array, expected[1][path], err_msg=path)


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        ((), {}),
        (ALL_METHODS, {"measure": True}),
        (("updater={double_buffering: true}",), {}),
        (("precision={compute: mixed16, loss_scale: 1048576, double_after: 3}",), {}),
        ((), {"micro_batch_size": 96}),
    ],
    ids=["ramp", "all methods", "double buffering", "mixed16", "uneven"],
)
def test_a_replayed_run_is_the_eager_run(run, caplog, overrides, options):
    device = Cpu()
    with caplog.at_level(logging.INFO, logger="kilobatch"):
        actual = run(*overrides, device=device, **options)
    assert_same(actual, run(*overrides, **options))
    assert device.launched
    assert "samples are replayed as a CUDA graph from now on" in caplog.text
    assert "stay eager" not in caplog.text


def test_statistics_by_group_have_one_graph_wherever_a_micro_batch_lies_in_its_update(run, monkeypatch):
    monkeypatch.setitem(globals(), "UPDATES", 3)
    by_group = ("evaluation.norm_statistics=by_group", "batch={global: 136, norm_span: 8}", "epochs=1")
    actual = run(*by_group, device=(device := Cpu()), micro_batch_size=8)
    assert device.launched == 1 + 3 * 16 - 2  # the first of an update has one of its own
    assert_same(actual, run(*by_group, micro_batch_size=8))


class Refusing(Cpu):
    def record(self, work):
        work(lambda: None)
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")


class Idle(Cpu):
    def record(self, work):
        return super().record(work)[0], [lambda: None]


class Small(Cpu):
    """Runs out of memory; what was computed until then is gone when memory is given back."""

    def __init__(self):
        super().__init__()
        self.rehearsal = self._full

    def _full(self):
        computed = np.zeros(1)
        self._computed = weakref.ref(computed)
        raise MemoryError("out of memory")

    def forget(self):
        super().forget()
        assert self._computed() is None


class NoRoomForBackward(Cpu):
    """Runs out of memory between forward and backward."""

    def __init__(self):
        super().__init__()
        self.rehearsal = NoBackward


class NoBackward(chainer.FunctionHook):
    def backward_preprocess(self, function, inputs, gradients):
        raise MemoryError("out of memory")


class Full(np.ndarray):
    """Flags for whose `last` copy there is no memory."""

    def copy(self, *given):
        self.copies = getattr(self, "copies", 0) + 1
        if self.copies == self.last:
            raise MemoryError("out of memory")
        return np.array(self)


class NoRoomForACopy(Cpu):
    """Has memory for the work, but not for a copy of what it changes, before or after."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def of(self, updater):
        flat = updater.exchange.flat
        flat.flags = flat.flags.view(Full)
        flat.flags.last = self.last
        return super().of(updater)


class Forgetful(Cpu):
    """Runs out of memory while it captures, which its pool hides by giving back what others use."""

    def record(self, work):
        self.lost = True
        return super().record(work)


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Refusing(), "no graph was captured: NotImplementedError: calling cuBLAS API during stream capture"),
        (Idle(), "a replay is not the eager computation: the loss nan apart of"),
        (Small(), "memory for a graph ran out: MemoryError: out of memory"),
        (NoRoomForACopy(1), "memory for a graph ran out: MemoryError: out of memory"),
        (NoRoomForACopy(2), "memory for a graph ran out: MemoryError: out of memory"),
        (Forgetful(), "memory for graphs ran out"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_fails_stays_eager_and_says_so_once(run, caplog, device, why):
    actual = run(device=device)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"cuda_graph: {why}")
    assert line.endswith("; forward and backward stay eager")
    assert_same(actual, run())
    assert device.forgotten
    assert not device.launched


def test_norm_groups_that_workers_share_stay_eager_and_it_is_said_once(run, caplog, monkeypatch):
    monkeypatch.setattr(Teams, "of", lambda teams, division: MPI.COMM_SELF)
    actual = run(device=(device := Cpu()))
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("cuda_graph: workers share a norm group")
    assert not device.launched
    caplog.clear()
    assert_same(actual, run())
    assert not caplog.records


def test_a_mask_of_dropout_that_was_captured_is_noticed(run, caplog):
    dropout = "model={kind: SmallCNN, width: 4, dropout: 0.5}"
    actual = run(dropout, device=Cpu())
    assert "a replay is not the eager computation: the loss" in caplog.text
    assert_same(actual, run(dropout))


def test_what_runs_out_of_memory_behind_a_forward_is_done_again_with_the_same_masks(run, caplog):
    dropout = "model={kind: SmallCNN, width: 4, dropout: 0.5}"
    actual = run(dropout, device=NoRoomForBackward())
    assert "memory for a graph ran out" in caplog.text
    assert_same(actual, run(dropout))


class Tight(Cpu):
    """Has memory for `room` samples; graphs keep that of the largest micro-batch."""

    def __init__(self, room):
        super().__init__()
        self.room, self.held, self.in_graph = room, 0, False

    def record(self, work):
        def held(cut):
            self.in_graph = True
            try:
                return work(cut)
            finally:
                self.in_graph = False

        return super().record(held)

    def forget(self):
        super().forget()
        self.held = 0

    def take(self, samples):
        if self.in_graph:
            self.held = max(self.held, samples)
        elif self.held + samples > self.room:
            raise MemoryError("out of memory")


class LastLayer(chainer.FunctionHook):
    """Takes memory at the end of a forward."""

    def __init__(self, device):
        self.take = device.take

    def forward_preprocess(self, function, inputs):
        if function.label == "LinearFunction":
            self.take(len(inputs[0]))


@pytest.mark.parametrize(
    ("override", "micro_batch_size", "room", "stays"),
    [
        (RAMP, 128, 150, True),  # 64 beside a graph of 64, or 128 alone; not 128 beside a graph of 64
        ("batch={global: 128, norm_span: 32}", 32, 48, False),  # the first of an update comes beside a graph of others
    ],
    ids=["ramp", "no room beside a graph"],
)
def test_graphs_give_up_their_memory_before_a_micro_batch_has_none(
    run, caplog, override, micro_batch_size, room, stays
):
    device = Tight(room)
    with LastLayer(device):
        actual = run(override, device=device, micro_batch_size=micro_batch_size)
    assert not any(record.ran_out for record in actual[0])
    assert ("half the --micro-batch-size would leave room for one; forward" in caplog.text) is not stays
    assert device.launched
    assert_same(actual, run(override, micro_batch_size=micro_batch_size))


class ImagesOfGraphs(chainer.LinkHook):
    def __init__(self, device):
        self.device, self.addresses = device, []

    def forward_preprocess(self, args):
        if self.device.in_graph and args.link.name is None:
            self.addresses.append(args.args[0].ctypes.data)


def test_graphs_of_several_kinds_read_their_images_from_one_array(run):
    device = Tight(room=10**6)
    with ImagesOfGraphs(device) as seen:
        run("batch={global: 64, norm_span: 32}", device=device)  # an update has a first one and another
    assert device.launched < len(seen.addresses)  # by captures
    assert len(set(seen.addresses)) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
def test_a_replay_writes_nothing_that_eager_work_beside_it_gave():
    import cupy

    given, gpu = cupy.ones(1000), GraphRecorder()

    def work():
        return 3 * (2 * given)  # with memory between that is free again

    for _ in range(2):
        with gpu.rehearsal():
            work()
    actual, (launch,) = gpu.record(lambda cut: work())
    with gpu.rehearsal():
        kept = [given + place for place in range(5)]
    launch()
    assert float(actual.sum()) == 6000
    assert [float(array.sum()) for array in kept] == [1000 * (1 + place) for place in range(5)]


def cut_at(ends, *given, **how):
    """Graphs as on several ranks, which send buckets while backward goes on."""
    return MicroBatchGraphs(*given, **{**how, "cuts": ends})


def test_slots_are_told_behind_the_graph_that_makes_them_whole(run, monkeypatch):
    output = []
    monkeypatch.setattr(ExchangeHandle, "finished", lambda round, number: output.append(number))
    overlaps = property(lambda exchange: True, lambda exchange, value: None)  # as with several ranks
    monkeypatch.setattr(Exchange, "overlaps", overlaps, raising=False)
    run()
    eager, output[:] = list(output), []
    monkeypatch.setattr(mean_gradient, "MicroBatchGraphs", lambda *given, **how: cut_at([2, 5], *given, **how))
    launched, device = [], Cpu()
    record = device.record

    def counted(work):
        actual, launches = record(work)
        assert len(launches) in (1, 3)  # of the last micro-batch of an update one more for each cut
        launched.append(len(launches))
        return actual, launches

    device.record = counted
    run(device=device)
    slots = len(eager) // UPDATES
    assert 3 in launched
    assert eager == UPDATES * list(eager[:slots])
    assert output == eager[: len(output)]
    assert len(output) == (UPDATES - 2 * launched.count(3)) * slots  # nobody is told by graphs beside eager work


def test_ends_of_buckets_are_their_last_slots():
    buckets = [Bucket(span=slice(0, 0), num_slots=count) for count in (2, 1, 2)]
    assert Exchange.ends_of_buckets.fget(SimpleNamespace(buckets=buckets)) == [1, 2, 4]


@pytest.mark.mpi
@pytest.mark.slow
def test_two_ranks_send_their_buckets_behind_graphs(run_on_ranks):
    done = run_on_ranks(2, __file__)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["same", "same"]


class Counting(Cpu):
    graphs = 0

    def record(self, work):
        actual, launches = super().record(work)
        self.graphs = max(self.graphs, len(launches))
        return actual, launches


if __name__ == "__main__":  # on a rank
    device = Counting()
    mean_gradient.GraphRecorder = lambda: device
    replayed = trained(device=device, mpi=MPI.COMM_WORLD)
    assert device.graphs > 2, "one for each bucket"
    assert_same(replayed, trained(mpi=MPI.COMM_WORLD))
    print("same", flush=True)
