"""Hardware of a cluster: what is refused, and how links, input and timed all-reduces are read."""

import re
from dataclasses import replace

import numpy as np
import pytest

from recipes.planning.cluster import Cluster
from recipes.planning.hardware import (
    Coordination,
    Hardware,
    Input,
    MeasuredAllReduce,
    NetworkLink,
    NodeLink,
    Price,
    Rate,
)

RATE = Rate(model="ResNet50", image_size=224, micro_batch_size=32, devices=8, samples_per_second=1000.0, source="here")
LINK = NodeLink(kind="pcie", gb_per_second=6.0, source="here")
PROBED = replace(LINK, source="kilobatch probe digits/baseline on 2 ranks")
NETWORK = NetworkLink(transport="rdma", cards=2, gbit_per_second=56, source="here")
PRICE = Price(dollars_per_device_hour=1.0, source="here")
HARDWARE = Hardware(device="p100", node_link=LINK, network=NETWORK, rates=(RATE,), source="here")


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (RATE, "samples_per_second", 0.0),
        (RATE, "micro_batch_size", 0),
        (RATE, "devices", -1),
        (LINK, "gb_per_second", 0.0),
        (NETWORK, "gbit_per_second", 0.0),
        (NETWORK, "measured_gb_per_second", float("inf")),
        (PRICE, "dollars_per_device_hour", 0.0),
        (Input(source="here"), "decoded_per_second", 0.0),
    ],
)
def test_a_number_that_must_be_above_zero_is_refused_by_name(record: object, field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{type(record).__name__}.{field} must be above 0, got {value}"):
        replace(record, **{field: value})


@pytest.mark.parametrize(
    ("record", "field", "value", "said"),
    [
        (RATE, "samples_per_second", 1e-7, "at least 0.000001, got 1e-07"),
        (LINK, "gb_per_second", 200e9, "at most 10,000 GB a second, got 2e+11"),
        (PROBED, "gb_per_second", 1e6, "at most 10,000 GB a second (probe the cluster again), got 1e+06"),
        (NETWORK, "gbit_per_second", 200e9, "at most 80,000 Gbit a second"),
        (NETWORK, "measured_gb_per_second", 2e9, "at most 10,000 GB a second"),
        (HARDWARE, "write_gb_per_second", 1e9, "at most 10,000 GB a second"),
        (Input(source="here"), "read_gb_per_second", 1e9, "at most 10,000 GB a second"),
        (PRICE, "dollars_per_device_hour", 98320.0, "at most 1,000 dollars, got 98320"),
    ],
)
def test_a_number_in_another_unit_is_refused_by_name(record: object, field: str, value: float, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{type(record).__name__}.{field} must be {said}")):
        replace(record, **{field: value})


def test_hardware_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="Hardware.rates is empty"):
        replace(HARDWARE, rates=())
    with pytest.raises(ValueError, match="Coordination.microseconds must be at least 0"):
        Coordination(microseconds=-1, microseconds_per_doubling=0)


def test_a_cluster_whose_workers_could_not_reach_each_other_is_refused() -> None:
    case = {"name": "a", "nodes": 2, "workers_per_node": 8, "device": "gpu", "device_memory_bytes": 10**9}
    assert Cluster(**case, hardware=HARDWARE).hardware is HARDWARE
    with pytest.raises(ValueError, match="hardware.network is missing, and there are 2 nodes"):
        Cluster(**case, hardware=replace(HARDWARE, network=None))
    with pytest.raises(ValueError, match="hardware.node_link is missing"):
        Cluster(**case, hardware=replace(HARDWARE, node_link=None))
    with pytest.raises(ValueError, match="of ResNet50 is of 8 devices, and the cluster has 4"):
        Cluster(**{**case, "nodes": 1, "workers_per_node": 4}, hardware=HARDWARE)


def test_a_network_gives_a_share_of_its_line_rate_or_what_was_measured() -> None:
    assert NETWORK.bytes_per_second == pytest.approx(2 * 56e9 / 8 * 0.88)
    tcp = replace(NETWORK, transport="tcp", cards=1, gbit_per_second=100)
    assert tcp.bytes_per_second == 2.2e9  # a node moves no more over TCP
    assert replace(tcp, measured_gb_per_second=0.25).bytes_per_second == 0.25e9


def test_latency_is_that_of_the_kind_unless_given() -> None:
    links = HARDWARE.links
    assert (links.node_latency_seconds, links.network_latency_seconds) == pytest.approx((6e-6, 14e-6))
    own = replace(HARDWARE, node_link=replace(LINK, latency_us=1.5)).links
    assert own.node_latency_seconds == pytest.approx(1.5e-6)


def test_input_is_the_slowest_of_decoding_the_nodes_disk_and_the_shared_store() -> None:
    limits = Input(decoded_per_second=1000, source="here")
    assert limits.seconds(3200, 2) == pytest.approx(1.6)
    disk = replace(limits, read_gb_per_second=0.055)  # 500 samples of 110 kB a second
    assert disk.seconds(3200, 2) == pytest.approx(3.2)
    shared = replace(disk, shared_gb_per_second=0.055)
    assert shared.seconds(3200, 2) == pytest.approx(6.4)
    assert np.allclose(shared.seconds(3200, np.array([1, 2, 4])), [6.4, 6.4, 6.4])
    assert Input(source="here").seconds(3200, 2) == 0


def test_timed_all_reduces_lie_on_straight_lines_between_and_beyond_the_points() -> None:
    timed = MeasuredAllReduce(workers=2, nodes=1, bytes_=(1000, 2000, 4000), milliseconds=(1.0, 3.0, 4.0))
    assert [timed.seconds(size) * 1000 for size in (10, 1000, 1500, 2000, 3000, 4000, 6000)] == pytest.approx(
        [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0]
    )


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("milliseconds", (1.0,), "an entry for each of bytes"),
        ("bytes_", (2000, 1000), "must rise"),
        ("milliseconds", (0.0, 1.0), "above 0"),
    ],
)
def test_timed_all_reduces_that_make_no_sense_are_refused(field: str, value: tuple, said: str) -> None:
    timed = MeasuredAllReduce(workers=2, nodes=1, bytes_=(1000, 2000), milliseconds=(1.0, 3.0))
    with pytest.raises(ValueError, match=said):
        replace(timed, **{field: value})
