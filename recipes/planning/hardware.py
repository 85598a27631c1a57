"""What a cluster's devices, links and storage can do: the `hardware` of its file, from which time is planned."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal

from recipes.planning.all_reduce import Links
from recipes.planning.constants import FITTED, OTHER_FIXED_MS

MOST_DOLLARS = 1000  # of a device-hour
_MOST_GB, _GB = 10_000, "GB a second"
Precision = Literal["float32", "mixed16", "bfloat16"]


def _require_positive(record: Any, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and not (value > 0 and isfinite(value)):
            raise ValueError(f"{type(record).__name__}.{name} must be above 0, got {value}")


def _require_unit(record: Any, *names: str, most: float, unit: str) -> None:
    """Refuse a number beyond what any hardware reaches: it was given in another unit."""
    for name in names:
        value = getattr(record, name)
        if value is not None and value > most:
            again = " (probe the cluster again)" * getattr(record, "source", "").startswith("kilobatch probe")
            raise ValueError(f"{type(record).__name__}.{name} must be at most {most:,} {unit}{again}, got {value:g}")


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A measured rate of training of one model on a few devices of the cluster.

    Args:
        model: its kind, such as ResNet50.
        image_size: side of the training images in pixels.
        precision: of compute.
        micro_batch_size: samples of one forward on one device, at least 1.
        devices: that trained together, filling one node after another; at least 1, best those of one node.
        accumulation_steps: forwards of one device in an update, at least 1.
        samples_per_second: of all of them, at least 0.000001.
        exchanged: they exchanged gradients in each update; false: they computed beside each other, and sent none.
        wire: format of their gradients on the wire.
        scored_per_second: samples of an evaluation on one device a second; null: three times the training rate.
        backward_share: of the time of an update that backward takes, from the first gradient; null: two thirds.
        parameter_arrays: sizes of the model's arrays in the order of its layers; for models that the planner does not
            know.
        backward_microseconds: of backward, for each of them; left out, each is taken to cost the same.
        basis: `probe` measured here, `published` measured by others, `assumed`.
        source: where and when.
    Raises:
        ValueError: a number is out of its range.
    """

    model: str
    image_size: int
    precision: Precision = "float32"
    micro_batch_size: int
    devices: int = 1
    accumulation_steps: int = 1
    samples_per_second: float
    exchanged: bool = True
    wire: Literal["float32", "float16", "bfloat16"] = "float32"
    scored_per_second: float | None = None
    backward_share: float | None = None
    parameter_arrays: tuple[int, ...] = ()
    backward_microseconds: tuple[int, ...] = ()
    basis: Literal["probe", "published", "assumed"] = "published"
    source: str

    def __post_init__(self) -> None:
        _require_positive(self, "image_size", "micro_batch_size", "devices", "accumulation_steps")
        _require_positive(self, "samples_per_second", "scored_per_second", "backward_share")
        if self.samples_per_second < 1e-6:
            raise ValueError(f"Rate.samples_per_second must be at least 0.000001, got {self.samples_per_second:g}")
        if self.backward_share is not None and self.backward_share > 1:
            raise ValueError(f"Rate.backward_share must be in (0, 1], got {self.backward_share}")
        if self.backward_microseconds and len(self.backward_microseconds) != len(self.parameter_arrays):
            raise ValueError("Rate.backward_microseconds must have an entry for each of parameter_arrays")

    @property
    def forward_share(self) -> float:
        """Of the time of an update, all that comes before backward."""
        return FITTED.forward_share if self.backward_share is None else 1 - self.backward_share

    @property
    def global_batch_size(self) -> int:
        """Samples of one update."""
        return self.devices * self.micro_batch_size * self.accumulation_steps


@dataclass(frozen=True, kw_only=True)
class NodeLink:
    """What joins the devices of one node.

    Args:
        kind: sets the latency where none is given.
        gb_per_second: of a ring over all devices of the node, in 10^9 bytes a second; above 0, at most 10,000.
        latency_us: of one hop, in microseconds; null: that of its kind.
        source: where the figures come from.
    Raises:
        ValueError: a number is out of its range.
    """

    kind: Literal["pcie", "nvlink", "shared_memory"]
    gb_per_second: float
    latency_us: float | None = None
    source: str

    def __post_init__(self) -> None:
        _require_positive(self, "gb_per_second", "latency_us")
        _require_unit(self, "gb_per_second", most=_MOST_GB, unit=_GB)


