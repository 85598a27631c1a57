"""A cluster: how many workers there are and what one of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from recipes.planning.hardware import Hardware
from recipes.schema.vocabulary import Component

_BUCKET_BYTES = (256_000, 32_000_000)  # at least and at most, where the plan decides


@dataclass(frozen=True, kw_only=True)
class GradientExchange:
    """How gradients cross between workers. Nothing here changes what is computed, but for the rounding of 16 bits.

    Args:
        communicator: the algorithm; null: shared memory on one machine, else the fastest by a short measurement at the
            start; on GPUs NCCL, where each worker has a GPU of its own.
        wire: format of the numbers sent. In shared memory nothing is sent, and nothing rounded.
        bucket_bytes: gradients are sent in buckets of at least so many bytes; at least 1. `auto`: an eighth of all, so
            that the last bucket, which nothing hides, is short; with double buffering, which hides every bucket, all;
            at least 256 kB and at most 32 MB. Exact mode sends at least 256 kB at a time.
        overlap: send a bucket as soon as backward has finished it, on a thread of its own.
    Raises:
        ValueError: `bucket_bytes` is below 1.
    """

    communicator: Annotated[object, Component("communicators")] | None = None
    wire: Literal["float32", "float16", "bfloat16"] = "float32"
    bucket_bytes: int | Literal["auto"] = "auto"
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.bucket_bytes != "auto" and self.bucket_bytes < 1:
            raise ValueError(f"GradientExchange.bucket_bytes must be auto or at least 1, got {self.bucket_bytes}")

    def bucket_bytes_of(self, num_bytes: int, *, double_buffering: bool = False, exact: bool = False) -> int:
        """The size of a bucket for gradients of `num_bytes` in all.

        Exact mode cuts the gradients anywhere, and into pieces of single numbers would not come to an end.

        >>> GradientExchange(bucket_bytes=1).bucket_bytes_of(10**6, exact=True)
        256000
        """
        smallest, largest = _BUCKET_BYTES
        if self.bucket_bytes != "auto":
            return max(self.bucket_bytes, smallest) if exact else self.bucket_bytes
        return min(max(num_bytes if double_buffering else num_bytes // 8, smallest), largest)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hardware, as `configs/clusters/*.yaml` describes it.

    Args:
        name: a name for the plan and the report.
        title: what it is, in one line.
        source: where the figures come from.
        nodes: machines, at least 1.
        workers_per_node: processes with one device each on a machine, at least 1.
        device: cpu or gpu.
        device_memory_bytes: memory of one device, above 0.
        micro_batch_size: the most samples of one forward on one device, or `auto`.
        exchange: exchange of gradients between workers.
        cuda_graph: replay forward and backward of a micro-batch as a CUDA graph, once two replays have given what the
            eager computation gave; where that does not work they stay eager, and the log says why. null: on GPUs with
            the kernels `cudnn`, which alone can be captured.
        hardware: what its devices, links and storage can do, for the time that a run takes; null: no time is planned.
    Raises:
        ValueError: a number is out of its range.
    """

    name: str
    title: str = ""
    source: str = ""
    nodes: int
    workers_per_node: int
    device: Literal["cpu", "gpu"]
    device_memory_bytes: int
    micro_batch_size: int | Literal["auto"] = "auto"
    exchange: GradientExchange = GradientExchange()
    cuda_graph: bool | None = None
    hardware: Hardware | None = None

    def __post_init__(self) -> None:
        for field in ("nodes", "workers_per_node", "device_memory_bytes"):
            if getattr(self, field) < 1:
                raise ValueError(f"Cluster.{field} must be at least 1, got {getattr(self, field)}")
        if self.micro_batch_size != "auto" and self.micro_batch_size < 1:
            raise ValueError(f"Cluster.micro_batch_size must be auto or at least 1, got {self.micro_batch_size}")
        if self.hardware is not None:
            self._require_links(self.hardware)

    def _require_links(self, hardware: Hardware) -> None:
        """Refuse hardware whose workers could not reach each other, or whose rate took more devices than a node has."""
        if self.nodes > 1 and hardware.network is None:
            raise ValueError(f"Cluster.hardware.network is missing, and there are {self.nodes} nodes")
        if self.workers_per_node > 1 and hardware.node_link is None and not hardware.all_reduces:
            raise ValueError(f"Cluster.hardware.node_link is missing, and a node has {self.workers_per_node} workers")
        for rate in hardware.rates:
            if rate.devices > self.num_workers:
                what = f"is of {rate.devices} devices, and the cluster has {self.num_workers}"
                raise ValueError(f"Cluster.hardware.rates: that of {rate.model} {what}; give one of its devices")

    @property
    def num_workers(self) -> int:
        """Workers in the whole cluster."""
        return self.nodes * self.workers_per_node

    def billed_devices(self, devices: Any) -> Any:
        """How many are paid where so many are used; a number, or an array of them."""
        price = self.hardware and self.hardware.price
        whole = price is not None and price.billed == "node"
        return -(-devices // self.workers_per_node) * self.workers_per_node if whole else devices

    def dollars(self, devices: Any, seconds: Any) -> Any:
        """Of so many devices for so long; None where no price is known."""
        price = self.hardware and self.hardware.price
        return price and self.billed_devices(devices) * seconds / 3600 * price.dollars_per_device_hour
