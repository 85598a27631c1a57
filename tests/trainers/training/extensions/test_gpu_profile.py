"""What a profile of a GPU needs beside CuPy, whose names stand here for it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from trainers.runs.phase_clock import PhaseClock
from trainers.training.extensions.gpu_profile import GpuProfile, _microseconds


@pytest.mark.torch
def test_a_pytorch_for_cpus_leaves_the_ranges(monkeypatch):
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("PyTorch uses a GPU here")
    cuda, clock = ModuleType("cupy.cuda"), PhaseClock()
    cuda.nvtx, cuda.profiler = object(), SimpleNamespace(start=lambda: None, stop=lambda: None)
    cuda.Device = lambda: SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    profile = GpuProfile(clock)
    profile.begin()
    assert clock.ranges is cuda.nvtx
    assert profile.end() == {}
    assert clock.ranges is None


@pytest.mark.parametrize("name", ["self_device_time_total", "self_cuda_time_total"])
def test_the_time_of_a_kernel_has_either_of_two_names(name):
    assert _microseconds(SimpleNamespace(**{name: 3.0})) == 3.0
