"""Which kernels serve, who says so, and what a run remembers of it."""

import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from trainers import kernels
from trainers.kernels import chainer_hooks
from trainers.runs.mpi_ranks import find_mpiexec
from trainers.runs.run_folder import ENVIRONMENT
from trainers.training import environment


@pytest.fixture(autouse=True)
def _same_kernels_afterwards():
    before = kernels.in_use()
    yield
    kernels.use(before)


def test_kernels_that_are_not_there_are_refused_with_a_way_out(monkeypatch):
    with pytest.raises(ValueError, match="no kernels are called fast; there are numpy, torch, chainer"):
        kernels.use("fast")
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed; pip install .*, or take numpy"):
        kernels.use("torch")


def test_the_environment_chooses_and_numpy_is_the_default(monkeypatch):
    monkeypatch.setenv("KILOBATCH_KERNELS", "chainer")
    assert kernels.use(None) == "chainer"
    assert chainer_hooks.operators is None
    monkeypatch.delenv("KILOBATCH_KERNELS")
    assert kernels.use(None) == "numpy"
    assert chainer_hooks.operators.__name__ == "trainers.kernels.cpu.operators"


def test_without_nvidias_front_end_chainer_serves_on_gpus_and_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    monkeypatch.delitem(sys.modules, "trainers.kernels.cuda.operators", raising=False)
    monkeypatch.delitem(sys.modules, "trainers.kernels.cuda.convolution", raising=False)
    monkeypatch.setattr(kernels, "_in_use_on_gpu", None)
    monkeypatch.delenv("KILOBATCH_KERNELS", raising=False)
    kind, why_not = kernels.use_on_gpu(None)
    assert kind == "chainer"
    assert why_not.startswith("cudnn kernels need NVIDIA's front end of cuDNN: ")
    assert "pip install '.[gpu]'" in why_not
    monkeypatch.setenv("KILOBATCH_KERNELS", "cudnn")
    with pytest.raises(ValueError, match="cudnn kernels need"):
        kernels.use_on_gpu(None)
    assert kernels.use(None) == "numpy"  # beside a GPU's


def test_the_libraries_of_a_gpu_are_part_of_what_its_bits_depend_on(monkeypatch):
    runtime = SimpleNamespace(
        driverGetVersion=lambda: 13010,
        runtimeGetVersion=lambda: 13000,
        getDeviceProperties=lambda number: {"name": b"NVIDIA H200"},
    )
    silent = SimpleNamespace(getVersion=lambda handle: 1 / 0)
    parts = {"cublas": silent, "device": SimpleNamespace(get_cublas_handle=lambda: 1), "get_device_id": lambda: 0}
    cuda = SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)), **parts)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(backend_version=lambda: 91900))
    monkeypatch.setattr(kernels, "_in_use_on_gpu", "cudnn")
    versions = {"driver": "13010", "runtime": "13000", "nvrtc": "13.0", "cudnn": "91900"}  # cuBLAS does not say it
    assert kernels.details() == {"gpu": "NVIDIA H200", **versions}


def test_an_option_that_cannot_be_had_ends_with_2_and_nothing_written(tmp_path):
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "--kernels", "fast", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("command line:1:1: --kernels: no kernels are called fast; there are numpy, torch")
    assert not list(tmp_path.iterdir())


def test_a_pytorch_that_does_not_load_is_told_of(tmp_path):
    (tmp_path / "torch.py").write_text('raise OSError("libgomp.so.1: cannot open shared object file")')
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from trainers import kernels; "
    command = [sys.executable, "-c", program + "print(kernels.described('torch'))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "torch, which does not load: libgomp.so.1: cannot open shared object file\n"


def test_a_run_remembers_its_kernels_and_says_where_others_go_on(tmp_path, train):
    first = train(tmp_path / "run", 1, "--kernels", "chainer", stop_after=1)
    record = json.loads((first.folder / ENVIRONMENT).read_text())
    assert record["kernels"]["operators"] == "chainer"
    second = train(tmp_path / "run", 1, "--resume", stop_after=2)
    usual = kernels.of_runs()  # PyTorch's where it is installed
    assert f"chainer kernels trained this run so far, {usual} kernels go on" in second.log
    assert "--kernels chainer goes on as before" in second.log
    assert json.loads((first.folder / ENVIRONMENT).read_text())["kernels"]["operators"] == usual


@pytest.mark.mpi
def test_ranks_of_other_kernels_are_named_and_of_the_same_are_not(tmp_path):
    command = [sys.executable, "-m", "kilobatch", "train", "digits/ramp", "--stop-after", "1up", "--out", tmp_path]
    other = ["-n", "1", "-env", "KILOBATCH_KERNELS", "chainer"]
    ranks = [find_mpiexec(), "-n", "1", *command, ":", *other, *command]
    done = subprocess.run(ranks, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    host, usual = socket.gethostname(), kernels.described(kernels.of_runs())
    said = f"the ranks use different kernels: {usual} on rank 0 on {host}; chainer on rank 1 on {host};"
    assert said in (tmp_path / "log.txt").read_text()
    ranks = json.loads((tmp_path / ENVIRONMENT).read_text())["ranks"]
    assert [rank["kernels"] for rank in ranks] == [usual, "chainer"]
    assert environment.mixed_kernels_warning(2 * ranks[:1]) == []
