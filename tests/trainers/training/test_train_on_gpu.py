"""A run on a GPU is the run on the CPU; two ranks on one GPU are one rank; and NCCL is no communication at all."""

import json

import pytest

from trainers.training.device import has_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.mpi, pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")]
EXACT = {"loss": 1e-10, "weights": 1e-8}  # float64: what is larger is no rounding


@pytest.fixture(scope="module")
def run(tmp_path_factory, train):
    """Runs of digits/ramp: run(name, ranks, *options, ...); each happens once."""
    done = {}

    def once(name, ranks, *options, **settings):
        if name not in done:
            done[name] = train(tmp_path_factory.mktemp("run") / "run", ranks, *options, timeout=600, **settings)
        return done[name]

    return once


def on_cpu(run, dtype):
    return run(f"cpu {dtype}", 1, dtype=dtype)


def on_gpu(run, dtype):
    return run(f"gpu {dtype}", 1, "--device", "gpu", dtype=dtype)


@pytest.mark.parametrize(("dtype", "bounds"), [("float64", EXACT), ("float32", {"loss": 5e-3, "weights": 2e-2})])
def test_a_run_is_that_of_the_cpu(run, assert_same_run, dtype, bounds):
    assert_same_run(on_gpu(run, dtype), on_cpu(run, dtype), **bounds)


NORMALIZE = "{kind: Normalize, with: synthetic}"
PIXELS = [  # which cross as bytes; those of digits are float32
    "dataset=synthetic",
    f"augmentation.train=[{{kind: RandomCrop, size: 16}}, {{kind: HorizontalFlip}}, {NORMALIZE}]",
    f"augmentation.eval=[{{kind: CenterCrop, size: 16}}, {NORMALIZE}]",
]


@pytest.mark.parametrize("more", [(), ("augmentation.mix=[{kind: CutMix, alpha: 1}]",)], ids=["bytes", "mixed"])
@pytest.mark.parametrize("micro_batch_size", [32, 192])
def test_a_run_on_bytes_is_that_of_the_cpu(run, assert_same_run, more, micro_batch_size):
    options = [word for override in (*PIXELS, *more) for word in ("--set", override)]
    expected = run(f"cpu bytes {more}", 1, *options, dtype="float64")
    options += ["--device", "gpu", "--micro-batch-size", micro_batch_size]
    assert_same_run(run(f"gpu bytes {more} {micro_batch_size}", 1, *options, dtype="float64"), expected, **EXACT)


STUDIES = {
    "schedules": (
        "learning_rate.factors=[{parameters: [norm, bias], factor: 2}]",
        "schedules.momentum={kind: PiecewiseLinear, points: [[0, 0.9], [2, 1]]}",
        "schedules.weight_decay={kind: CosineRestarts, first: 1, times: 2}",
        "evaluation={every: 1ep, flipped: true}",
    ),
    "end of augmentation": (*PIXELS, "augmentation.mix=[{kind: CutMix, alpha: 1}]", "augmentation.end={at: 1}"),
    "muon": ("optimizer={kind: Muon}", "learning_rate.reference=0.02"),
    "schedule free": ("optimizer={kind: ScheduleFreeSGD, weight_decay: 1e-4}",),
    "power sgd": ("updater.power_sgd_rank=2",),
    "local steps": ("batch={global: 64, norm_span: 16}", "updater.local_steps={every: 4, replicas: 2, from: 0.4}"),
}


@pytest.mark.parametrize("name", STUDIES)
def test_what_studies_need_is_the_same_run_as_on_the_cpu(run, assert_same_run, name):
    ranks = 2 if name in ("power sgd", "local steps") else 1
    given = [word for override in STUDIES[name] for word in ("--set", override)]
    expected = run(f"cpu {name}", ranks, *given, dtype="float64")
    assert_same_run(run(f"gpu {name}", ranks, "--device", "gpu", *given, dtype="float64"), expected, **EXACT)


def test_two_ranks_on_one_gpu_are_one_rank(run, assert_same_run):
    actual = run("two", 2, "--device", "gpu", dtype="float64")
    assert_same_run(actual, on_gpu(run, "float64"), **EXACT)
    assert "through host memory, because ranks 0 and 1 share GPU" in actual.log or "Nccl: every worker" in actual.log


def test_other_micro_batches_are_the_same_run(run, assert_same_run):
    actual = run("split", 1, "--device", "auto", "--micro-batch-size", 32, dtype="float64")
    assert_same_run(actual, on_gpu(run, "float64"), **EXACT)


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
def test_one_rank_through_nccl(run, assert_same_run, wire):
    nccl = ("--set", "cluster.exchange.communicator={kind: Nccl}", "--set", f"cluster.exchange.wire={wire}")
    actual = run(f"nccl {wire}", 1, "--device", "gpu", *nccl)
    bounds = {
        "float32": {"loss": 1e-5, "weights": 1e-4},
        "float16": {"loss": 2e-2, "weights": 5e-2},
        "bfloat16": {"loss": 0.1, "weights": 0.2},
    }
    assert_same_run(actual, on_gpu(run, "float32"), **bounds[wire])


