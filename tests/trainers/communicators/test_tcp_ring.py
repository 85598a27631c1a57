"""Rings of TCP connections: right messages, no core kept busy, strangers kept out, neighbours named."""

import json
import re
import socket
from pathlib import Path

import pytest

from trainers.communicators import tcp_ring
from trainers.communicators.tcp_ring import nearest_first, own_addresses

PROGRAM = Path(__file__).with_name("sockets_on_ranks.py")


@pytest.fixture(scope="module", params=[(2,), (3,), (3, "python")], ids=lambda words: "-".join(map(str, words)))
def found(request, run_on_ranks):
    """What the program saw; messages and strangers it looks at itself."""
    ranks, *words = request.param
    done = run_on_ranks(ranks, PROGRAM, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ranks"] == ranks
    return found


pytestmark = pytest.mark.mpi


def test_who_waits_for_a_late_neighbour_sleeps(found):
    assert found["late"][1][0] > 0.5, "rank 1 waits for rank 0"
    for _, processor in found["late"]:
        assert processor < 0.4, "spinning would cost a second of a core"


def test_the_window_grows_with_the_bandwidth(found):
    assert min(found["windows"]) > 4 * 65536, "memory carries far more than 33 MB/s"


def test_neighbours_that_have_left_are_named(found):
    ranks = found["ranks"]
    assert found["left"][1] is None
    for rank, output in enumerate(found["left"]):
        if rank in (0, 2):
            assert re.match(rf"rank \d on {re.escape(socket.gethostname())} has left: ", output)
    assert ranks == 3 or found["left"][0].startswith("rank 1 ")


def test_who_does_not_know_the_secret_is_not_believed_and_learns_nothing(found):
    assert found["impostor"] == ["somebody else answers", 16], "the caller's question and nothing more"


def test_a_rank_out_of_reach_is_reported_on_all_ranks_alike(found):
    host = re.escape(socket.gethostname())
    what = rf"rank 0 on {host} cannot reach rank 1 on {host} by TCP"
    for output in found["out of reach"]:
        assert re.fullmatch(
            rf"{what} \(255\.255\.255\.255: .*[Uu]nreachable.*\); without sockets MPI finds its own way", output
        )
    for output in found["nowhere"]:
        assert re.fullmatch(rf"{what} \(it has no IPv4 address\); without sockets MPI finds its own way", output)


def test_auto_reports_what_rings_cost_and_uses_mpi_where_sockets_do_not_reach(found):
    costs = r"a megabyte to the next worker costs \S+ ms by sockets and \S+ ms by MPI"
    for first, second in found["chosen"]:
        assert re.fullmatch(rf"rings by (sockets|MPI): {costs}", first)
        assert re.fullmatch(r"\w+ for buckets like 0\.004 MB \(\S+ ms\)", second)
    for first, _ in found["chosen out of reach"]:
        assert first.startswith("rings by MPI: rank 0 on ")
    assert len({json.dumps(choices) for choices in found["chosen"]}) == 1, "the same on all ranks"


def test_own_addresses_are_this_machines():
    addresses = own_addresses()
    assert "127.0.0.1" in addresses
    for address in addresses:
        with socket.create_server((address, 0)):
            pass


def test_addresses_near_to_ours_are_tried_first_and_the_loopback_on_one_host_only(monkeypatch):
    monkeypatch.setattr(tcp_ring, "own_addresses", lambda: ["127.0.0.1", "10.1.2.3", "172.17.0.1"])
    message = ["127.0.0.1", "192.168.0.9", "172.20.0.1", "10.1.2.4"]
    assert nearest_first(message, same_host=False) == ["10.1.2.4", "172.20.0.1", "192.168.0.9"]
    assert nearest_first(message, same_host=True) == ["10.1.2.4", "172.20.0.1", "192.168.0.9", "127.0.0.1"]
    assert nearest_first([], same_host=True) == []
