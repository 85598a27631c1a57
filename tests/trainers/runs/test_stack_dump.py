"""A stack dump distinguishes a thread that waits for other ranks from one that works."""

import threading
import time
from types import SimpleNamespace

import chainer
import numpy as np
import pytest
from mpi4py import MPI

from trainers.communicators.connection import Connection
from trainers.communicators.wire import FullWire
from trainers.gradients.exchange import Exchange
from trainers.gradients.flat_gradients import FlatGradients, backward_order
from trainers.runs.stack_dump import dump_stack, waiting_for_ranks

SECONDS = 0.4


def receive(mpi):
    mpi.Recv(
        bytearray(1),
        source=0,
    )


def sleep(mpi):
    time.sleep(SECONDS)


def sleep_marked(mpi):
    with waiting_for_ranks():
        with waiting_for_ranks():
            pass
        time.sleep(SECONDS)


def sleep_after_a_mark(mpi):
    with waiting_for_ranks():
        pass
    time.sleep(SECONDS)


def loop(mpi):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        pass


def wait_for_thread(mpi, target=None):
    thread = threading.Thread(target=target, args=(mpi,))
    if target is not None:
        thread.start()
    with waiting_for_ranks(thread):
        threading.Event().wait(SECONDS)
    if target is not None:
        thread.join()


def wait_for_thread_in_mpi(mpi):
    wait_for_thread(mpi, receive)


def wait_for_thread_at_work(mpi):
    wait_for_thread(mpi, sleep)


@pytest.mark.parametrize(
    ("call", "waits", "line"),
    [
        (receive, True, "in receive: mpi.Recv("),
        (sleep, False, "in sleep: time.sleep(SECONDS)"),
        (sleep_marked, True, "in sleep_marked: time.sleep(SECONDS)"),
        (sleep_after_a_mark, False, "in sleep_after_a_mark: time.sleep(SECONDS)"),
        (loop, False, "in loop: "),
        (wait_for_thread_in_mpi, True, "threading.py:"),
        (wait_for_thread_at_work, False, "threading.py:"),
        (wait_for_thread, False, "threading.py:"),  # which has yet to start
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_waiting_for_ranks_is_distinguished_from_work(call, waits, line):
    dumps = []

    def observe():
        time.sleep(SECONDS / 2)
        dumps.append(dump_stack())
        if call in (receive, wait_for_thread_in_mpi):
            MPI.COMM_SELF.Send(bytearray(1), 0)  # `receive` returns

    thread = threading.Thread(target=observe)
    thread.start()
    call(MPI.COMM_SELF)
    thread.join()
    (dump,) = dumps
    assert (dump.waits, line in dump.stack[-1]) == (waits, True), dump


@pytest.mark.parametrize("overlap", [False, True])
def test_a_rank_that_sums_gradients_waits_for_others(overlap):
    """Else the watchdog would find it at fault when another rank hangs."""
    waits = []

    def sum_of(values, wire):
        time.sleep(0.1)  # with overlap the main thread waits for this one by then
        waits.append(dump_stack().waits)

    connection = Connection(SimpleNamespace(size=2, Free=lambda: None), sum_of, num_roundings=0)
    order = backward_order(chainer.Sequential(chainer.links.Linear(1, 1)), np.ones((1, 1), np.float32))
    flat = FlatGradients(order)
    exchange = Exchange(flat, connection, wire=FullWire(), bucket_bytes=1000, overlap=overlap)
    exchange.begin(scale=1.0).finish()
    assert waits == [True]
    assert not dump_stack().waits
    exchange.close()
