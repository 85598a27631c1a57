"""The benchmark of kernels runs, and measures one network in several programs; its times are for quiet machines."""

import json
import os
import subprocess
import sys
from argparse import Namespace

import pytest

from trainers.training.device import has_gpu

SMALLEST = "--batch 2 --side 32 --rounds 2"


def assert_figures(figures, names):
    assert figures["seconds"].keys() == figures["peak_bytes"].keys() == set(names)
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in figures["seconds"].values())
    losses = list(figures["first_loss"].values())
    assert losses == pytest.approx([losses[0]] * len(names), rel=1e-4)


@pytest.mark.slow
def test_chainers_own_and_ours_are_one_network(run):
    lines, (figures,) = run("resnet50.py", f"{SMALLEST} --groups --update")
    assert_figures(figures, ["chainer", "numpy", "numpy+groups", "numpy+update"])
    assert len([line for line in lines if line.startswith("| 2 |")]) == 4


@pytest.mark.torch
@pytest.mark.slow
def test_pytorchs_network_is_the_same(run):
    pytest.importorskip("torch")
    _, (figures,) = run("resnet50.py", f"{SMALLEST} --against pytorch --update")
    assert_figures(figures, ["pytorch", "torch", "pytorch+update", "torch+update"])


def test_a_program_that_ended_ends_the_benchmark():
    from resnet50 import Program

    program = Program("none", 2, Namespace(side=32, clock="wall", device="cpu", norm_span=None))
    assert program.process.wait(60) == 1
    with pytest.raises(SystemExit, match="a program ended with 1"):
        program.step()


def test_on_a_gpu_a_program_starts_when_the_one_before_has_ended(monkeypatch):
    import resnet50

    events = []

    class Program:
        def __init__(self, name, *given):
            self.name = name
            events.append(f"start {name}")

        def step(self, word=""):
            return {"seconds": 1.0, "loss": 7.0, "peak_bytes": 1}

        def end(self):
            events.append(f"end {self.name}")

    monkeypatch.setattr(resnet50, "Program", Program)
    monkeypatch.setattr(resnet50, "PAUSE_SECONDS", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    resnet50.measure(["pytorch", "cudnn"], 2, Namespace(device="gpu", rounds=2, side=32, clock="wall", norm_span=None))
    assert events == ["start pytorch", "end pytorch", "start cudnn", "end cudnn"]


@pytest.mark.parametrize("option", ["--against=pytorch", "--device=gpu"])
def test_without_pytorch_the_error_names_the_package(option, monkeypatch):
    import resnet50

    monkeypatch.setattr(sys, "argv", ["resnet50.py", option])
    monkeypatch.setattr(resnet50, "find_spec", lambda name: None)
    monkeypatch.setattr(resnet50, "limit_threads", lambda: 1)
    with pytest.raises(SystemExit, match=r"pip install '\.\[torch\]'"):
        resnet50.main()


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
@pytest.mark.parametrize("precision", ["float32", "mixed16"])
def test_on_a_gpu_steps_and_updates_are_those_of_their_graphs(precision):
    import resnet50

    pytest.importorskip("cudnn", reason="cuBLAS, by which Chainer's convolutions go, is not captured")

    def found(name):
        command = [sys.executable, resnet50.__file__, "--serve", name, "--device", "gpu", "--precision", precision]
        environment = {**os.environ, "KILOBATCH_KERNELS": "cudnn"}  # as the benchmark starts its programs
        given = {"input": "\n", "env": environment, "capture_output": True, "text": True, "timeout": 600}
        done = subprocess.run([*command, "--batch", "2", "--side", "32"], **given)
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert figures["peak_bytes"] > 2 * 4 * 25.5e6  # float32 weights and gradients, wherever they lie
        return figures["loss"]

    for name in ("cudnn+groups", "cudnn+update"):  # updates move the weights a little
        assert found(f"{name}+graph") == pytest.approx(found(name), rel=1e-3)
