"""Which device is settled on, and what is refused of it before anything starts, with its place and a way out."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import chainer
import pytest
from mpi4py import MPI

from recipes.errors import InputRefused
from recipes.extras import install
from trainers.communicators import Nccl
from trainers.launch.request import TrainRequest, prepare
from trainers.runs.errors import RunFailed
from trainers.runs.mpi_ranks import find_mpiexec
from trainers.training import device as device_module
from trainers.training.device import choose_gpu, chosen_gpu, gpu_facts, has_gpu, notes_on, take_device

CLUSTER = "name: ours\nnodes: 1\nworkers_per_node: 2\ndevice: {device}\ndevice_memory_bytes: 8000000000\n{more}"
NO_GPU = r"(Chainer can use no GPU here: \S|CuPy finds no GPU: )"
without_gpu = pytest.mark.skipif(has_gpu(), reason="shows what is refused where there is no GPU")


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """What `train` makes of its options before it starts anything, with a cluster's file of one's own."""
    monkeypatch.chdir(tmp_path)

    def prepare_with(*overrides, of_cluster="cpu", more="", asked=None, exact=False):
        (tmp_path / "ours.yaml").write_text(CLUSTER.format(device=of_cluster, more=more))
        options = {"recipe": "digits/ramp", "cluster": "ours.yaml", "device": asked, "exact": exact}
        return prepare(TrainRequest(**options, overrides=overrides), workers=1)

    def refusal(*overrides, **options):
        with pytest.raises(InputRefused) as refused:
            prepare_with(*overrides, **options)
        (line,) = str(refused.value).splitlines()
        return line

    return SimpleNamespace(plan=lambda *words, **options: prepare_with(*words, **options).plan, refusal=refusal)


def test_a_machine_with_a_driver_has_a_gpu_unless_it_is_hidden(tmp_path):
    there, absent = (str(tmp_path),), (str(tmp_path / "none"),)
    assert has_gpu({}, there)
    assert has_gpu({"CUDA_VISIBLE_DEVICES": "1,0"}, there)
    assert not has_gpu({}, absent)
    assert not any(has_gpu({"CUDA_VISIBLE_DEVICES": hidden}, there) for hidden in ("", "-1"))


def test_the_device_is_the_clusters_unless_another_is_asked_for(prepared):
    assert prepared.plan().cluster.device == "cpu"
    assert prepared.plan(of_cluster="gpu", asked="cpu").cluster.device == "cpu"


@without_gpu
def test_auto_is_the_cpu_where_there_is_no_gpu(prepared):
    assert prepared.plan(of_cluster="gpu", asked="auto").cluster.device == "cpu"


def test_another_word_is_refused(prepared):
    line = prepared.refusal(asked="cuda")
    assert line == "command line:1:1: --device: is cuda; write cpu, gpu or auto"


@without_gpu
def test_a_gpu_that_is_not_here_is_refused_where_it_was_asked_for(prepared):
    assert re.match(rf"command line:1:1: --device: {NO_GPU}.*, or train on the CPU$", prepared.refusal(asked="gpu"))
    assert re.match(rf"ours\.yaml:4:9: device: {NO_GPU}", prepared.refusal(of_cluster="gpu"))
    assert re.match(rf"command line:1:16: device: {NO_GPU}", prepared.refusal("cluster.device=gpu"))


def test_a_communicator_of_gpus_is_refused_on_a_cpu(prepared):
    said = r"Nccl sums in the memory of GPUs, and the device is cpu; leave communicator out, or train with --device"
    line = prepared.refusal(more="exchange:\n  communicator: {kind: Nccl}\n")
    assert re.match(rf"ours\.yaml:7:17: exchange\.communicator: {said} gpu$", line)
    line = prepared.refusal("cluster.exchange.communicator={kind: Nccl}")
    assert re.match(rf"command line:1:31: exchange\.communicator: {said} gpu$", line)


def test_a_communicator_is_refused_only_where_the_workers_do_not_fit_it(prepared):
    line = prepared.refusal(more="exchange:\n  communicator: {kind: Torus, row: 2}\n")
    assert line.endswith("Torus: 1 workers do not divide into rows of 2; change it, or the number of workers")
    fits = prepared.plan(more="exchange:\n  communicator: {kind: Torus, row: 1}\n")
    assert fits.cluster.exchange.communicator.row == 1


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_a_sum_that_mpi_does_not_have_is_refused_at_its_wire(prepared, wire):
    line = prepared.refusal(more=f"exchange:\n  communicator: {{kind: MpiAllreduce}}\n  wire: {wire}\n")
    assert line.startswith(f"ours.yaml:8:9: exchange.wire: is {wire}, of which MpiAllreduce has no sum; leave wire out")


@pytest.mark.skipif(importlib.util.find_spec("ml_dtypes") is not None, reason="shows what is missing without ml_dtypes")
def test_bfloat16_is_refused_where_nothing_has_it(prepared, tmp_path):
    said = "is bfloat16, which NumPy and CuPy have from ml_dtypes, and that is not installed; pip install ml_dtypes, or"
    assert prepared.refusal("precision.compute=bfloat16").startswith(
        f"command line:1:19: precision.compute: {said} write mixed16"
    )
    (tmp_path / "mine.yaml").write_text("kilobatch: 1\nextends: digits/ramp\nprecision:\n  compute: bfloat16\n")
    with pytest.raises(InputRefused, match=rf"^mine\.yaml:4:12: precision\.compute: {said}"):
        prepare(TrainRequest(recipe="mine.yaml"), workers=1)


def test_tf32_is_float32_on_a_cpu_and_that_is_said(prepared):
    assert prepared.plan("precision.compute=tf32").recipe.precision.compute == "tf32"
    (note,) = notes_on(take_device("cpu", MPI.COMM_SELF), "tf32")
    assert note == "precision.compute is tf32, a permission that only GPUs since Ampere use: this is float32"


def test_a_cuda_graph_is_refused_on_a_cpu(prepared):
    said = "cuda_graph: is true, and the device is cpu; leave cuda_graph out, or train with --device gpu"
    assert prepared.refusal(more="cuda_graph: true\n") == f"ours.yaml:6:13: {said}"
    assert prepared.refusal("cluster.cuda_graph=true") == f"command line:1:20: {said}"
    assert prepared.plan().cluster.cuda_graph is None


@pytest.mark.parametrize("kind", ["torch", "chainer"])
def test_a_cuda_graph_of_kernels_that_are_not_captured_is_refused(prepared, monkeypatch, kind):
    monkeypatch.setattr(device_module, "gpu_trouble", lambda: None)
    monkeypatch.setenv("KILOBATCH_KERNELS", kind)
    said = f"ours.yaml:6:13: cuda_graph: is true, and the kernels are {kind}, whose work is not captured"
    assert prepared.refusal(of_cluster="gpu", more="cuda_graph: true\n").startswith(said)
    monkeypatch.delenv("KILOBATCH_KERNELS")  # the default of a GPU is cudnn
    assert prepared.plan(of_cluster="gpu", more="cuda_graph: true\n").cluster.cuda_graph


@pytest.mark.parametrize(("extra", "cuda"), [("gpu", "13"), ("gpu12", "12")])
def test_the_extra_that_errors_name_has_all_that_a_gpu_needs(extra, cuda):
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    packages = [re.match(r"[\w-]+", word)[0] for word in tomllib.loads(text)["project"]["optional-dependencies"][extra]]
    libraries = [f"nvidia-{name}-cu{cuda}" for name in ("cudnn", "nccl")]
    assert sorted(packages) == sorted([f"cupy-cuda{cuda}x", "ml-dtypes", "nvidia-cudnn-frontend", *libraries])
    assert f".[{extra}]" in install("gpu")


@without_gpu
def test_the_command_line_starts_nothing(tmp_path):
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "--device", "gpu"]
    done = subprocess.run([*command, "--out", tmp_path / "run"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(rf"command line:1:1: --device: {NO_GPU}", done.stderr)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="shows what is missing without CuPy")
def test_what_communicators_of_gpus_lack_here_is_named_with_a_way_out():
    what, way_out = Nccl().missing()
    assert what.startswith("Nccl: NCCL is missing: ")
    assert "pip install '.[gpu]'" in way_out


def test_a_cpu_is_taken_and_needs_no_word():
    device = take_device("cpu", MPI.COMM_SELF)
    assert device == chainer.get_device("@numpy")
    assert (gpu_facts(device), notes_on(device)) == ({}, [])


def test_ranks_on_different_kinds_of_device_fail_by_name():
    ranks = SimpleNamespace(allgather=lambda own: [own, ("cpu", "other")])
    with pytest.raises(RunFailed, match="computes on gpu and other does not: say --device cpu or gpu"):
        take_device("gpu", ranks)


@pytest.mark.mpi
def test_a_gpu_that_does_not_work_fails_all_ranks_and_is_named():
    program = """if True:
        from mpi4py import MPI
        from trainers.training import device
        from trainers.runs.errors import RunFailed
        world = MPI.COMM_WORLD
        if world.rank != 1:
            device._tested_gpu = lambda place: (None, None)
        try:
            said = device.take_device("gpu", world)
        except RunFailed as error:
            said = str(error)
        if (texts := world.gather(said)) is not None:
            print(*texts, sep="\\n")
    """
    command = [find_mpiexec(), "-n", "3", sys.executable, "-c", program]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    first, *others = done.stdout.splitlines()
    assert first.startswith(f"rank 1 on {socket.gethostname()} cannot compute on its GPU: ")
    assert others == [first, first]


def test_a_gpu_has_the_name_that_the_user_gave_it(monkeypatch):
    monkeypatch.setattr(device_module, "_gpu_number", 3)
    assert chosen_gpu({"CUDA_VISIBLE_DEVICES": "4,6"}) == "6"
    assert chosen_gpu({"CUDA_VISIBLE_DEVICES": "GPU-1c0f"}) == "GPU-1c0f"
    assert chosen_gpu({"CUDA_VISIBLE_DEVICES": "-1"}) == ""
    assert chosen_gpu({}) == ("3" if has_gpu({}) else "")


@pytest.mark.mpi
def test_ranks_of_a_machine_are_numbered_there_whatever_team_they_are_in(run_on_ranks, tmp_path):
    program = """if True:
        from mpi4py import MPI
        from trainers.training.device import local_rank_of
        world = MPI.COMM_WORLD
        team = world.Split(world.rank // 2)
        found = world.gather((local_rank_of(world), local_rank_of(team)))
        print(found or "")
    """
    (tmp_path / "program.py").write_text(program)
    done = run_on_ranks(4, tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([(rank, rank % 2) for rank in range(4)])


@without_gpu
@pytest.mark.parametrize("more", [["--device", "gpu"], ["--device", "gpu", "--dry-run"]], ids=["", "dry"])
def test_a_search_on_gpus_that_are_not_here_starts_nothing(tmp_path, more):
    command = [sys.executable, "-P", "-m", "kilobatch", "search", "digits", *more, "--out", tmp_path / "search"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(rf"command line:1:1: --device: {NO_GPU}", done.stderr)
    assert not (tmp_path / "search").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
@pytest.mark.parametrize("seat", [0, 1, 5])
def test_runs_side_by_side_take_the_gpus_of_their_seats(monkeypatch, seat):
    monkeypatch.setattr(device_module, "_gpu_number", None)
    choose_gpu(seat)
    taken = take_device("gpu", MPI.COMM_SELF)
    assert taken.device.id == seat % chainer.backends.cuda.cuda.runtime.getDeviceCount()
