"""Run under mpiexec: rings of sockets, strangers at their doors, neighbours that are late, out of reach or gone.

Rank 0 prints what the test looks at, as JSON.
"""

import json
import socket
import time

import numpy as np
from mpi4py import MPI

from trainers.communicators import Auto, sockets
from trainers.communicators.sockets import SocketRing, Unreachable
from trainers.communicators.wire import FullWire

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
BEFORE = (RANK - 1) % SIZE
found = {"ranks": SIZE}


def numbers(rank, length):
    return np.random.RandomState(rank).randint(0, 256, length, dtype=np.uint8)


def check_messages(ring):
    for length in (0, 1, 7, 65_537, 3_000_001):
        received = np.full(length + BEFORE, 7, np.uint8)
        ring.pass_on(numbers(RANK, length + RANK), received)
        assert np.array_equal(received, numbers(BEFORE, length + BEFORE)), length
    for dtype in (np.float16, np.uint16, np.float32, np.float64):
        received = np.empty(1000, dtype)
        ring.pass_on(np.arange(RANK, RANK + 1000).astype(dtype), received)
        assert np.array_equal(received, np.arange(BEFORE, BEFORE + 1000).astype(dtype))


def seconds_beside_a_late_rank(ring):
    """(all, of the processor) of a message for which everybody waits a second."""
    WORLD.Barrier()
    began, processor = time.perf_counter(), time.process_time()
    if RANK == 0:
        time.sleep(1.0)
    ring.pass_on(np.zeros(1_000_000, np.uint8), np.empty(1_000_000, np.uint8))
    return time.perf_counter() - began, time.process_time() - processor


def answer_to(address, port, said):
    with socket.create_connection((address, port), timeout=5) as line:
        try:
            line.sendall(said)
            line.shutdown(socket.SHUT_WR)
            return line.recv(100)
        except OSError:  # it has been hung up before
            return b""


called = sockets._called


def after_strangers(address, port, hello):
    """Calls as it should once others have: with nothing, too little, another secret, for another worker."""
    other_secret = bytes([hello[0] ^ 1]) + hello[1:]
    other_worker = hello[:-1] + bytes([hello[-1] ^ 1])
    for said in (b"", hello[:-1], other_secret, other_worker, b"GET / HTTP/1.1\r\n\r\n" * 3):
        assert answer_to(address, port, said) == b"", said
    return called(address, port, hello)


def refusal(addresses, make):
    """What is said where rank 1 tells these addresses of itself."""
    own = sockets.own_addresses
    if RANK == 1:
        sockets.own_addresses = lambda: addresses
    try:
        return make()
    finally:
        sockets.own_addresses = own


def unreachable():
    try:
        SocketRing(WORLD)
    except Unreachable as error:
        return str(error)
    raise AssertionError("it was reached")


ring = SocketRing(WORLD)
check_messages(ring)
found["late"] = WORLD.gather(seconds_beside_a_late_rank(ring))
for _ in range(8):
    ring.pass_on(np.zeros(8_000_000, np.uint8), np.empty(8_000_000, np.uint8))
found["windows"] = WORLD.gather(ring._window)
ring.close()

sockets._called = after_strangers
ring = SocketRing(WORLD)
sockets._called = called
check_messages(ring)
sockets._LEAVING_SECONDS = 0.1
WORLD.Barrier()
if RANK == 1:
    ring.close()
    found["left"] = None
else:
    try:
        while True:
            ring.pass_on(np.zeros(100_000, np.uint8), np.empty(100_000, np.uint8))
    except ConnectionError as error:
        found["left"] = str(error)
    ring.close()
found["left"] = WORLD.gather(found["left"])

sockets._MEETING_SECONDS = 2.0
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
    connection.close()
    return choices


found["chosen"] = WORLD.gather(chosen())
found["chosen out of reach"] = WORLD.gather(refusal(["255.255.255.255"], chosen))
if RANK == 0:
    print(json.dumps(found))
