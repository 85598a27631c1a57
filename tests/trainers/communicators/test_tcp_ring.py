"""Rings of TCP connections: right messages, no core kept busy, strangers kept out, neighbours named."""

import json
import os
import re
import signal
import socket
import threading
import time
from unittest import mock

import numpy as np
import pytest
from mpi4py import MPI

from trainers.communicators import Auto, Ring, Torus, auto, tcp_ring
from trainers.communicators import ring as ring_module
from trainers.communicators.ring import MpiRing
from trainers.communicators.tcp_ring import (
    Handshake,
    SocketRing,
    TransferError,
    Unreachable,
    nearest_first,
    own_addresses,
    transfer,
)
from trainers.communicators.wire import FullWire

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
HOST = re.escape(socket.gethostname())


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_on_ranks(run_on_ranks, ranks):
    done = run_on_ranks(ranks, __file__)
    assert done.returncode == 0, done.stdout + done.stderr


def test_own_addresses_are_this_machines():
    addresses = own_addresses()
    assert "127.0.0.1" in addresses
    for address in addresses:
        with socket.create_server((address, 0)):
            pass


def test_addresses_near_to_ours_are_tried_first_and_the_loopback_on_one_host_only(monkeypatch):
    monkeypatch.setattr(tcp_ring, "own_addresses", lambda: ["127.0.0.1", "10.1.2.3", "172.17.0.1"])
    addresses = ["127.0.0.1", "192.168.0.9", "172.20.0.1", "10.1.2.4"]
    assert nearest_first(addresses, same_host=False) == ["10.1.2.4", "172.20.0.1", "192.168.0.9"]
    assert nearest_first(addresses, same_host=True) == ["10.1.2.4", "172.20.0.1", "192.168.0.9", "127.0.0.1"]
    assert nearest_first([], same_host=True) == []


@pytest.fixture
def connections():
    """(out, its other end), (in, its other end); ours do not block."""
    pairs = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            own = socket.create_connection(listening.getsockname())
            pairs.append((own, listening.accept()[0]))
        own.setblocking(False)
    yield pairs
    for connection in (connection for pair in pairs for connection in pair):
        connection.close()


def numbers(seed, count):
    return np.random.RandomState(seed).randint(0, 256, count, dtype=np.uint8)


@pytest.mark.parametrize(("num_sent", "num_received"), [(0, 0), (0, 5), (5, 0), (1, 3_000_001), (9_000_001, 70_000)])
def test_all_of_both_arrives_in_its_order(connections, num_sent, num_received):
    (out, end), (into, source) = connections
    sent, coming, received = numbers(0, num_sent), numbers(1, num_received), np.zeros(num_received, np.uint8)
    parts = []

    def read():
        while sum(map(len, parts)) < num_sent:
            parts.append(end.recv(100_000))

    threads = [threading.Thread(target=read), threading.Thread(target=source.sendall, args=(coming.tobytes(),))]
    for thread in threads:
        thread.start()
    transfer(out, into, sent, received, 65536)
    for thread in threads:
        thread.join()
    assert b"".join(parts) == sent.tobytes()
    assert (received == coming).all()


def receive(connections, count):
    (out, _), (into, _) = connections
    return transfer(out, into, np.zeros(0, np.uint8), np.zeros(count, np.uint8), 1000)


def test_what_came_after_the_first_bytes_is_counted_and_timed(connections):
    source = connections[1][1]

    def send():
        for count in (1000, 2000):
            source.sendall(bytes(count))
            time.sleep(0.2)

    threading.Thread(target=send).start()
    count, seconds = receive(connections, 3000)
    assert count == 2000
    assert 0.15 < seconds < 5


def test_a_connection_that_is_closed_is_reported(connections):
    connections[1][1].close()
    with pytest.raises(TransferError, match="^it closed the connection$") as raised:
        receive(connections, 3)
    assert not raised.value.while_sending


def test_a_connection_nobody_reads_any_more_is_reported(connections):
    (out, end), (into, _) = connections
    threading.Timer(0.2, end.close).start()
    with pytest.raises(TransferError, match="reset by peer|Broken pipe") as raised:
        transfer(out, into, np.zeros(50_000_000, np.uint8), np.zeros(0, np.uint8), 1000)
    assert raised.value.while_sending


def test_a_signal_is_handled_while_nothing_comes(connections):
    handled = []

    def answer(number, frame):
        handled.append(number)
        connections[1][1].sendall(bytes(3))

    before = signal.signal(signal.SIGUSR1, answer)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        receive(connections, 3)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [signal.SIGUSR1]