@dataclass(frozen=True, kw_only=True)
class NetworkLink:
    """What joins the nodes.

    Args:
        transport: `rdma` to the device's memory; `rdma_nogdr` by way of the host's; `tcp`.
        cards: network cards of a node that an all-reduce uses, at least 1.
        gbit_per_second: line rate of one card, in 10^9 bits a second; at most 80,000.
        measured_gb_per_second: what an all-reduce between nodes reached, in 10^9 bytes a second, from timing the
            all-reduce itself; null: a share of the line rate.
        latency_us: of one hop, in microseconds; null: that of its transport.
        source: where the figures come from.
    Raises:
        ValueError: a number is out of its range.
    """

    transport: Literal["rdma", "rdma_nogdr", "tcp"]
    cards: int = 1
    gbit_per_second: float
    measured_gb_per_second: float | None = None
    latency_us: float | None = None
    source: str

    def __post_init__(self) -> None:
        _require_positive(self, "cards", "gbit_per_second", "measured_gb_per_second", "latency_us")
        _require_unit(self, "gbit_per_second", most=8 * _MOST_GB, unit="Gbit a second")
        _require_unit(self, "measured_gb_per_second", most=_MOST_GB, unit=_GB)

    @property
    def bytes_per_second(self) -> float:
        """That an all-reduce reaches out of one node."""
        if self.measured_gb_per_second is not None:
            return self.measured_gb_per_second * 1e9
        reached = self.cards * self.gbit_per_second * 1e9 / 8 * FITTED.efficiency[self.transport]
        return min(reached, FITTED.tcp_ceiling_bytes_per_second) if self.transport == "tcp" else reached


