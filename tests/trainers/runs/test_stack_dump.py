"""A stack dump distinguishes a thread that waits for other ranks from one that works."""

import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import chainer
import numpy as np
import pytest

from trainers.communicators.connection import Connection
from trainers.communicators.wire import FullWire
from trainers.gradients.exchange import Exchange
from trainers.gradients.flat_gradients import FlatGradients
from trainers.runs.stack_dump import dump_stack

pytestmark = pytest.mark.mpi

PROGRAM = """
import sys, threading, time
from mpi4py import MPI
from trainers.runs.stack_dump import dump_stack, waiting_for_ranks


def look():
    time.sleep(1)
    found = dump_stack()
    print(found.waits, found.stack[-1], flush=True)
    MPI.COMM_WORLD.Send(bytearray(1), 0)  # to this process itself: it goes on


def call(mpi):
    if sys.argv[1] == "message":
        mpi.Recv(
            bytearray(1),
            source=0,
        )
    elif sys.argv[1] == "sleep":
        time.sleep(2)
    elif sys.argv[1] == "marked":
        with waiting_for_ranks():
            with waiting_for_ranks():
                pass
            time.sleep(2)
    elif sys.argv[1] == "no longer marked":
        with waiting_for_ranks():
            pass
        time.sleep(2)
    elif sys.argv[1] == "loop":
        until = time.monotonic() + 2
        while time.monotonic() < until:
            pass
    elif sys.argv[1].startswith("thread"):
        calls = {"thread in MPI": lambda: mpi.Recv(bytearray(1)), "thread at work": lambda: time.sleep(2)}
        thread = threading.Thread(target=calls.get(sys.argv[1]))
        if sys.argv[1] in calls:
            thread.start()
        with waiting_for_ranks(thread):
            threading.Event().wait(2)


threading.Thread(target=look, daemon=True).start()
call(MPI.COMM_WORLD)
time.sleep(0.5)
import os; sys.stdout.flush(); os._exit(0)
"""


@pytest.mark.parametrize(
    ("where", "waits", "line"),
    [
        ("message", True, "in call: mpi.Recv("),
        ("sleep", False, "in call: time.sleep(2)"),
        ("marked", True, "in call: time.sleep(2)"),
        ("no longer marked", False, "in call: time.sleep(2)"),
        ("loop", False, "in call: "),
        ("thread in MPI", True, "threading.py:"),
        ("thread at work", False, "threading.py:"),
        ("thread yet to start", False, "threading.py:"),
    ],
)
def test_waiting_for_ranks_is_distinguished_from_work(tmp_path, where, waits, line):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(tmp_path / "program.py"), where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found, _, frame = done.stdout.partition(" ")
    assert (found, line in frame) == (str(waits), True), done.stdout + done.stderr


@pytest.mark.parametrize("overlap", [False, True])
def test_a_rank_that_sums_gradients_waits_for_others(overlap):
    """Else the watchdog would find it at fault when another rank hangs."""
    waits = []

    def sum_of(values, wire):
        time.sleep(0.1)  # with overlap the main thread waits for this one by then
        waits.append(dump_stack().waits)

    connection = Connection(SimpleNamespace(size=2, Free=lambda: None), sum_of, num_roundings=0)
    flat = FlatGradients(chainer.Sequential(chainer.links.Linear(1, 1)), np.ones((1, 1), np.float32))
    exchange = Exchange(flat, connection, wire=FullWire(), bucket_bytes=1000, overlap=overlap)
    exchange.begin(scale=1.0).finish()
    assert waits == [True]
    assert not dump_stack().waits
    exchange.close()
