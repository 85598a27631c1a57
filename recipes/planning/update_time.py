"""Seconds of one update of synchronous data parallelism, in closed form.

    T = max(max(compute + contention, end of communication + slowdown) + stragglers + coordination, input)

Compute of a micro-batch of b samples is t0 + s b. Gradients become ready during the last backward, from the last layer
to the first, and go in buckets, one after another. Stragglers: all wait for the slowest of P workers, whose compute is
normal with a relative deviation sigma, so they lose sigma * compute * E[max of P standard normals].

Everything takes NumPy arrays for the numbers of devices and nodes, except a fusion cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from recipes.planning.all_reduce import Links
from recipes.planning.networks import Network

AllReduce = Callable[[Any, Any, Any, Links], Any]


@dataclass(frozen=True, kw_only=True)
class TimedBucket:
    """Gradients that are sent together.

    Args:
        values: how many numbers.
        ready: share of the backward pass after which the last of them is there, in (0, 1].
    """

    values: int
    ready: float


@dataclass(frozen=True, kw_only=True)
class ExchangeTime:
    """How gradients cross.

    Args:
        all_reduce: seconds of an all-reduce of a number of bytes, see `all_reduce`.
        wire_bytes: bytes of a number on the wire, 2 or 4.
        overlap: `none`: after backward, in one call. `bucket`: as they become ready. `double_buffering`: all of it
            beside the next update.
        bucket_bytes: of the model's numbers in float32, at least; one bucket where infinite.
        cycle_seconds: buckets close by time: each cycle sends what has become ready, at most `bucket_bytes` of it at
            once (Horovod). 0: by size alone.
        contention: seconds of compute that one second of hidden communication costs.
        slowdown: seconds of communication that one second of it beside compute costs; None: as `contention`.
    """

    all_reduce: AllReduce
    wire_bytes: int = 4
    overlap: Literal["none", "bucket", "double_buffering"] = "bucket"
    bucket_bytes: float = float("inf")
    cycle_seconds: float = 0.0
    contention: float = 0.0
    slowdown: float | None = None


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Compute of one worker.

    Args:
        fixed_seconds: t0, of forward and backward of a micro-batch, whatever its size.
        seconds_per_sample: s.
        sigma: relative standard deviation of it.
        forward_share: forward's share of it.
    """

    fixed_seconds: float
    seconds_per_sample: float
    sigma: float = 0.0
    forward_share: float = 1 / 3

    def seconds(self, micro_batch_size: Any) -> Any:
        """Of forward and backward of one micro-batch."""
        return self.fixed_seconds + self.seconds_per_sample * micro_batch_size


@dataclass(frozen=True, kw_only=True)
class UpdateTime:
    """The parts of one update, in seconds; numbers, or arrays over numbers of devices.

    Args:
        compute: forward and backward of all micro-batches of the fullest worker.
        communication: of all buckets, whether hidden or not.
        exposed: of it, what compute does not hide.
        contention: what the hidden part costs compute.
        straggling: waiting for the slowest worker.
        waiting_for_input: beyond all these, where the input is slower.
        coordination: small collective calls, such as of flags, sums of losses and statistics of shared norm groups.
    """

    compute: Any
    communication: Any
    exposed: Any
    contention: Any
    straggling: Any
    waiting_for_input: Any = 0.0
    coordination: Any = 0.0

    @property
    def total(self) -> Any:
        parts = (self.compute, self.exposed, self.contention, self.straggling, self.coordination)
        return sum(parts) + self.waiting_for_input


def update_time(
    network: Network,
    compute: Compute,
    exchange: ExchangeTime,
    links: Links,
    *,
    devices: Any,
    nodes: Any,
    micro_batch_size: Any,
    accumulation_steps: Any = 1,
    input_seconds: Any = 0.0,
    coordination_seconds: Any = 0.0,
) -> UpdateTime:
    """The time of one update.

    Args:
        network: whose gradients cross.
        compute, exchange, links: of one worker and between workers.
        devices, nodes: how many, at least 1.
        micro_batch_size, accumulation_steps: of the fullest worker; gradients cross with the last micro-batch.
        input_seconds: until the samples of an update are there, while the last one is computed.
        coordination_seconds: of small collective calls, which nothing hides.
    """
    one = compute.seconds(micro_batch_size)
    total = one * accumulation_steps
    backward = (1 - compute.forward_share) * one
    communication = end = 0.0 * np.asarray(devices)
    for bucket in _buckets_of(network, exchange, backward):
        seconds = exchange.all_reduce(bucket.values * exchange.wire_bytes, devices, nodes, links)
        seconds = np.where(np.asarray(devices) > 1, seconds, 0.0)
        communication = communication + seconds
        end = np.maximum(end, total - backward * (1 - bucket.ready)) + seconds
    late = {"double_buffering": communication - total, "none": communication}.get(exchange.overlap, end - total)
    late = np.where(np.asarray(devices) > 1, np.minimum(late, communication), 0.0)  # below 0: it ends before compute
    exposed = np.maximum(late, 0)
    hidden = communication - exposed
    slowdown = exchange.contention if exchange.slowdown is None else exchange.slowdown
    contended = np.maximum(exchange.contention * hidden, late + slowdown * hidden) - exposed
    straggling = compute.sigma * total * expected_maximum(devices)
    busy = total + exposed + contended + straggling + coordination_seconds
    return UpdateTime(
        compute=total,
        communication=communication,
        exposed=exposed,
        contention=contended,
        straggling=straggling,
        waiting_for_input=np.maximum(input_seconds - busy, 0),
        coordination=coordination_seconds,
    )


def sharing_time(network: Network, links: Links, *, team_size: Any, nodes: Any, workers_per_node: int) -> Any:
    """Seconds in which a team gathers the statistics of its norm groups, in forward and backward of one micro-batch.

        2 sum over layers of C channels:  ceil(log2 q) a + ceil(log2 N) A  +  (q - 1) 16 C / b + g q (N - 1) 16 C / B

    An all-gather of 16 bytes a channel from each of p workers, q = p / N on each of N nodes, by doubling: hops of `a`
    seconds at b bytes a second in a node, then hops of A seconds between nodes. There the g workers of a node share B
    bytes a second. Copies between a GPU and the host are not counted.

    Args:
        network: whose batch normalisations count.
        links: in nodes and between them.
        team_size: p, workers that share a norm group; those of a team follow each other.
        nodes: of all workers.
        workers_per_node: g.
    """
    channels = network.norm_channels or ()
    within = np.gcd(team_size, workers_per_node)  # workers of a team on its first node, where it lies on most nodes
    across = np.minimum(nodes, 1 + -(-(team_size - within) // workers_per_node))
    each = team_size / across
    hops = (
        np.ceil(np.log2(each)) * links.node_latency_seconds + np.ceil(np.log2(across)) * links.network_latency_seconds
    )
    per_byte = (each - 1) / links.node_bytes_per_second
    per_byte = per_byte + workers_per_node * each * (across - 1) / links.network_bytes_per_second
    return 2 * (len(channels) * hops + 16 * sum(channels) * per_byte)


def _buckets_of(network: Network, exchange: ExchangeTime, backward: Any) -> Sequence[TimedBucket]:
    if exchange.overlap != "bucket":
        return (TimedBucket(values=network.num_parameters, ready=1.0),)
    if exchange.cycle_seconds:
        return buckets_by_time(network, exchange.bucket_bytes, exchange.cycle_seconds / max(float(backward), 1e-9))
    return buckets_by_size(network, exchange.bucket_bytes)


@cache
def buckets_by_size(network: Network, bucket_bytes: float) -> tuple[TimedBucket, ...]:
    """Buckets in the order in which backward finishes them; each closes at the first layer that fills it."""
    made: list[TimedBucket] = []
    done = held = 0
    for layer in reversed(network.layers):
        done += layer.multiply_adds
        held += layer.parameters
        if 4 * held >= bucket_bytes:
            made.append(TimedBucket(values=held, ready=done / network.multiply_adds))
            held = 0
    if held:
        made.append(TimedBucket(values=held, ready=1.0))
    return tuple(made)


def buckets_by_time(network: Network, bucket_bytes: float, cycle: float) -> tuple[TimedBucket, ...]:
    """Buckets of what has become ready by the end of each cycle, at most `bucket_bytes` (or one layer) at once.

    Args:
        cycle: as a share of the backward pass, above 0.
    """
    made: list[TimedBucket] = []
    done, at, held = 0, 0.0, 0
    for layer in reversed(network.layers):
        done += layer.multiply_adds
        closes = np.ceil(done / network.multiply_adds / cycle - 1e-12) * cycle
        if held and (closes > at or 4 * (held + layer.parameters) > bucket_bytes):
            made.append(TimedBucket(values=held, ready=at))
            held = 0
        at = float(closes)
        held += layer.parameters
    made.append(TimedBucket(values=held, ready=at))
    return tuple(made)


@cache
def _expected_maxima() -> tuple[np.ndarray, np.ndarray]:
    """E[max of P standard normals] at numbers P from 1 to 10^7, by the integral of x d(Phi(x)^P)."""
    numbers = np.unique(np.rint(np.concatenate([np.arange(1, 65), np.geomspace(65, 1e7, 400)])))
    x = np.linspace(-9, 9, 3601)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * (x[1] - x[0]))])
    below = np.clip(below / below[-1], 1e-300, 1.0)
    powers = np.exp(numbers[:, None] * np.log(below))
    values = np.trapezoid((1 + np.sign(x)) / 2 - powers, x, axis=1)
    values[0] = 0.0  # of one alone, exactly
    return np.log(numbers), values


def expected_maximum(number: Any) -> Any:
    """The expected maximum of `number` independent standard normals, to 1e-4; `number` from 1 to 10^7.

    >>> [round(float(expected_maximum(n)), 3) for n in (1, 2, 1024)]
    [0.0, 0.564, 3.248]
    """
    logarithms, values = _expected_maxima()
    return np.interp(np.log(number), logarithms, values)


def calibrated(predict: Callable[[float], float], *, samples_per_second: float, global_batch_size: int) -> float:
    """The seconds a sample at which a model of an update returns a measured rate.

    Args:
        predict: seconds of an update, given the seconds a sample; never falls.
        samples_per_second: measured, above 0.
        global_batch_size: samples of that update.
    Raises:
        ValueError: the update would be slower than measured even if samples cost nothing.
    """
    wanted = global_batch_size / samples_per_second
    if predict(0.0) >= wanted:
        raise ValueError(
            f"{speed_text(samples_per_second)} leave no time to compute: what does not depend on the samples takes "
            f"{predict(0.0) * 1000:.1f} of {wanted * 1000:.1f} ms"
        )
    low, high = 0.0, wanted / global_batch_size
    while predict(high) < wanted:
        low, high = high, 2 * high
    below, above = predict(low) - wanted, predict(high) - wanted
    for _ in range(100):  # the Illinois method: a model of few kinks takes some ten steps
        at = high - above * (high - low) / (above - below)
        off = predict(at) - wanted
        if abs(off) < 1e-14 * wanted:
            break
        if off * above < 0:
            low, below = high, above
        else:
            below /= 2
        high, above = at, off
    return at


def speed_text(samples_per_second: float) -> str:
    """Samples a second in words, short also where a file gives an absurd number.

    >>> speed_text(1254.3), speed_text(1e300)
    ('1,254 samples/s', '1e+300 samples/s')
    """
    return f"{samples_per_second:{',.0f' if samples_per_second < 1e15 else 'g'}} samples/s"