def test_another_thread_runs_meanwhile(connections):
    """Nothing comes before the other thread has done its work."""
    threading.Thread(target=lambda: connections[1][1].sendall(bytes(sum(range(100_000)) % 2 + 3))).start()
    assert receive(connections, 3)[0] == 0


def check_messages(ring):
    before = (RANK - 1) % SIZE
    for length in (0, 1, 7, 65_537, 3_000_001):
        received = np.full(length + before, 7, np.uint8)
        ring.shift(numbers(RANK, length + RANK), received)
        assert np.array_equal(received, numbers(before, length + before)), length
    for dtype in (np.float16, np.uint16, np.float32, np.float64):
        received = np.empty(1000, dtype)
        ring.shift(np.arange(RANK, RANK + 1000).astype(dtype), received)
        assert np.array_equal(received, np.arange(before, before + 1000).astype(dtype))


def check_who_waits_for_a_late_neighbour_sleeps(ring):
    WORLD.Barrier()
    began, processor = time.perf_counter(), time.process_time()
    if RANK == 0:
        time.sleep(1.0)
    ring.shift(np.zeros(1_000_000, np.uint8), np.empty(1_000_000, np.uint8))
    assert RANK != 1 or time.perf_counter() - began > 0.5, "rank 1 waits for rank 0"
    assert time.process_time() - processor < 0.4, "spinning would cost a second of a core"


def check_the_window_grows_with_the_bandwidth(ring):
    for _ in range(8):
        ring.shift(np.zeros(8_000_000, np.uint8), np.empty(8_000_000, np.uint8))
    assert ring._window > 4 * 65536, "memory carries far more than 33 MB/s"


def answer_to(address, port, words):
    """All that a stranger hears who says these words and nothing more."""
    with socket.create_connection((address, port), timeout=5) as connection:
        heard = b""
        try:
            connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(100):
                heard += part
        except OSError:  # the worker has hung up before
            pass
        return heard


class LateHandshake(Handshake):
    """A caller before whom others call: silent ones, one that hangs up, of another secret, for another worker."""

    def call(self, connection, end):
        address = connection.getpeername()
        silent = [socket.create_connection(address) for _ in range(3)]
        assert answer_to(*address, b"") == b""
        assert len(answer_to(*address, b"GET / HTTP/1.1\r\n\r\n" * 9)) <= 48, "a question and a proof at most"
        before, after = (RANK - 1) % SIZE, (RANK + 1) % SIZE
        for stranger in (Handshake(bytes(16), before, RANK), Handshake(self._secret, after, RANK)):
            with socket.create_connection(address) as other, pytest.raises(ConnectionRefusedError, match="somebody"):
                stranger.call(other, end)
        super().call(connection, end)
        for one in silent:
            one.close()


def check_who_does_not_have_the_secret_is_not_believed_and_learns_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()) as connection:
            other, _ = listening.accept()
            other.sendall(bytes(48))
            with pytest.raises(ConnectionRefusedError, match="^somebody else answers$"):
                Handshake(bytes(16), 0, 1).call(connection, time.monotonic() + 5)
        with other:
            assert len(other.recv(100)) == 16, "the caller's question and nothing more"


def shift_for_ever(ring):
    while True:
        ring.shift(np.zeros(100_000, np.uint8), np.empty(100_000, np.uint8))


def check_neighbours_that_have_left_are_named(ring):
    tcp_ring._LEAVING_SECONDS = 0.5
    WORLD.Barrier()
    if RANK != 1:
        errors = []
        for _ in range(2):
            began = time.perf_counter()
            with pytest.raises(ConnectionError) as raised:
                shift_for_ever(ring)
            errors.append(str(raised.value))
        assert errors[0] == errors[1]
        assert time.perf_counter() - began < 0.5, "the neighbour is not waited for twice"
        left = r"\d" if SIZE == 3 else "1"
        assert re.match(rf"rank {left} on {HOST} has left: ", errors[0])
    ring.close()


def where_rank_1_has(addresses, make):
    """What `make` returns where rank 1 has these addresses."""
    own = tcp_ring.own_addresses
    if RANK == 1:
        tcp_ring.own_addresses = lambda: addresses
    try:
        return make()
    finally:
        tcp_ring.own_addresses = own


UNREACHABLE = ["255.255.255.255"]


