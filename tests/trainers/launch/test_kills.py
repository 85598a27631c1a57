"""A hundred kills and stops, from the first millisecond on: no hang, no orphan, and the same bits after the resume."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

SEED, KILLS = 22, 100
WORDS = "train digits/ramp --set model.width=4 --set evaluation.every=5ep --checkpoint-every 2up --stop-after 24up"
VICTIMS = ("rank", "both ranks", "parent", "mpiexec", "proxy", "stop a rank", "stop all ranks", "close the terminal")


def children(process):
    with suppress(OSError):
        tasks = Path(f"/proc/{process}/task").glob("*/children")
        return [int(word) for task in tasks for word in task.read_text().split()]
    return []


def train(folder, *words, **how):
    command = [sys.executable, "-P", "-m", "kilobatch", *WORDS.split(), "-n", "2", "--no-report", "--watchdog", "3"]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, "--out", str(folder), *words], **streams, **how)


def hit(parent, victim):
    """Does it to what is there by now; returns whether there was anything."""
    mpiexec = children(parent)
    proxies = [process for each in mpiexec for process in children(each)]
    ranks = [process for each in proxies for process in children(each)]
    processes, number = {
        "rank": (ranks[:1], signal.SIGKILL),
        "both ranks": (ranks, signal.SIGKILL),
        "parent": ([parent], signal.SIGKILL),
        "mpiexec": (mpiexec, signal.SIGKILL),
        "proxy": (proxies, signal.SIGKILL),
        "stop a rank": (ranks[-1:], signal.SIGSTOP),
        "stop all ranks": (ranks, signal.SIGSTOP),
        "close the terminal": ([parent], signal.SIGHUP),
    }[victim]
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
    return bool(processes)


def weights(folder):
    return (folder / "checkpoints" / "update-000024" / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert train(folder).wait(timeout=60) == 0
    return weights(folder)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_run_survives(number, tmp_path, undisturbed, processes_of):
    chance = random.Random(SEED * 1000 + number)
    victim, after = VICTIMS[number % len(VICTIMS)], chance.choice((0.4, 1.0, 2.0)) * chance.random()
    folder = tmp_path / "run"
    process = train(folder)
    time.sleep(after)
    hit(process.pid, victim)
    began = time.monotonic()
    process.wait(timeout=120 if victim.startswith("stop") and after < 1 else 60)  # before all join: 60 s and more
    processes_of(folder, gone=True, timeout=60)
    assert time.monotonic() - began < 130
    resumed = train(folder, "--resume") if any(folder.glob("*")) else train(folder)
    assert resumed.wait(timeout=60) == 0, (victim, after)
    assert weights(folder) == undisturbed, (victim, after)
