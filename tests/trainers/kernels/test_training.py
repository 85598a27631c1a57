"""Whole runs by other kernels than the default: the same training up to rounding, and the same promises."""

import hashlib

import pytest

# Batch 96, from update 2 on 192: 3 norm groups, then 6.
RAMP = "batch={global: [{from: 0, size: 96}, {from: 2up, size: 192}], norm_span: 32}"
SOON = ("--set", RAMP, "--set", "learning_rate.warmup.target_batch=192")
TORCH = ("--kernels", "torch")

pytestmark = [pytest.mark.mpi, pytest.mark.torch]


@pytest.fixture(autouse=True)
def torch():
    return pytest.importorskip("torch", reason="PyTorch, for its kernels, is not installed")


def bits(run, update):
    files = (run.folder / "checkpoints" / f"update-{update:06d}").iterdir()
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize(("dtype", "loss", "weights"), [("float64", 1e-10, 1e-9), ("float32", 1e-3, 1e-2)])
def test_torch_trains_as_numpy_does(tmp_path, train, assert_same_run, dtype, loss, weights):
    expected = train(tmp_path / "numpy", 1, "--kernels", "numpy", stop_after=5, dtype=dtype)
    actual = train(tmp_path / "torch", 2, *TORCH, stop_after=5, dtype=dtype)
    assert_same_run(actual, expected, loss=loss, weights=weights)


def test_exact_runs_of_torch_have_the_same_bits_on_any_ranks_and_after_a_resume(tmp_path, train):
    alone = train(tmp_path / "alone", 1, *TORCH, "--exact", *SOON, stop_after=4)
    train(tmp_path / "resumed", 2, *TORCH, "--exact", *SOON, stop_after=3)
    resumed = train(tmp_path / "resumed", 3, *TORCH, "--exact", *SOON, "--resume", stop_after=4)
    assert [line["loss"] for line in resumed.trace] == [line["loss"] for line in alone.trace]
    assert bits(resumed, 4) == bits(alone, 4)
