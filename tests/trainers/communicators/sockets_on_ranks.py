"""Run under mpiexec: rings of sockets, strangers at their doors, neighbours that are late, out of reach or gone.

    mpiexec -n 3 python -m mpi4py sockets_on_ranks.py [python]

With `python` bytes are passed on as where nothing was compiled. Rank 0 prints what the test looks at, as JSON.
"""

import json
import socket
import sys
import time

import numpy as np
from mpi4py import MPI

from trainers.communicators import Auto, Torus, auto, tcp_ring
from trainers.communicators.tcp_ring import Handshake, SocketRing, Unreachable
from trainers.communicators.wire import FullWire

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
BEFORE = (RANK - 1) % SIZE
found = {"ranks": SIZE}
KEPT = dict(vars(tcp_ring))
if sys.argv[1:] == ["python"]:
    tcp_ring.COMPILED = None


def numbers(rank, length):
    return np.random.RandomState(rank).randint(0, 256, length, dtype=np.uint8)


def check_messages(ring):
    for length in (0, 1, 7, 65_537, 3_000_001):
        received = np.full(length + BEFORE, 7, np.uint8)
        ring.shift(numbers(RANK, length + RANK), received)
        assert np.array_equal(received, numbers(BEFORE, length + BEFORE)), length
    for dtype in (np.float16, np.uint16, np.float32, np.float64):
        received = np.empty(1000, dtype)
        ring.shift(np.arange(RANK, RANK + 1000).astype(dtype), received)
        assert np.array_equal(received, np.arange(BEFORE, BEFORE + 1000).astype(dtype))


def seconds_beside_a_late_rank(ring):
    """(all, of the processor) of a message for which everybody waits a second."""
    WORLD.Barrier()
    began, processor = time.perf_counter(), time.process_time()
    if RANK == 0:
        time.sleep(1.0)
    ring.shift(np.zeros(1_000_000, np.uint8), np.empty(1_000_000, np.uint8))
    return time.perf_counter() - began, time.process_time() - processor


def text(kind, call, *arguments):
    """The words of the exception that a call must end with."""
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def answer_to(address, port, words):
    """All that a stranger hears who says these words and nothing more."""
    with socket.create_connection((address, port), timeout=5) as line:
        heard = b""
        try:
            line.sendall(words)
            line.shutdown(socket.SHUT_WR)
            while part := line.recv(100):
                heard += part
        except OSError:  # it has been hung up before
            pass
        return heard


class Late(Handshake):
    """A caller before whom others call: silent ones, one that hangs up, of another secret, for another worker."""

    def call(self, line, end):
        address = line.getpeername()
        silent = [socket.create_connection(address) for _ in range(3)]
        assert answer_to(*address, b"") == b""
        assert len(answer_to(*address, b"GET / HTTP/1.1\r\n\r\n" * 9)) <= 48, "a question and a proof at most"
        strangers = [Handshake(bytes(16), BEFORE, RANK), Handshake(self._secret, (RANK + 1) % SIZE, RANK)]
        for stranger in strangers:
            with socket.create_connection(address) as other:
                assert text(ConnectionRefusedError, stranger.call, other, end) == "somebody else answers"
        super().call(line, end)
        for one in silent:
            one.close()


def impostor():
    """What a caller finds where somebody answers who does not know the secret."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        line = socket.create_connection(door.getsockname())
        other, _ = door.accept()
        other.sendall(bytes(48))
        found = text(ConnectionRefusedError, Handshake(bytes(16), 0, 1).call, line, time.monotonic() + 5)
        line.close()
        heard = other.recv(100)
        other.close()
        return found, len(heard)


def refusal(addresses, make):
    """What `make` returns where rank 1 has these addresses."""
    own = tcp_ring.own_addresses
    if RANK == 1:
        tcp_ring.own_addresses = lambda: addresses
    try:
        return make()
    finally:
        tcp_ring.own_addresses = own


def shift_for_ever(ring):
    while True:
        ring.shift(np.zeros(100_000, np.uint8), np.empty(100_000, np.uint8))


def unreachable():
    return text(Unreachable, SocketRing, WORLD)


ring = SocketRing(WORLD)
check_messages(ring)
found["late"] = WORLD.gather(seconds_beside_a_late_rank(ring))
for _ in range(8):
    ring.shift(np.zeros(8_000_000, np.uint8), np.empty(8_000_000, np.uint8))
found["windows"] = WORLD.gather(ring._window)
ring.close()

tcp_ring.Handshake = Late
ring = SocketRing(WORLD)
tcp_ring.Handshake = Handshake
found["impostor"] = impostor()
check_messages(ring)
tcp_ring._LEAVING_SECONDS = 0.1
WORLD.Barrier()
if RANK == 1:
    ring.close()
    found["left"] = None
else:
    found["left"] = text(ConnectionError, shift_for_ever, ring)
    began = time.perf_counter()
    assert text(ConnectionError, shift_for_ever, ring) == found["left"]
    assert time.perf_counter() - began < 0.1, "it is not waited for twice"
    ring.close()
found["left"] = WORLD.gather(found["left"])

tcp_ring._RENDEZVOUS_SECONDS = 2.0
ring = refusal(["255.255.255.255", "127.0.0.1"], lambda: SocketRing(WORLD))
check_messages(ring)
ring.close()
found["out of reach"] = WORLD.gather(refusal(["255.255.255.255"], unreachable))
found["nowhere"] = WORLD.gather(refusal([], unreachable))


def chosen():
    connection = Auto(ranks_per_node=1).connect(WORLD.Dup())
    values = connection.allocate(1000, np.float32)
    values[...] = RANK
    connection.sum(values, FullWire())
    assert (values == sum(range(SIZE))).all()
    choices = list(connection.choices)
    assert connection.wait_mode in ("sleeps", "spins", "sleeps within a block, spins between them")
    for beside in (True, False):
        connection.set_beside_backward(beside)
        assert {candidate._beside_backward for candidate in connection._candidates.values()} == {beside}
    connection.close()
    return choices


def without_sockets():
    """A component whose rings do not close, though that of all workers did."""
    connection = auto._connected(Torus(sockets=True), WORLD.Dup())
    values = np.full(SIZE, RANK, np.float32)
    connection.sum(values, FullWire())
    assert (values == sum(range(SIZE))).all()
    connection.close()


refusal(["255.255.255.255"], without_sockets)
found["chosen"] = WORLD.gather(chosen())
found["chosen out of reach"] = WORLD.gather(refusal(["255.255.255.255"], chosen))
vars(tcp_ring).update(KEPT)  # for the next program on these ranks
if RANK == 0:
    print(json.dumps(found))
