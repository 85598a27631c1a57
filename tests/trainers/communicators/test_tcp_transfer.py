"""Bytes out and in over real sockets, compiled and in Python: all of them, whoever is slow, closes or gets a signal."""

import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from trainers.communicators import tcp_ring
from trainers.communicators.tcp_ring import TransferError, transfer


@pytest.fixture(autouse=True, params=["compiled", "in Python"])
def way(request, monkeypatch):
    if request.param == "in Python":
        monkeypatch.setattr(tcp_ring, "COMPILED", None)
    elif tcp_ring.COMPILED is None:
        pytest.skip("no C compiler when kilobatch was installed")


@pytest.fixture
def lines():
    """(out, where it ends), (in, where it begins); ours do not block."""
    pairs = []
    for _ in range(2):
        listening = socket.create_server(("127.0.0.1", 0))
        own = socket.create_connection(listening.getsockname())
        pairs.append((own, listening.accept()[0]))
        own.setblocking(False)
        listening.close()
    yield pairs
    for line in (line for pair in pairs for line in pair):
        line.close()


def numbers(count, seed):
    return np.random.RandomState(seed).randint(0, 256, count, dtype=np.uint8)


def reader(line, count):
    """A thread that reads so many bytes, and a list that they will be in."""
    found = []

    def read():
        while sum(map(len, found)) < count:
            found.append(line.recv(100_000))

    thread = threading.Thread(target=read)
    thread.start()
    return thread, found


@pytest.mark.parametrize(("num_sent", "num_received"), [(0, 0), (0, 5), (5, 0), (1, 3_000_001), (9_000_001, 70_000)])
def test_all_of_both_arrives_in_its_order(lines, num_sent, num_received):
    (out, end), (into, source) = lines
    sent, coming, received = numbers(num_sent, 0), numbers(num_received, 1), np.zeros(num_received, np.uint8)
    thread, found = reader(end, num_sent)
    sender = threading.Thread(target=source.sendall, args=(coming.tobytes(),))
    sender.start()
    transfer(out, into, sent, received, 65536)
    sender.join()
    thread.join()
    assert b"".join(found) == sent.tobytes()
    assert (received == coming).all()


def test_what_came_after_the_first_bytes_is_counted_and_timed(lines):
    (out, _), (into, source) = lines

    def send():
        for count in (1000, 2000):
            source.sendall(bytes(count))
            time.sleep(0.2)

    threading.Thread(target=send).start()
    count, seconds = transfer(out, into, np.zeros(0, np.uint8), np.zeros(3000, np.uint8), 1000)
    assert count == 2000
    assert 0.15 < seconds < 5


def test_a_line_that_is_closed_is_reported(lines):
    (out, _), (into, source) = lines
    source.close()
    with pytest.raises(TransferError, match="^it closed the connection$") as raised:
        transfer(out, into, np.zeros(0, np.uint8), np.zeros(3, np.uint8), 1000)
    assert not raised.value.while_sending


def test_a_line_nobody_reads_any_more_is_reported(lines):
    (out, end), (into, _) = lines
    threading.Timer(0.2, end.close).start()
    with pytest.raises(TransferError, match="reset by peer|Broken pipe") as raised:
        transfer(out, into, np.zeros(50_000_000, np.uint8), np.zeros(0, np.uint8), 1000)
    assert raised.value.while_sending


def test_a_signal_is_handled_while_nothing_comes(lines):
    (out, _), (into, source) = lines
    handled = []

    def answer(number, frame):
        handled.append(number)
        source.sendall(bytes(3))

    before = signal.signal(signal.SIGUSR1, answer)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        transfer(out, into, np.zeros(0, np.uint8), np.zeros(3, np.uint8), 1000)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [signal.SIGUSR1]


def test_another_thread_runs_meanwhile(lines):
    """Nothing comes before the other thread has done its work."""
    (out, _), (into, source) = lines
    threading.Thread(target=lambda: source.sendall(bytes(sum(range(100_000)) % 2 + 3))).start()
    assert transfer(out, into, np.zeros(0, np.uint8), np.zeros(3, np.uint8), 1000)[0] == 0
