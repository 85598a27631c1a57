"""The rank that left first is told from those that mpiexec ended, which leave within milliseconds of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainers.departures import Departures, first_to_leave
from trainers.watchdog import Sign

# Three ranks below a process that ends all as soon as one has ended, as mpiexec does.
LAUNCHER = """
import os, subprocess, time
ranks = [subprocess.Popen(["sleep", "60"], env={**os.environ, "PMI_RANK": str(rank)}) for rank in range(3)]
while all(rank.poll() is None for rank in ranks):
    time.sleep(0.001)
for rank in ranks:
    rank.kill()
    rank.wait()
"""


def descendants(parent):
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_ranks_are_told_in_the_order_in_which_they_left():
    with subprocess.Popen([sys.executable, "-c", LAUNCHER]) as launcher:
        departures = Departures(launcher, 3, descendants=descendants, rank_names=("PMI_RANK", "OMPI_COMM_WORLD_RANK"))
        until = time.monotonic() + 30
        while len(processes := descendants(launcher.pid)) < 3:
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(1)  # ten times as long as it takes to find them
        os.kill(processes[1], signal.SIGKILL)
        launcher.wait(timeout=30)
    order = departures.order()
    assert order[0] == (1, processes[1])
    assert sorted(order) == list(enumerate(processes))


def test_no_rank_was_seen_where_none_was_started():
    with subprocess.Popen([sys.executable, "-c", "pass"]) as launcher:
        departures = Departures(launcher, 2, descendants=descendants, rank_names=("PMI_RANK",))
        launcher.wait(timeout=30)
        began = time.monotonic()
        assert departures.order() == []
        assert time.monotonic() - began < 2


def sign(rank, *, finished):
    return Sign(
        rank=rank,
        host="one",
        process=os.getpid(),
        beat=1,
        update=3,
        still_seconds=0.0,
        allowed_seconds=120.0,
        waits=False,
        stack=(),
        finished=finished,
    )


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0, "mpiexec ended with 0"),
        (9, "mpiexec ended with 9, as for SIGKILL (is the memory full?)"),
        (7, "mpiexec ended with 7, as for SIGBUS (is /dev/shm full?)"),
        (11, "mpiexec ended with 11, as for SIGSEGV"),
        (200, "mpiexec ended with 200"),
    ],
)
def test_the_first_one_that_had_not_finished_is_named(code, cause):
    signs = [sign(0, finished=True), sign(1, finished=False), None]
    said = first_to_leave(code, [(0, 10), (2, 12), (1, 11)], signs, {"key": "train_loss", "update": 3})
    assert said.startswith("rank 2 on ")
    assert "(process 12) left after 4 updates, before the run ended" in said
    assert said.endswith(cause)


def test_where_no_end_was_seen_the_status_is_told():
    said = first_to_leave(1, [], [None], {})
    assert said.startswith("a rank left before the run ended, without an error of its own; mpiexec ended with 1")
