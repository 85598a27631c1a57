"""One rank's trouble ends the run on all of them, loudly and soon, and the run goes on from its newest checkpoint."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainers.runs.errors import print_and_drain

pytestmark = pytest.mark.mpi

WATCHDOG_SECONDS = 5
MPIEXEC = Path(sys.executable).parent / "mpiexec"
OWN = (
    f"SECONDS = {WATCHDOG_SECONDS}"
    + """
import os, signal, sys, time
import chainer
import chainer.links as L
from mpi4py import MPI

class Net(chainer.Chain):
    def __init__(self, num_classes: int):
        super().__init__()
        with self.init_scope():
            self.output = L.Linear(64, num_classes)
        self.how, self.calls, self.scored = os.environ["FAILS_BY"], 0, 0
        if self.how == "build":
            self.fail()

    def forward(self, images):
        self.calls += 1
        if self.calls == 5:
            self.fail()
        if self.how == "slow" and not chainer.config.train and MPI.COMM_WORLD.rank == 1 and self.calls > 5:
            self.scored += 1
            time.sleep(0.7 * SECONDS if self.scored <= 2 else 0)
        return self.output(images.reshape(len(images), -1))

    def fail(self):
        if MPI.COMM_WORLD.rank != 1:
            return
        with open("/proc/self/maps") as maps, open("maps", "w") as copy:
            copy.write(maps.read())
        with open("failing", "w") as file:
            print(os.getpid(), time.time(), file=file)
        if self.how in ("raise", "build"):
            raise KeyError("an odd sample")
        if self.how == "remove":
            os.rename("run", "moved")
        if self.how == "_exit":
            os._exit(0)
        if self.how == "exit":
            sys.exit(0)
        if self.how == "hang":
            time.sleep(1000)
        if self.how == "perturb":
            self.output.b.array[3] += 1e-6
        if self.how == "stop":
            time.sleep(SECONDS / 10)  # a heartbeat after the first update: from then on it is not waited for so long
        if self.how in ("stop", "kill"):
            os.kill(os.getpid(), signal.SIGSTOP if self.how == "stop" else signal.SIGKILL)
"""
)
RESUMED = ("raise", "kill")  # the ways to end that leave a folder behind: by MPI's abort, and without a word
MESSAGES = {
    "raise": r"rank 1 on {host} failed:\nTraceback[\s\S]*own_net.py.*\n[\s\S]*KeyError: 'an odd sample'",
    "build": r"rank 1 on {host} failed:\nthe model, Net, cannot be built: KeyError: 'an odd sample' .*own_net.py:[0-9]",
    "exit": r"rank 1 on {host} failed:\n[\s\S]*RuntimeError: SystemExit: 0",
    "_exit": r"rank 1 on {host} \(process {process}\) left after [2-5] updates, before the run ended",
    "kill": r"rank 1 on {host} \(process {process}\) left after [2-5] updates, .* with 9, as for SIGKILL",
    "stop": r"rank 1 on {host} has written no heartbeat for .*: its process is stopped.*\nNo progress in update 3 for",
    "hang": r"rank 1 on {host} hangs in update 3, for \d+\.\d s:\n[\s\S]*own_net.py:\d+ in fail: time.sleep",
    "perturb": r"kilobatch: after 4 updates /output/b is not the same on all ranks: rank 1 on {host} differs from",
}


@pytest.fixture
def assert_nothing_is_left(processes_of):
    """Asserts that no process of a run is left, nor MPICH's memory."""

    def check(folder):
        processes_of(folder, gone=True)
        segments = re.findall(r"/dev/shm/mpich_shm_\w+", (folder.parent / "maps").read_text())
        assert segments
        assert not any(Path(name).exists() for name in segments)

    return check


def start_in(folder, how, *words, launcher=(), own=OWN):
    """Start the training of OWN's network, which fails on rank 1 in one of its ways."""
    (folder / "own_net.py").write_text(own)
    (folder / "mine.yaml").write_text("kilobatch: 1\nextends: digits/ramp\nmodel: {kind: own_net.Net}\n")
    command = [*launcher, sys.executable, "-P", "-m", "kilobatch", "train", "mine.yaml", "--allow-code", "--no-report"]
    command += ["--out", str(folder / "run"), "--watchdog", str(WATCHDOG_SECONDS), *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "FAILS_BY": how}, **pipes)


def run_in(folder, how, *words, **more):
    with start_in(folder, how, *words, **more) as process:
        try:
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()  # where it has not ended in time
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


SOCKETS = ("--set", "cluster.exchange.communicator={kind: Ring, sockets: true}")
SLOW = [
    ("stop", 3, ()),
    ("hang", 3, ()),
    ("kill", 3, ()),
    ("build", 2, ()),
    ("exit", 2, ()),
    *((how, 3, SOCKETS) for how in ("raise", "_exit", "stop", "kill")),
]


