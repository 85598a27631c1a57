"""Seconds of an all-reduce: by hand, and what must hold for every algorithm."""

from dataclasses import replace

import numpy as np
import pytest

from recipes.planning import all_reduce
from recipes.planning.all_reduce import ALGORITHMS, Links

LINKS = Links(
    node_bytes_per_second=10e9,
    node_latency_seconds=5e-6,
    network_bytes_per_second=1e9,
    network_latency_seconds=20e-6,
)
SIZES = (4, 1000, 1_000_000, 100_000_000)
CASES = [(2, 1), (8, 1), (2, 2), (16, 2), (32, 4), (64, 64), (1024, 128), (1000, 125)]
every = pytest.mark.parametrize("name", ALGORITHMS)


def test_a_ring_by_hand() -> None:
    # In one node: 2(P-1) = 6 hops of 5 us, 2 x 3/4 of 1 MB at 10 GB/s.
    assert all_reduce.ring(1e6, 4, 1, LINKS) == pytest.approx(6 * 5e-6 + 1.5e-4, rel=1e-12)
    # Over 2 nodes of 2: 2(N-1) = 2 of the 6 hops cross; the network is the narrowest link.
    assert all_reduce.ring(1e6, 4, 2, LINKS) == pytest.approx(4 * 5e-6 + 2 * 20e-6 + 1.5e-3, rel=1e-12)


def test_a_tree_by_hand() -> None:
    assert all_reduce.tree(1e6, 32, 8, LINKS) == pytest.approx(2 * 3 * 20e-6 + 2 * 5e-6 + 2.1e-3, rel=1e-12)


def test_halving_doubling_and_hierarchical_by_hand() -> None:
    inside = 2 * 3 * 5e-6 + 1.5 * 1e6 / 10e9
    assert all_reduce.halving_doubling(1e6, 16, 4, LINKS) == pytest.approx(inside + 4 * 20e-6 + 1.5e-3, rel=1e-12)
    assert all_reduce.hierarchical(1e6, 16, 4, LINKS) == pytest.approx(inside + 6 * 20e-6 + 1.5e-3, rel=1e-12)


def test_a_torus_by_hand() -> None:
    # 4 x 4 devices, one a node: along the row 6 hops and 2 x 3/4 of 1 MB; along the column a quarter of that.
    expected = 12 * 20e-6 + 1.5e-3 + 1.5e-3 / 4
    assert all_reduce.torus(4, 4)(1e6, 16, 16, LINKS) == pytest.approx(expected, rel=1e-12)
    assert all_reduce.nearest_torus(1e6, 16, 16, LINKS) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="16 devices, got 15"):
        all_reduce.torus(4, 4)(1e6, 15, 15, LINKS)


def test_nccl_takes_the_tree_for_small_buffers_on_many_nodes() -> None:
    assert all_reduce.nccl(1000, 1024, 128, LINKS) == all_reduce.tree(1000, 1024, 128, LINKS)
    assert all_reduce.nccl(1e8, 16, 2, LINKS) == all_reduce.ring(1e8, 16, 2, LINKS)


@every
@pytest.mark.parametrize(("devices", "nodes"), CASES)
def test_more_bandwidth_less_latency_or_fewer_bytes_is_never_slower(name: str, devices: int, nodes: int) -> None:
    seconds = ALGORITHMS[name]
    for size in SIZES:
        now = float(seconds(size, devices, nodes, LINKS))
        for field, factor in (
            ("node_bytes_per_second", 2.0),
            ("network_bytes_per_second", 2.0),
            ("node_latency_seconds", 0.5),
            ("network_latency_seconds", 0.5),
        ):
            better = replace(LINKS, **{field: factor * getattr(LINKS, field)})
            assert float(seconds(size, devices, nodes, better)) <= now
        assert float(seconds(size // 2, devices, nodes, LINKS)) < now


@every
def test_arrays_give_what_numbers_give(name: str) -> None:
    devices, nodes = np.array([case[0] for case in CASES]), np.array([case[1] for case in CASES])
    together = ALGORITHMS[name](1e6, devices, nodes, LINKS)
    assert together.tolist() == [float(ALGORITHMS[name](1e6, *case, LINKS)) for case in CASES]


@pytest.mark.parametrize("field", ["node_bytes_per_second", "network_bytes_per_second"])
def test_a_bandwidth_of_zero_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"Links.{field} must be above 0, got 0"):
        replace(LINKS, **{field: 0})


def test_a_negative_latency_is_refused() -> None:
    with pytest.raises(ValueError, match="node_latency_seconds must be at least 0"):
        replace(LINKS, node_latency_seconds=-1e-6)
