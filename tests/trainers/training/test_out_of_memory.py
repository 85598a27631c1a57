"""Memory that runs out makes micro-batches smaller, on all ranks and from then on, and changes nothing else."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from safetensors.numpy import load_file

from recipes.reports.page import page_text
from recipes.reports.record import open_run
from trainers.runs.errors import EvaluationOutOfMemory
from trainers.runs.memory import is_out_of_memory
from trainers.training.device import has_gpu
from trainers.training.extensions.evaluation import score

pytestmark = pytest.mark.mpi

UPDATES = 4
NET = """
import os, resource
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI

class Net(chainer.Chain):
    def __init__(self, num_classes: int):
        super().__init__()
        with self.init_scope():
            self.first, self.norm = L.Linear(64, 16), L.BatchNormalization(16)
            self.output = L.Linear(16, num_classes)
        where, rank, self.after, self.fits = os.environ["HUNGRY"].split()
        self.where = where if MPI.COMM_WORLD.rank == int(rank) else ""
        self.calls, self.taken = 0, 0

    def forward(self, images):
        self.calls += chainer.config.train
        self.take("whole", len(images))
        hidden = F.relu(self.norm(self.first(images.reshape(len(images), -1))))
        if self.where in ("forward", "backward"):  # in exact mode such a function makes each group a forward of its own
            (hidden,) = Hungry(self).apply((hidden,))
        return self.output(F.dropout(hidden, 0.2))

    def take(self, where, samples):
        if where == self.where and chainer.config.train and self.calls > int(self.after):
            each = self.limit() if not self.taken else self.taken
            self.xp.empty(samples * each, np.uint8)
            if self.xp is not np:  # else small arrays get a part of it, and the rest is too small the next time
                self.xp.get_default_memory_pool().free_all_blocks()

    def limit(self):
        on_cpu = self.xp is np
        self.taken = 2**26 if on_cpu else 2**21
        room = (int(self.fits) + 8) * self.taken
        if on_cpu:  # NumPy asks for addresses; nothing is written there
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
        else:
            pool = self.xp.get_default_memory_pool()
            pool.free_all_blocks()
            pool.set_limit(size=pool.total_bytes() + room)
        return self.taken

class Hungry(chainer.FunctionNode):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs):
        self.net.take("forward", len(inputs[0]))
        return inputs

    def backward(self, indexes, gradients):
        self.net.take("backward", len(gradients[0]))
        return gradients