@dataclass(frozen=True, kw_only=True)
class Input:
    """How fast samples come.

    Args:
        decoded_per_second: samples that one node's cores decode and augment a second; null: it bounds nothing.
        read_gb_per_second: that one node reads of its storage, in 10^9 bytes a second; null: it bounds nothing.
        shared_gb_per_second: that all nodes together read of a shared store; null: there is none.
        bytes_per_sample: of an encoded sample on the storage.
        source: where the figures come from.
    Raises:
        ValueError: a number is out of its range.
    """

    decoded_per_second: float | None = None
    read_gb_per_second: float | None = None
    shared_gb_per_second: float | None = None
    bytes_per_sample: float = 110_000
    source: str

    def __post_init__(self) -> None:
        _require_positive(self, *(field.name for field in fields(self) if field.name != "source"))
        _require_unit(self, "read_gb_per_second", "shared_gb_per_second", most=_MOST_GB, unit=_GB)

    def seconds(self, samples: Any, nodes: Any) -> Any:
        """Until `samples` are there on `nodes` nodes."""
        per_node = []
        if self.decoded_per_second is not None:
            per_node.append(1 / self.decoded_per_second)
        if self.read_gb_per_second is not None:
            per_node.append(self.bytes_per_sample / (self.read_gb_per_second * 1e9))
        shared = 0.0
        if self.shared_gb_per_second is not None:
            shared = samples * self.bytes_per_sample / (self.shared_gb_per_second * 1e9)
        one = samples / nodes * max(per_node, default=0.0)
        return one + (shared > one) * (shared - one)


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price of a device.

    Args:
        dollars_per_device_hour: above 0, at most 1,000.
        billed: `node`: all devices of a node are paid as soon as one is used.
        source: which price, and of when.
    Raises:
        ValueError: it is out of its range.
    """

    dollars_per_device_hour: float
    billed: Literal["device", "node"] = "device"
    source: str

    def __post_init__(self) -> None:
        _require_positive(self, "dollars_per_device_hour")
        _require_unit(self, "dollars_per_device_hour", most=MOST_DOLLARS, unit="dollars")


@dataclass(frozen=True, kw_only=True)
class MeasuredAllReduce:
    """All-reduces that a probe timed on this cluster, through the run's own communicator.

    Args:
        workers, nodes: that took part.
        wire: format of the numbers sent.
        exact: with exact mode's sums.
        bytes_: of the buffers in float32, rising.
        milliseconds: of each.
        contention: seconds of compute that one second of it beside compute costs; null: the fitted 0.048.
        slowdown: seconds of it that one second of it beside compute costs; null: as `contention`.
        source: where and when.
    Raises:
        ValueError: the lists differ in length, have under two entries, or do not rise; a number is out of its range.
    """

    workers: int
    nodes: int
    wire: Literal["float32", "float16", "bfloat16"] = "float32"
    exact: bool = False
    bytes_: tuple[int, ...]
    milliseconds: tuple[float, ...]
    contention: float | None = None
    slowdown: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        _require_positive(self, "workers", "nodes")
        if len(self.bytes_) != len(self.milliseconds) or len(self.bytes_) < 2:
            raise ValueError("MeasuredAllReduce.milliseconds must have an entry for each of bytes, two at least")
        if any(low >= high for low, high in zip(self.bytes_, self.bytes_[1:], strict=False)):
            raise ValueError(f"MeasuredAllReduce.bytes must rise, got {list(self.bytes_)}")
        if min(self.milliseconds) <= 0:
            raise ValueError(f"MeasuredAllReduce.milliseconds must be above 0, got {min(self.milliseconds)}")
        for name in ("contention", "slowdown"):
            if (value := getattr(self, name)) is not None and not (value >= 0 and isfinite(value)):
                raise ValueError(f"MeasuredAllReduce.{name} must be at least 0, got {value}")

    def seconds(self, num_bytes: float) -> float:
        """Of an all-reduce of a buffer, between the points in a straight line and beyond them at the last slope."""
        sizes, times = self.bytes_, self.milliseconds
        at = next((i for i, size in enumerate(sizes[1:-1], 1) if num_bytes <= size), len(sizes) - 1)
        if num_bytes <= sizes[0]:
            return times[0] / 1000
        slope = max((times[at] - times[at - 1]) / (sizes[at] - sizes[at - 1]), 0.0)
        return (times[at - 1] + slope * (num_bytes - sizes[at - 1])) / 1000


@dataclass(frozen=True, kw_only=True)
class Coordination:
    """Small collective calls of an update, such as agreement on flags and sums of losses, which nothing hides.

    Args:
        microseconds: a of a + b log2(workers), which several workers take in each update.
        microseconds_per_doubling: b of it.
        source: where and when.
    Raises:
        ValueError: a number is negative.
    """

    microseconds: float
    microseconds_per_doubling: float
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("microseconds", "microseconds_per_doubling"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Coordination.{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What time is planned from; every number has its source.

    Args:
        device: name of the device, such as v100.
        node_link: between the devices of one node; null where a node has one.
        network: between nodes; null where there is one.
        rates: of training, at least one; that of the recipe's model and precision is taken, see `docs/planner.md`.
        algorithm: of an all-reduce over nodes.
        input: how fast samples come; null: never too slow.
        price: of a device; null: no cost is planned.
        all_reduces: timed by a probe; taken for as many workers, instead of the links.
        coordination: of the workers, by a probe; null: none.
        fixed_ms: of forward and backward of a micro-batch, whatever its size; null: from two rates of one model, else
            that of the device.
        variation: relative standard deviation of the time of a device's update; null: the fitted 0.018.
        start_seconds: before the first update.
        write_gb_per_second: of a checkpoint, in 10^9 bytes a second; null: it takes no time.
        source: where all this comes from.
    Raises:
        ValueError: a number is out of its range, or there is no rate.
    """

    device: str
    node_link: NodeLink | None = None
    network: NetworkLink | None = None
    rates: tuple[Rate, ...]
    algorithm: Literal["ring", "tree", "nccl", "halving_doubling", "hierarchical", "torus"] = "nccl"
    input: Input | None = None
    price: Price | None = None
    all_reduces: tuple[MeasuredAllReduce, ...] = ()
    coordination: Coordination | None = None
    fixed_ms: float | None = None
    variation: float | None = None
    start_seconds: float = 5.0
    write_gb_per_second: float | None = None
    source: str

    def __post_init__(self) -> None:
        _require_positive(self, "write_gb_per_second")
        _require_unit(self, "write_gb_per_second", most=_MOST_GB, unit=_GB)
        for name in ("fixed_ms", "variation", "start_seconds"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and isfinite(value)):
                raise ValueError(f"Hardware.{name} must be at least 0, got {value}")
        if not self.rates:
            raise ValueError("Hardware.rates is empty; give the rate of one model at least, as `kilobatch probe` does")

    @property
    def links(self) -> Links:
        """Inside a node and between nodes; links that a cluster lacks are never crossed."""
        inside, between = self.node_link, self.network
        return Links(
            node_bytes_per_second=inside.gb_per_second * 1e9 if inside else float("inf"),
            node_latency_seconds=_latency(inside, inside and inside.kind, FITTED.node_latency_us),
            network_bytes_per_second=between.bytes_per_second if between else float("inf"),
            network_latency_seconds=_latency(between, between and between.transport, FITTED.network_latency_us),
        )

    @property
    def fixed_seconds(self) -> float:
        """Of forward and backward, whatever the micro-batch, where no two rates say it."""
        known = FITTED.fixed_ms.get(self.device, OTHER_FIXED_MS)
        return (known if self.fixed_ms is None else self.fixed_ms) / 1000

    @property
    def sigma(self) -> float:
        return FITTED.sigma if self.variation is None else self.variation


def _latency(link: Any, kind: str | None, of_kinds: Any) -> float:
    if link is None:
        return 0.0
    return (of_kinds[kind] if link.latency_us is None else link.latency_us) * 1e-6
