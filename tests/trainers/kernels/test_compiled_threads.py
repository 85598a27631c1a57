"""Threads that share compiled passes survive what befalls a process: forks, and handlers of signals that raise."""

import os
import subprocess
import sys

import pytest

from trainers.kernels.cpu import compiled_normalization

pytestmark = pytest.mark.skipif(
    compiled_normalization.COMPILED is None, reason="needs what a C compiler makes at the installation, and AVX2"
)
IN_A_CHILD = """
import os, signal, sys, threading
import numpy as np
from trainers.kernels.cpu import operators as numpy_operators

x = np.random.RandomState(0).normal(size=(1, 20_000, 64)).astype("f")
gamma, beta = np.ones(64, "f"), np.zeros(64, "f")

def computed():
    return numpy_operators.normalized_by(x, numpy_operators.whole_scales(x, gamma, beta, 1e-5), relu=True)

expected = computed()
child = os.fork()  # has none of the threads that were begun above
if child == 0:
    os._exit(0 if (computed() == expected).all() else 3)
assert os.waitpid(child, 0)[1] == 0, "child"

ended = threading.Event()
busy = threading.Thread(target=lambda: [computed() for _ in iter(ended.is_set, True)])
busy.start()
for _ in range(10):  # while another thread begins, shares and ends work
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if (computed() == expected).all() else 3)
    assert os.waitpid(child, 0)[1] == 0, "child of a busy process"
ended.set()
busy.join()

class Alarm(Exception):
    pass

def ring(*_):
    global armed, rung
    if armed:
        armed, rung = False, rung + 1
        raise Alarm

armed, rung, same = False, 0, True
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
while rung < 60:
    try:
        armed = True
        same &= bool((computed() == expected).all())
        armed = False
    except Alarm:
        pass
assert same and (computed() == expected).all()
print("ok")
"""


def test_a_fork_has_threads_and_an_exception_in_a_signals_handler_ends_no_pass_half_way():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD],
        env={**os.environ, "OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr
