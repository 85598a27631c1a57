"""The closed form of an update against discrete events, and identities that any model of time must hold."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import simpy

from recipes.planning.all_reduce import ALGORITHMS, Links, ring
from recipes.planning.networks import Layer, Network, network
from recipes.planning.update_time import (
    Compute,
    ExchangeTime,
    buckets_by_size,
    buckets_by_time,
    calibrated,
    expected_maximum,
    sharing_time,
    update_time,
)

LINKS = Links(
    node_bytes_per_second=10e9,
    node_latency_seconds=5e-6,
    network_bytes_per_second=1e9,
    network_latency_seconds=20e-6,
)
COMPUTE = Compute(fixed_seconds=0.010, seconds_per_sample=0.003)
TINY = Network("tiny", 8, (Layer(100, 40), Layer(300, 50), Layer(600, 10)))


def simulated(net: Network, compute: Compute, exchange: ExchangeTime, *, devices: int, nodes: int, batch: int) -> float:
    """Seconds of one update, event by event: a device that computes layer by layer, and a channel that sends."""
    environment = simpy.Environment()
    channel = simpy.Resource(environment)
    total = compute.seconds(batch)
    backward = (1 - compute.forward_share) * total
    ended = []

    def send(values: int):
        with channel.request() as turn:
            yield turn
            yield environment.timeout(float(exchange.all_reduce(values * exchange.wire_bytes, devices, nodes, LINKS)))
            ended.append(environment.now)

    def by_size():
        held, sends = 0, []
        yield environment.timeout(compute.forward_share * total)
        for layer in reversed(net.layers):
            yield environment.timeout(backward * layer.multiply_adds / net.multiply_adds)
            held += layer.parameters
            if 4 * held >= exchange.bucket_bytes:
                sends.append(environment.process(send(held)))
                held = 0
        if held:
            sends.append(environment.process(send(held)))
        ended.append(environment.now)
        yield environment.all_of(sends)

    environment.run(environment.process(by_size()))
    return max(ended)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("devices", "nodes"), [(8, 1), (16, 2), (64, 8)])
@pytest.mark.parametrize("bucket", [1, 100_000, 4_000_000, math.inf])
def test_the_closed_form_is_what_discrete_events_give(name: str, devices: int, nodes: int, bucket: float) -> None:
    net = network("resnet18", 64)
    for batch in (1, 7, 64):
        exchange = ExchangeTime(all_reduce=ALGORITHMS[name], bucket_bytes=bucket)
        made = update_time(net, COMPUTE, exchange, LINKS, devices=devices, nodes=nodes, micro_batch_size=batch)
        events = simulated(net, COMPUTE, exchange, devices=devices, nodes=nodes, batch=batch)
        assert float(made.total) == pytest.approx(events, rel=1e-9)


def test_no_overlap_adds_and_double_buffering_takes_the_longer() -> None:
    whole = float(ring(4 * TINY.num_parameters, 4, 4, LINKS))
    case = {"devices": 4, "nodes": 4, "micro_batch_size": 2}
    none = update_time(TINY, COMPUTE, ExchangeTime(all_reduce=ring, overlap="none"), LINKS, **case)
    assert float(none.total) == pytest.approx(0.016 + whole, rel=1e-12)
    double = ExchangeTime(all_reduce=ring, overlap="double_buffering")
    assert float(update_time(TINY, COMPUTE, double, LINKS, **case).total) == pytest.approx(0.016, rel=1e-12)
    slow = replace(LINKS, network_bytes_per_second=1000.0)
    assert float(update_time(TINY, COMPUTE, double, slow, **case).total) == pytest.approx(
        float(ring(4000, 4, 4, slow)), rel=1e-12
    )


def fluid(compute: float, communication: float, own: float, sending: float) -> float:
    """Seconds until both are done, of which each goes on at a share of its rate while the other does too."""
    first = min(compute / own, communication / sending)
    return first + max(compute - own * first, communication - sending * first)


@pytest.mark.parametrize(("own", "sending"), [(1.0, 1.0), (0.9, 0.95), (0.7, 0.6), (0.95, 0.5)])
@pytest.mark.parametrize("communication", [0.5, 0.9, 1.0, 1.3, 4.0])
def test_double_buffering_on_shared_cores_is_two_fluids(communication: float, own: float, sending: float) -> None:
    exchange = ExchangeTime(
        all_reduce=lambda *_: communication,
        overlap="double_buffering",
        contention=(1 - own) / sending,
        slowdown=(1 - sending) / own,
    )
    compute = Compute(fixed_seconds=1.0, seconds_per_sample=0.0)
    made = update_time(TINY, compute, exchange, LINKS, devices=4, nodes=4, micro_batch_size=1)
    expected = fluid(1.0, communication, own, sending)
    # Exact where communication is the longer; where compute is, up to the little that both miss at their ends.
    assert float(made.total) == pytest.approx(expected, rel=1e-12 if communication >= 1 else 0.06)


def test_one_device_only_computes() -> None:
    for overlap in ("none", "bucket", "double_buffering"):
        made = update_time(
            TINY,
            replace(COMPUTE, sigma=0.02),
            ExchangeTime(all_reduce=ring, overlap=overlap, contention=0.05),
            LINKS,
            devices=1,
            nodes=1,
            micro_batch_size=10,
            accumulation_steps=3,
        )
        assert float(made.total) == COMPUTE.seconds(10) * 3


def test_the_exchange_overlaps_with_the_last_micro_batch_only() -> None:
    exchange = ExchangeTime(all_reduce=lambda *_: 0.1, bucket_bytes=math.inf)
    one, four = (
        update_time(TINY, COMPUTE, exchange, LINKS, devices=4, nodes=4, micro_batch_size=2, accumulation_steps=steps)
        for steps in (1, 4)
    )
    assert float(four.total - one.total) == pytest.approx(3 * COMPUTE.seconds(2), rel=1e-12)


def test_input_bounds_an_update_that_computes_faster() -> None:
    exchange = ExchangeTime(all_reduce=ring)
    made = update_time(TINY, COMPUTE, exchange, LINKS, devices=1, nodes=1, micro_batch_size=1, input_seconds=0.5)
    assert float(made.total) == 0.5
    assert float(made.waiting_for_input) == pytest.approx(0.487)


def test_buckets_close_at_the_first_layer_that_fills_them() -> None:
    # Backward finishes the layers of 600, 300, 100 numbers after 10, 60, 100 % of its time.
    assert [(b.values, b.ready) for b in buckets_by_size(TINY, 4 * 700)] == [(900, 0.6), (100, 1.0)]
    assert [b.values for b in buckets_by_size(TINY, 1)] == [600, 300, 100]
    assert [b.values for b in buckets_by_size(TINY, math.inf)] == [1000]


def test_buckets_by_time_close_with_the_cycle() -> None:
    assert [(b.values, b.ready) for b in buckets_by_time(TINY, math.inf, 0.5)] == [(600, 0.5), (400, 1.0)]
    assert [(b.values, b.ready) for b in buckets_by_time(TINY, 4 * 300, 2.0)] == [(600, 2.0), (300, 2.0), (100, 2.0)]
    assert sum(b.values for b in buckets_by_time(TINY, math.inf, 0.01)) == TINY.num_parameters


def test_expected_maxima_are_the_known_ones() -> None:
    # Two: 1/sqrt(pi); three: 3/(2 sqrt(pi)); 10 and 100: tables of order statistics.
    assert float(expected_maximum(1)) == 0.0
    assert float(expected_maximum(2)) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-5)
    assert float(expected_maximum(3)) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-5)
    assert float(expected_maximum(10)) == pytest.approx(1.538753, abs=1e-5)
    assert float(expected_maximum(100)) == pytest.approx(2.507594, abs=2e-4)


def test_expected_maxima_agree_with_draws() -> None:
    # The largest of P normals: the P-th root of a uniform number is its place among them.
    places = np.random.default_rng(0).random(20_000) ** (1 / 1024)
    draws = np.array([NormalDist().inv_cdf(place) for place in places])
    assert float(expected_maximum(1024)) == pytest.approx(draws.mean(), abs=4 * draws.std() / math.sqrt(len(draws)))


@pytest.mark.parametrize("overlap", ["none", "bucket", "double_buffering"])
@pytest.mark.parametrize("cycle", [0.0, 0.005])
def test_a_calibrated_model_returns_its_rate(overlap: str, cycle: float) -> None:
    net = network("resnet50", 224)
    exchange = ExchangeTime(all_reduce=ring, overlap=overlap, bucket_bytes=4e6, cycle_seconds=cycle, contention=0.048)

    def seconds(per_sample: float) -> float:
        compute = Compute(fixed_seconds=0.01, seconds_per_sample=per_sample, sigma=0.018)
        case = {"devices": 8, "nodes": 1, "micro_batch_size": 64}
        return float(update_time(net, compute, exchange, LINKS, **case).total)

    for rate in (200.0, 1290.0, 5000.0):
        per_sample = calibrated(seconds, samples_per_second=rate, global_batch_size=512)
        # With a cycle the time jumps by one where a layer misses it, and a rate within a jump does not exist.
        assert seconds(per_sample) == pytest.approx(512 / rate, rel=1e-12, abs=cycle)


def test_a_rate_that_leaves_no_time_to_compute_is_refused() -> None:
    with pytest.raises(ValueError, match="leave no time to compute: .* 10.0 of 1.0 ms"):
        calibrated(lambda per_sample: 0.01 + 8 * per_sample, samples_per_second=8000, global_batch_size=8)


@pytest.mark.parametrize(("team", "per_node"), [(1, 8), (2, 8), (8, 8), (16, 4), (64, 8), (8, 1)])
def test_a_team_gathers_statistics_as_workers_that_double_what_they_hold(team: int, per_node: int) -> None:
    """Each round steps every worker: it takes all that its partner holds, of 16 bytes a channel and worker."""
    made = Network("two norms", 0, (Layer(99, 1),), norm_channels=(64, 256))
    links = Links(
        node_bytes_per_second=1e9,
        node_latency_seconds=1e-6,
        network_bytes_per_second=1e8,
        network_latency_seconds=1e-4,
    )
    seconds = 0.0
    for channels in (64, 256, 256, 64):  # forward and backward
        held, bit = dict.fromkeys(range(team), 1), 1
        while bit < team:
            taken = {rank: held[rank ^ bit] * 16 * channels for rank in held}
            crossing = {rank: taken[rank] for rank in held if rank // per_node != (rank ^ bit) // per_node}
            if crossing:
                seconds += 1e-4 + sum(crossing[rank] for rank in range(per_node)) / 1e8
            else:
                seconds += 1e-6 + taken[0] / 1e9
            held, bit = {rank: held[rank] + held[rank ^ bit] for rank in held}, 2 * bit
    nodes = -(-team // per_node)
    assert sharing_time(made, links, team_size=team, nodes=nodes, workers_per_node=per_node) == pytest.approx(seconds)


@pytest.mark.parametrize(("team", "nodes", "across"), [(6, 4, 2), (6, 1, 1), (12, 3, 2), (10, 5, 2), (24, 3, 3)])
def test_a_team_counts_the_most_nodes_that_one_of_its_like_lies_on(team: int, nodes: int, across: int) -> None:
    begins = range(0, nodes * 8 - team + 1, team)
    assert across == max((begin + team - 1) // 8 - begin // 8 + 1 for begin in begins)
    hop = Links(
        node_bytes_per_second=np.inf,
        node_latency_seconds=0.0,
        network_bytes_per_second=np.inf,
        network_latency_seconds=1.0,
    )
    made = Network("one norm", 0, (Layer(9, 1),), norm_channels=(1,))
    seconds = sharing_time(made, hop, team_size=team, nodes=nodes, workers_per_node=8)
    assert seconds == 2 * np.ceil(np.log2(across))