"""
METHODS = {  # whatever may be left behind by an attempt
    "epochs": "512sp",
    "batch.global": "128",
    "learning_rate.warmup": "null",
    "gradient.clip_norm": "1.0",
    "weight_average": "{keep: 0.9, per: 64}",
    "evaluation.norm_statistics": "by_group",
}
MIXED = {"precision": "{compute: mixed16, loss_scale: 1073741824}"}
BUFFERED = {"updater.double_buffering": "true"}
DOUBLED = {**BUFFERED, "cluster.exchange": "{communicator: {kind: Ring}, wire: float16}"}
BUCKETS = {"cluster.exchange": "{communicator: {kind: Ring}, bucket_bytes: 64}"}


@pytest.fixture
def hungry(tmp_path, monkeypatch, train):
    """Runs of a model that on one rank takes memory for each sample from some forward on, of which there is a limit."""
    (tmp_path / "own_net.py").write_text(NET)
    head = "kilobatch: 1\nextends: digits/large_batch\nmodel: {kind: own_net.Net}\n"
    (tmp_path / "mine.yaml").write_text(head)
    monkeypatch.chdir(tmp_path)

    def run(name, ranks, how, values, *options, stop_after=UPDATES, own_ranks=False):
        monkeypatch.setenv("HUNGRY", how)
        words = [word for key, value in {**METHODS, **values}.items() for word in ("--set", f"{key}={value}")]
        options = (*words, "--allow-code", *options)
        return train(tmp_path / name, ranks, *options, stop_after=stop_after, recipe="mine.yaml", own_ranks=own_ranks)

    return run


def lines_of(run, key):
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["key"] == key]


def kept(run):
    (folder,) = run.folder.glob(f"checkpoints/update-{UPDATES:06d}")
    state = json.loads((folder / "state.json").read_text())
    arrays = {file.name: load_file(file) for file in folder.glob("*.safetensors")}
    return {**state, "best": None}, {(name, path): array for name in arrays for path, array in arrays[name].items()}


@pytest.mark.parametrize(
    ("ranks", "how", "values", "options"),
    [
        (1, "forward 0 0 32", MIXED, ("--fast", "--noise-scale")),
        (2, "backward 1 0 32", BUCKETS, ("--fast", "--noise-scale")),
        (2, "whole 1 0 32", {}, ()),
        pytest.param(1, "whole 0 0 32", MIXED, (), marks=pytest.mark.slow),
        pytest.param(2, "forward 1 0 32", DOUBLED, ("--fast", "--noise-scale"), marks=pytest.mark.slow),
        pytest.param(2, "whole 1 0 32", BUFFERED, (), marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_memory_runs_out_is_the_one_with_small_micro_batches_from_the_start(
    hungry, ranks, how, values, options
):
    found = hungry("found", ranks, how, values, "--micro-batch-size", 128, *options)
    expected = hungry("expected", ranks, "nowhere 0 0 0", values, "--micro-batch-size", 32, *options)
    (state, arrays), (expected_state, expected_arrays) = kept(found), kept(expected)
    assert state == expected_state
    assert arrays.keys() == expected_arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected_arrays[name], err_msg=str(name))
    assert found.trace == expected.trace
    noise = [[line.get("gradient_noise") for line in lines_of(run, "train_loss")] for run in (found, expected)]
    assert noise[0] == noise[1]
    noted = lines_of(found, "micro_batch_size")
    assert [line["value"] for line in noted] == ([64, 32] if ranks == 1 else [32])  # two ranks have two groups each
    assert not lines_of(expected, "micro_batch_size")
    assert_said(found, noted, update=0, rank=ranks - 1)


def assert_said(run, noted, *, update, rank):
    output = (
        rf"update {update}: memory ran out on rank {rank} with micro-batches of \d+ samples: at most \d+ from here on"
    )
    for line in noted:
        assert (line["rank"], line["update"]) == (rank, update + 1)
        assert re.match(output + ".* The error: .*MemoryError: Unable to allocate", line["note"])
        assert run.log.count(line["note"]) == 1
    report = open_run(run.folder)
    assert {line["note"] for line in noted} <= set(report.notes)
    assert re.fullmatch(r"peak memory of a rank: resident set [\d.]+ MB( \(rank [01]\))?", report.memory)
    assert report.memory in page_text([report])


@pytest.mark.slow
@pytest.mark.parametrize("values", [{}, DOUBLED], ids=["plain", "doubled"])
def test_memory_that_runs_out_later_on_is_told_once_and_holds_for_the_rest_of_the_run(hungry, assert_same_run, values):
    found = hungry("found", 2, "forward 1 2 32", values, "--micro-batch-size", 64, "--fast")
    expected = hungry("expected", 2, "nowhere 0 0 0", values, "--micro-batch-size", 32, "--fast")
    wire = 1e-3 if values else 1e-5  # float16 or float32
    assert_same_run(found, expected, loss=wire, weights=10 * wire)
    (noted,) = lines_of(found, "micro_batch_size")
    assert_said(found, [noted], update=2, rank=1)


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ((), "a norm group of 32 samples"),
        pytest.param(("--micro-batch-size", 16), "its part of a norm group of 16 samples", marks=pytest.mark.slow),
        pytest.param(("--exact",), "a norm group of 32 samples", marks=pytest.mark.slow),
    ],
)
def test_where_nothing_smaller_has_the_same_statistics_the_run_fails_and_says_what_to_do(hungry, options, least):
    with pytest.raises(AssertionError) as failed:
        hungry("run", 2, "forward 1 1 -8", {}, *options, own_ranks=True)  # not even for a thread
    output = str(failed.value)
    assert re.search(rf"rank 1 on \S+ failed:[\s\S]*memory ran out at update \d with {least} at a time", output), output
    assert "Start fewer ranks on a machine" in output
    assert "Unable to allocate" in output


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
def test_on_a_gpu_the_pool_runs_out_and_the_run_is_the_same(hungry, assert_same_run):
    gpu = ("--device", "gpu", "--noise-scale")
    found = hungry("found", 1, "backward 0 0 32", {}, "--micro-batch-size", 128, *gpu)
    expected = hungry("expected", 1, "nowhere 0 0 0", {}, "--micro-batch-size", 32, *gpu)
    assert_same_run(found, expected, loss=1e-4, weights=1e-3)
    assert [line["value"] for line in lines_of(found, "micro_batch_size")] == [64, 32]
    assert "on the GPU" in open_run(found.folder).memory


@pytest.mark.parametrize(
    ("error", "says_so"),
    [
        (MemoryError("Unable to allocate 8.00 GiB"), True),
        (RuntimeError("cudaErrorMemoryAllocation: out of memory"), True),
        (RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 92.00 MiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("no plan built. CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, at build_plans"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a memory object"), True),
        (RuntimeError("could not create a primitive descriptor for the convolution forward propagation"), False),
        (RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"), False),
        (ValueError("DefaultCPUAllocator: can't allocate memory"), False),
    ],
)
def test_errors_that_say_that_memory_could_not_be_had(error, says_so):
    assert is_out_of_memory(error) is says_so


def test_an_evaluation_goes_on_in_smaller_forwards_where_memory_runs_out(caplog):
    from mpi4py import MPI

    class Net(L.Linear):
        most, sizes = 1000, ()

        def forward(self, images):
            self.sizes = (*self.sizes, len(images))
            if len(images) > self.most:
                raise MemoryError(f"no room for {len(images)}")
            return super().forward(images)

    def scored(whole_forwards=False):
        images, options = np.random.default_rng(0).normal(size=(130, 4)).astype("f"), {"loss": F.softmax_cross_entropy}
        load = SimpleNamespace(several=lambda wanted, size, moved: [(images[index], index % 3) for _, index in wanted])
        options |= {"load": load, "num_samples": len(images)}
        return score(net, mpi=MPI.COMM_SELF, whole_forwards=whole_forwards, **options)

    net = Net(4, 3)
    expected, net.most, net.sizes = scored(), 30, ()
    found = scored()
    assert net.sizes == (100, 50, 25, 25, 25, 25, 25, 5)
    assert (found.accuracy, found.num_samples) == (expected.accuracy, 130)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert caplog.messages[-1] == "memory ran out over 50 samples of the evaluation: 25 from here on"
    with pytest.raises(EvaluationOutOfMemory, match=r"with 100 at a time, and fewer .* with --fast, start fewer"):
        scored(whole_forwards=True)
    net.most = 0
    with pytest.raises(EvaluationOutOfMemory, match=r"with 1 at a time\. Start .* The error: MemoryError: no room f"):
        scored()
