"""One rank's trouble ends the run on all of them, loudly and soon."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

OWN = """\
import os, signal, sys, time
import chainer
import chainer.links as L
from mpi4py import MPI

class Net(chainer.Chain):
    def __init__(self, num_classes: int, how: str):
        super().__init__()
        with self.init_scope():
            self.output = L.Linear(64, num_classes)
        self.how, self.calls = how, 0
        if how == "build":
            self.fail()

    def forward(self, images):
        self.calls += 1
        if self.calls == 5:
            self.fail()
        return self.output(images.reshape(len(images), -1))

    def fail(self):
        if MPI.COMM_WORLD.rank != 1:
            return
        with open("/proc/self/maps") as maps, open("maps", "w") as copy:
            copy.write(maps.read())
        if self.how in ("raise", "build"):
            raise KeyError("an odd sample")
        if self.how == "_exit":
            os._exit(0)
        if self.how == "exit":
            sys.exit(0)
        if self.how == "hang":
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGKILL)
"""
SAID = {
    "raise": r"rank 1 on {host} failed:\nTraceback[\s\S]*own_net.py.*\n[\s\S]*KeyError: 'an odd sample'",
    "build": r"rank 1 on {host} failed:\nTraceback[\s\S]*own_net.py.*\n[\s\S]*KeyError: 'an odd sample'",
    "exit": r"rank 1 on {host} failed:\n[\s\S]*RuntimeError: SystemExit: 0",
    "_exit": r"kilobatch: (a rank left before the run ended|mpiexec ended with \d+: a rank was killed)",
    "kill": r"kilobatch: mpiexec ended with \d+: a rank was killed or crashed",
}


def processes_of(folder):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path] * (str(folder).encode() in path.read_bytes())
        except OSError:  # it has just ended
            continue
    return found


def assert_nothing_is_left(folder):
    until = time.monotonic() + 5
    while processes_of(folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(folder) == []


@pytest.mark.parametrize("how", SAID)
def test_one_ranks_trouble_ends_all(tmp_path, how):
    (tmp_path / "own_net.py").write_text(OWN)
    recipe = f"kilobatch: 1\nextends: digits/ramp\nmodel: {{kind: own_net.Net, how: {how}}}\n"
    (tmp_path / "mine.yaml").write_text(recipe)
    folder = tmp_path / "run"
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "mine.yaml", "--allow-code", "-n", "2"]
    command += ["--out", str(folder), "--checkpoint-every", "2up"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert re.search(SAID[how].format(host=re.escape(socket.gethostname())), done.stderr), done.stderr
    assert f"the run failed; log: {folder / 'log.txt'}; " in done.stderr
    if how != "build":
        newest = max(path.name for path in (folder / "checkpoints").glob("update-*"))
        assert newest in ("update-000002", "update-000004")  # rank 0 may still have been writing when rank 1 failed
        assert f"newest checkpoint: {folder / 'checkpoints' / newest}; to go on" in done.stderr
    if how in ("raise", "build", "exit"):
        segments = set(re.findall(r"/dev/shm/mpich\S+", (tmp_path / "maps").read_text()))
        assert segments
        assert not any(Path(name).exists() for name in segments)
    assert_nothing_is_left(folder)


def test_a_recipe_that_only_one_rank_refuses_ends_all(tmp_path):
    (tmp_path / "own_net.py").write_text(OWN + "\nif MPI.COMM_WORLD.rank == 1:\n    1 / 0\n")
    (tmp_path / "mine.yaml").write_text("kilobatch: 1\nextends: digits/ramp\nmodel: {kind: own_net.Net, how: none}\n")
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "mine.yaml", "--allow-code", "-n", "2", "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"rank 1 on {socket.gethostname()} failed:" in done.stderr
    assert "model.kind: own_net.Net cannot be used: ZeroDivisionError" in done.stderr
    assert "no checkpoint was written yet" in done.stderr


def test_two_signals_end_a_run_in_which_a_rank_hangs(tmp_path):
    (tmp_path / "own_net.py").write_text(OWN)
    (tmp_path / "mine.yaml").write_text("kilobatch: 1\nextends: digits/ramp\nmodel: {kind: own_net.Net, how: hang}\n")
    folder = tmp_path / "run"
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "mine.yaml", "--allow-code", "-n", "2"]
    with subprocess.Popen([*command, "--out", folder], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "maps").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 3, errors
    assert_nothing_is_left(folder)