def check_a_rank_out_of_reach_is_reported_on_all_ranks_alike():
    tcp_ring._RENDEZVOUS_SECONDS = 2.0
    ring = where_rank_1_has([*UNREACHABLE, "127.0.0.1"], lambda: SocketRing(WORLD))
    check_messages(ring)
    ring.close()
    tcp_ring._RENDEZVOUS_SECONDS = 0.3  # which rank 1 waits for rank 0, here and in the checks after this one
    for addresses, why in ((UNREACHABLE, r"255\.255\.255\.255: .*[Uu]nreachable.*"), ([], "it has no IPv4 address")):
        with pytest.raises(Unreachable) as raised:
            where_rank_1_has(addresses, lambda: SocketRing(WORLD))
        message = (
            rf"rank 0 on {HOST} cannot reach rank 1 on {HOST} by TCP \({why}\); without sockets MPI finds its own way"
        )
        assert re.fullmatch(message, str(raised.value))


def check_sockets_without_compiled_code_are_refused_on_all_ranks_alike():
    compiled, tcp_ring.COMPILED = tcp_ring.COMPILED, None
    with pytest.raises(Unreachable, match="installed without a C compiler; without sockets MPI finds its own way"):
        SocketRing(WORLD)
    tcp_ring.COMPILED = compiled


def choices_of_auto():
    connection = Auto(ranks_per_node=1).connect(WORLD.Dup())
    values = connection.allocate(1000, np.float32)
    values[...] = RANK
    connection.sum(values, FullWire())
    assert (values == sum(range(SIZE))).all()
    assert connection.wait_mode in ("sleeps", "spins", "sleeps within a block, spins between them")
    for beside in (True, False):
        connection.set_beside_backward(beside)
        assert {candidate._beside_backward for candidate in connection._candidates.values()} == {beside}
    connection.close()
    assert len(set(map(json.dumps, WORLD.allgather(connection.choices)))) == 1, "the same on all ranks"
    return connection.choices


def check_auto_reports_what_rings_cost_and_uses_mpi_where_sockets_do_not_reach():
    tcp_ring._RENDEZVOUS_SECONDS = 15.0
    first, second = choices_of_auto()
    costs = r"a megabyte to the next worker costs \S+ ms by sockets and \S+ ms by MPI"
    assert re.fullmatch(rf"rings by (sockets|MPI): {costs}", first)
    assert re.fullmatch(r"\w+ for buckets like 0\.004 MB \(\S+ ms\)", second)
    tcp_ring._RENDEZVOUS_SECONDS = 0.3
    first, _ = where_rank_1_has(UNREACHABLE, choices_of_auto)
    assert first.startswith("rings by MPI: rank 0 on ")


def check_sum(connection):
    values = np.full(SIZE, RANK, np.float32)
    connection.sum(values, FullWire())
    assert (values == sum(range(SIZE))).all()
    connection.close()


def check_a_component_whose_rings_cannot_be_connected_sums_without_sockets():
    with mock.patch.object(ring_module, "ranks_here", lambda mpi: frozenset({mpi.rank})):  # each on another host
        check_sum(where_rank_1_has(UNREACHABLE, lambda: auto._connected(Torus(sockets=True), WORLD.Dup())))


def check_a_ring_within_a_host_goes_by_mpi():
    connection = where_rank_1_has(UNREACHABLE, lambda: Ring(sockets=True).connect(WORLD.Dup()))
    assert isinstance(connection._ring, MpiRing)
    check_sum(connection)


if __name__ == "__main__":  # on a rank
    kept = dict(vars(tcp_ring))
    ring = SocketRing(WORLD)
    check_messages(ring)
    check_who_waits_for_a_late_neighbour_sleeps(ring)
    check_the_window_grows_with_the_bandwidth(ring)
    ring.close()
    tcp_ring.Handshake = LateHandshake
    ring = SocketRing(WORLD)
    tcp_ring.Handshake = Handshake
    check_who_does_not_have_the_secret_is_not_believed_and_learns_nothing()
    check_messages(ring)
    check_neighbours_that_have_left_are_named(ring)
    check_a_rank_out_of_reach_is_reported_on_all_ranks_alike()
    check_sockets_without_compiled_code_are_refused_on_all_ranks_alike()
    check_a_component_whose_rings_cannot_be_connected_sums_without_sockets()
    check_a_ring_within_a_host_goes_by_mpi()
    check_auto_reports_what_rings_cost_and_uses_mpi_where_sockets_do_not_reach()
    vars(tcp_ring).update(kept)  # for the next program on these ranks
