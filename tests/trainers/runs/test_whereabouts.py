"""Whether a process waits for other ranks is read from where it is."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.mpi

PROGRAM = """
import sys, threading, time
from mpi4py import MPI
from trainers.runs.heartbeat import EXCHANGE_THREAD
from trainers.runs.heartbeat import whereabouts

world = MPI.COMM_WORLD.Dup()


def look():
    time.sleep(1)
    found = whereabouts()
    print(found.waits, found.stack[-1], flush=True)
    MPI.COMM_WORLD.Send(bytearray(1), 0)  # to this process itself: it goes on


def at_the_place(mpi):
    if sys.argv[1] == "message":
        mpi.Recv(
            bytearray(1),
            source=0,
        )
    elif sys.argv[1] == "sleep":
        time.sleep(2)
    elif sys.argv[1] == "loop":
        until = time.monotonic() + 2
        while time.monotonic() < until:
            pass
    elif sys.argv[1] in ("sent", "stuck"):
        call = (lambda: mpi.Recv(bytearray(1))) if sys.argv[1] == "sent" else (lambda: time.sleep(2))
        thread = threading.Thread(target=call, name=EXCHANGE_THREAD)
        thread.start()
        thread.join()
    elif sys.argv[1] == "unbegun":
        thread = threading.Thread(name=EXCHANGE_THREAD)
        threading._limbo[thread] = thread  # as its start() does, until the system has let it run
        threading.Event().wait(2)


threading.Thread(target=look, daemon=True).start()
at_the_place(MPI.COMM_WORLD)
time.sleep(0.5)
import os; sys.stdout.flush(); os._exit(0)
"""


@pytest.mark.parametrize(
    ("where", "waits", "line"),
    [
        ("message", True, "in at_the_place: mpi.Recv("),
        ("sleep", False, "in at_the_place: time.sleep(2)"),
        ("loop", False, "in at_the_place: "),
        ("sent", True, "threading.py:"),
        ("stuck", False, "threading.py:"),
        ("unbegun", False, "threading.py:"),
    ],
)
def test_a_call_of_mpi_is_told_from_work(tmp_path, where, waits, line):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(tmp_path / "program.py"), where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said, _, place = done.stdout.partition(" ")
    assert (said, line in place) == (str(waits), True), done.stdout + done.stderr