@pytest.mark.parametrize(
    ("how", "ranks", "more"),
    [
        ("raise", 2, ()),
        ("perturb", 2, ()),
        pytest.param("_exit", 2, (), marks=pytest.mark.slow),  # in the tests of a search's faults
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_one_ranks_trouble_ends_all(tmp_path, assert_nothing_is_left, how, ranks, more):
    folder = tmp_path / "run"
    done = run_in(tmp_path, how, "-n", ranks, "--checkpoint-every", "2up", *more)
    ended = time.time()
    assert done.returncode == 3, done.stdout + done.stderr
    process, failed = (tmp_path / "failing").read_text().split()
    assert re.search(MESSAGES[how].format(host=re.escape(socket.gethostname()), process=process), done.stderr), (
        done.stderr
    )
    assert ended - float(failed) < 6 * WATCHDOG_SECONDS
    assert f"the run failed; log: {folder / 'log.txt'}; " in done.stderr
    assert_nothing_is_left(folder)
    if how == "build":
        return
    newest = max(path.name for path in (folder / "checkpoints").glob("update-*"))
    assert newest in ("update-000002", "update-000004")  # rank 0 may still have been writing when rank 1 failed
    assert f"newest checkpoint: {folder / 'checkpoints' / newest}; to go on" in done.stderr
    if how not in RESUMED:
        return
    again = run_in(tmp_path, "not", "-n", ranks, "--stop-after", "6up", "--resume", *more)
    assert again.returncode == 0, again.stderr
    assert f"resuming from {newest}" in again.stdout


@pytest.mark.slow
def test_a_rank_that_works_longer_than_the_others_may_wait_is_left_alone(tmp_path):
    done = run_in(tmp_path, "slow", "-n", "2", "--set", "evaluation.every=8up", "--stop-after", "10up")
    assert done.returncode == 0, done.stderr
    times = [json.loads(line)["time_ms"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    longest = max(after - before for before, after in itertools.pairwise(times))
    assert longest > 1000 * WATCHDOG_SECONDS


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_under_a_foreign_mpiexec(tmp_path, assert_nothing_is_left):
    done = run_in(tmp_path, "stop", launcher=(MPIEXEC, "-n", "3"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert re.search(MESSAGES["stop"].format(host=re.escape(socket.gethostname())), done.stderr), done.stderr
    assert "Last good checkpoint: none was written yet" in done.stderr
    assert_nothing_is_left(tmp_path / "run")


def test_a_message_has_been_read_before_the_process_goes_on(monkeypatch):
    reader, writer = os.pipe()
    begun = []

    def read():
        time.sleep(0.2)
        begun.append(time.monotonic())
        os.read(reader, 100)

    with os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        thread = threading.Thread(target=read)
        thread.start()
        print_and_drain("the last word")
        assert begun
        thread.join()


BEGIN = "super().__init__()\n"
DIFFERS = OWN.replace(BEGIN, f"{BEGIN}        self.add_persistent('own', MPI.COMM_WORLD.rank)\n")
REFUSED_BY_ONE = OWN + "\nif MPI.COMM_WORLD.rank == 1:\n    1 / 0\n"


@pytest.mark.parametrize(
    ("own", "messages"),
    [
        pytest.param(
            DIFFERS,
            ["after 0 updates /own is not the same on all ranks: rank 1 on {host} differs"],
            marks=pytest.mark.slow,  # the same comparison as "perturb"
        ),
        (
            REFUSED_BY_ONE,
            [
                "rank 1 on {host} failed:",
                "model.kind: own_net.Net cannot be used: ZeroDivisionError",
                "no checkpoint was written yet",
            ],
        ),
    ],
    ids=["weights that differ", "a recipe that only one rank refuses"],
)
def test_ranks_that_differ_from_the_start_end_all(tmp_path, own, messages):
    done = run_in(tmp_path, "not", "-n", "2", own=own)
    assert done.returncode == 3, done.stdout + done.stderr
    for message in messages:
        assert message.format(host=socket.gethostname()) in done.stderr


@pytest.mark.slow
def test_a_run_whose_folder_is_gone_reports_it(tmp_path):
    done = run_in(tmp_path, "remove", "-n", "2", "--checkpoint-every", "6up")
    assert done.returncode == 3, done.stdout + done.stderr
    where = (
        f"rank 0 on {socket.gethostname()} failed:\nthe run's folder cannot be used any more: [Errno 2] No such file"
    )
    assert where in done.stderr
    assert f"{tmp_path / 'run'} is not there any more" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("signals", "messages"),
    [
        (
            2,
            [
                "stopping after this update, with a checkpoint; once more to end at once",
                "ended at once, by a second signal; no checkpoint was written yet",
            ],
        ),
        pytest.param(
            1,  # the stop file has nowhere to be
            [
                "the ranks cannot be asked to stop, and are ended: [Errno 2] No such file",
                "ended at once, by a signal; ",
            ],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_signals_end_a_run_in_which_a_rank_hangs(tmp_path, assert_nothing_is_left, signals, messages):
    with start_in(tmp_path, "hang", "-n", "2", "--watchdog", "0") as process:
        wait_for((tmp_path / "failing").exists)
        if signals == 1:
            (tmp_path / "run").rename(tmp_path / "moved")
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 4, errors
    for message in messages:
        assert message in errors
    assert_nothing_is_left(tmp_path / "run")


def test_ranks_whose_parent_is_killed_stop_with_a_checkpoint(tmp_path, processes_of):
    folder = tmp_path / "run"
    metrics = folder / "metrics.jsonl"
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "-n", "2", "--out", str(folder)]
    command += ["--set", "epochs=500", "--set", "model.width=4", "--watchdog", str(WATCHDOG_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: metrics.exists() and '"train_loss"' in metrics.read_text())
        process.kill()
    processes_of(folder, gone=True, timeout=60)
    assert '"reason":"signal"' in metrics.read_text().splitlines()[-1]
    assert list((folder / "checkpoints").glob("update-*"))
    assert "the process that started this run has gone" in (folder / "log.txt").read_text()