@pytest.mark.parametrize(
    "option",
    [*(f"precision.compute={word}" for word in ("tf32", "mixed16", "bfloat16")), "updater.double_buffering=true"],
)
def test_two_ranks_are_one_with_mixed_precision_and_with_late_gradients(run, assert_same_run, option):
    if "bfloat16" in option:
        pytest.importorskip("ml_dtypes")
    one, two = (run(f"{ranks} {option}", ranks, "--device", "gpu", "--set", option) for ranks in (1, 2))
    assert_same_run(two, one, loss=5e-2, weights=5e-2)


@pytest.fixture
def captures():
    """A run on the GPU by the kernels that can be captured."""
    pytest.importorskip("cudnn", reason="cuBLAS, by which Chainer's convolutions go, is not captured")

    def assert_captured(actual, *, replayed=True):
        assert ("are replayed as a CUDA graph from now on" in actual.log) == replayed
        assert "stay eager" not in actual.log

    return assert_captured


@pytest.mark.parametrize(
    ("option", "bounds"),
    [
        ("precision.compute=float32", {"loss": 5e-3, "weights": 2e-2}),
        ("precision.compute=tf32", {"loss": 5e-2, "weights": 5e-2}),
        ("precision.compute=mixed16", {"loss": 5e-2, "weights": 5e-2}),
        ("precision.compute=bfloat16", {"loss": 0.1, "weights": 0.2}),
        ("updater.double_buffering=true", {"loss": 5e-3, "weights": 2e-2}),
    ],
)
def test_micro_batches_replayed_as_a_cuda_graph_are_the_same_run(run, assert_same_run, captures, option, bounds):
    if "bfloat16" in option:
        pytest.importorskip("ml_dtypes")
    given = ("--device", "gpu", "--micro-batch-size", 32, "--noise-scale", "--set", option)
    eager = run(f"eager {option}", 1, *given, "--set", "cluster.cuda_graph=false")
    actual = run(f"graph {option}", 1, *given)
    captures(actual)
    captures(eager, replayed=False)
    assert_same_run(actual, eager, **bounds)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_cuda_graphs_resumes(tmp_path, train, run, assert_same_run, captures, ranks):
    given = ("--device", "gpu", "--micro-batch-size", 32)
    train(tmp_path / "run", ranks, *given, stop_after=12, timeout=600)
    actual = train(tmp_path / "run", ranks, *given, "--resume", timeout=600)
    captures(actual)
    expected = run("split in float32", 1, "--device", "gpu", "--micro-batch-size", 32)
    assert_same_run(actual, expected, loss=5e-3, weights=2e-2)


def test_dropout_is_not_captured_and_the_run_goes_on(run, assert_same_run):
    given = ("--device", "gpu", "--set", "model={kind: SmallCNN, width: 8, dropout: 0.5}")
    actual = run("dropout", 1, *given)
    assert "cuda_graph: no graph was captured" in actual.log
    expected = run("dropout without graph", 1, *given, "--set", "cluster.cuda_graph=false")
    assert_same_run(actual, expected, loss=5e-3, weights=2e-2)


def test_exact_mode_has_the_same_bits_on_one_rank_and_two(run, assert_same_run):
    pytest.importorskip("cudnn")
    one, two = (run(f"exact {ranks}", ranks, "--device", "gpu", "--exact") for ranks in (1, 2))
    assert_same_run(two, one, loss=0, weights=0)
    assert_same_run(one, on_gpu(run, "float32"), loss=5e-3, weights=2e-2)


def test_pytorchs_operators_are_the_same_run(run, assert_same_run):
    pytest.importorskip("torch")
    actual = run("torch", 1, "--device", "gpu", "--kernels", "torch")
    assert "torch kernels" in actual.log
    assert_same_run(actual, on_gpu(run, "float32"), loss=5e-3, weights=2e-2)


def test_a_checkpoint_goes_from_one_device_to_the_other_and_back(tmp_path, train, run, assert_same_run):
    folder = tmp_path / "run"
    for stop, device in ((8, "gpu"), (16, "cpu"), (24, "gpu")):
        more = () if stop == 8 else ("--resume",)
        actual = train(folder, 1, "--device", device, *more, dtype="float64", stop_after=stop, timeout=600)
    assert_same_run(actual, on_cpu(run, "float64"), **EXACT)


def test_the_record_names_the_gpu(run):
    actual = on_gpu(run, "float32")
    (rank,) = json.loads((actual.folder / "environment.json").read_text())["ranks"]
    assert rank["gpu"]
    assert f"rank 0 computes on {rank['gpu']}" in actual.log
