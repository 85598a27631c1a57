"""A hundred kills and stops, from the first millisecond on: no hang, no orphan, and the same bits after the resume."""

import os
import random
import shutil
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


def hit(parent, victim, *, at):
    """Does it to what is there, `at` seconds after it is first seen; returns whether there was anything."""
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
    if processes:
        time.sleep(at)
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
    victim, delay = VICTIMS[number % len(VICTIMS)], chance.choice((0.0, 0.1, 0.5, 2.0)) * chance.random()
    folder = tmp_path / "run"
    process = train(folder)
    began = time.monotonic()
    while not hit(process.pid, victim, at=delay):  # after it exists
        assert process.poll() is None, "there was nothing to kill"
        time.sleep(0.002)
    joined, hit_at = (folder / "metrics.jsonl").exists(), time.monotonic()
    process.wait(timeout=60)
    processes_of(folder, gone=True, timeout=60)
    ended = time.monotonic() - hit_at
    assert ended < 60
    words = ["--resume"] if any(folder.glob("*")) else []
    assert train(folder, *words).wait(timeout=60) == 0, (victim, delay)
    assert weights(folder) == undisturbed, (victim, delay)
    print(f"{victim}: {hit_at - began:.2f} s after its start, {'in' if joined else 'before'} training; {ended:.1f} s")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare, to mount a small disk")
@pytest.mark.parametrize("kilobytes", [8, 12, 16, 20, 24, 32, 40, 52, 64, 76])
def test_a_run_survives_a_full_disk(kilobytes, tmp_path, undisturbed):
    """A disk of `kilobytes` is full at some file of the run; with more room it resumes from what it holds."""
    disk, copy = tmp_path / "disk", tmp_path / "weights"
    disk.mkdir()
    command = f"{sys.executable} -P -m kilobatch {WORDS} -n 2 --no-report --watchdog 3 --out {disk}/run"
    script = f"""
        mount -t tmpfs -o size={kilobytes}k none {disk} || exit 77
        timeout 60 {command} && exit 78
        [ $? = 124 ] && exit 79
        mount -o remount,size=50m {disk}
        [ -n "$(ls {disk}/run)" ] && resume=--resume
        timeout 60 {command} $resume && cp {disk}/run/checkpoints/update-000024/weights.safetensors {copy}
    """
    ended = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=150)
    if ended.returncode == 77 or "unshare" in ended.stderr:
        pytest.skip("no disk can be mounted here")
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "No space left" in ended.stderr
    assert copy.read_bytes() == undisturbed
