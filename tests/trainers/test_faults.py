"""One rank's trouble ends the run on all of them, loudly and soon."""

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

OWN = """\
import os, signal, sys
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
        if self.how in ("raise", "build"):
            raise KeyError("an odd sample")
        if self.how == "_exit":
            os._exit(0)
        if self.how == "exit":
            sys.exit(0)
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
    until = time.monotonic() + 5
    while processes_of(folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(folder) == []
