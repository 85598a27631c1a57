"""The benchmark of kernels runs, and measures one network in several programs; its times are for quiet machines."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainers.device import has_gpu

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_resnet50.py"


def run(*options):
    command = [sys.executable, SCRIPT, "--batch", "2", "--side", "32", "--rounds", "2", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def assert_figures(figures, names):
    assert figures["seconds"].keys() == figures["peak_bytes"].keys() == set(names)
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in figures["seconds"].values())
    losses = list(figures["first_loss"].values())
    assert losses == pytest.approx([losses[0]] * len(names), rel=1e-4)


@pytest.mark.slow
def test_chainers_own_and_ours_are_one_network(tmp_path):
    done = run("--groups", "--update", "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = json.loads((tmp_path / "figures.json").read_text())
    assert_figures(figures, ["chainer", "numpy", "numpy+groups", "numpy+update"])
    assert done.stdout.count("| 2 |") == 4


@pytest.mark.torch
@pytest.mark.slow
def test_pytorchs_network_is_the_same(tmp_path):
    pytest.importorskip("torch")
    done = run("--against", "pytorch", "--update", "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = json.loads((tmp_path / "figures.json").read_text())
    assert_figures(figures, ["pytorch", "torch", "pytorch+update", "torch+update"])


def test_a_program_that_ended_before_it_was_asked_is_told(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from bench_resnet50 import Program

    program = Program("none", 2, Namespace(side=32, clock="wall", device="cpu"))
    assert program.process.wait(60) == 1
    with pytest.raises(SystemExit, match="a program ended with 1"):
        program.step()


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is here")
@pytest.mark.parametrize("option", ["--against=pytorch", "--device=gpu"])
def test_without_pytorch_it_says_what_to_install(option):
    done = run(option)
    assert done.returncode != 0
    assert "pip install 'kilobatch[torch]', or --against chainer on the CPU" in done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
@pytest.mark.parametrize("precision", ["float32", "mixed16"])
def test_on_a_gpu_steps_and_updates_are_those_of_their_graphs(precision):
    pytest.importorskip("cudnn", reason="cuBLAS, by which Chainer's convolutions go, is not captured")

    def found(name):
        command = [sys.executable, SCRIPT, "--serve", name, "--device", "gpu", "--precision", precision]
        environment = {**os.environ, "KILOBATCH_KERNELS": "cudnn"}  # as the benchmark starts its programs
        given = {"input": "\n", "env": environment, "capture_output": True, "text": True, "timeout": 600}
        done = subprocess.run([*command, "--batch", "2", "--side", "32"], **given)
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert figures["peak_bytes"] > 2 * 4 * 25.5e6  # float32 weights and gradients, wherever they lie
        return figures["loss"]

    for name in ("cudnn+groups", "cudnn+update"):  # updates move the weights a little
        assert found(f"{name}+graph") == pytest.approx(found(name), rel=1e-3)
