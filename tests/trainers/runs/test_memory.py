"""Freed memory is kept for the next arrays, and given back where a run begins or memory ran out."""

import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from trainers.runs.memory import count_pool, free_blocks, peak_memory, release, reset_peak

# Faults of the second of two equal arrays, what is resident after both were freed, and after that was given back.
TWICE = """
import resource, sys
from pathlib import Path
import numpy as np
from trainers import kernels
from trainers.runs.memory import reset_peak

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

kernels.use(sys.argv[1])
np.ones(2**26, np.uint8)
began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(2**26, np.uint8)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began
held = resident()
reset_peak()
print(faults, held - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps memory")
@pytest.mark.parametrize("kind", ["numpy", "chainer"])
def test_freed_memory_is_kept_until_a_run_begins_and_chainers_kernels_leave_it_as_it_was(kind):
    command = [sys.executable, "-c", TWICE, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    faults, given_back = map(int, done.stdout.split())
    if kind == "numpy":
        assert faults < 8
        assert given_back > 2**25
    else:
        assert faults >= 16  # at 4 MiB a page, and there are none so large
        assert given_back < 2**25


def test_a_pool_is_counted_until_the_next_run_begins():
    class Pool:
        def __init__(self, size):
            self.size = size

        def total_bytes(self):
            return self.size

    default, of_a_run = Pool(3), Pool(4)
    device = SimpleNamespace(name="@cupy:0", xp=SimpleNamespace(get_default_memory_pool=lambda: default))
    count_pool(of_a_run)
    assert peak_memory(device)["gpu_pool_bytes"] == 7
    reset_peak()
    assert peak_memory(device)["gpu_pool_bytes"] == 3


def test_memory_that_a_pool_gives_back_counts_in_the_peak():
    class Pool:
        size = 5

        def total_bytes(self):
            return self.size

        def free_all_blocks(self):
            self.size = 1

    default, of_graphs = Pool(), Pool()
    device = SimpleNamespace(name="@cupy:0", xp=SimpleNamespace(get_default_memory_pool=lambda: default))
    reset_peak()
    count_pool(of_graphs)
    free_blocks(of_graphs, device.xp)
    default.size = 7
    release(device)
    assert peak_memory(device)["gpu_pool_bytes"] == 10
    reset_peak()
    assert peak_memory(device)["gpu_pool_bytes"] == 1
