"""A cluster: how many workers there are and what one of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hardware, as `configs/clusters/*.yaml` describes it.

    Args:
        name: a name for the plan and the report.
        title: what it is, in a line.
        source: where the figures come from.
        nodes: machines, at least 1.
        workers_per_node: processes with one device each on a machine, at least 1.
        device: cpu or gpu.
        device_memory_bytes: memory of one device, above 0.
        micro_batch_size: the most samples of one forward on one device, or `auto`.
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

    def __post_init__(self) -> None:
        for field in ("nodes", "workers_per_node", "device_memory_bytes"):
            if getattr(self, field) < 1:
                raise ValueError(f"Cluster.{field} must be at least 1, got {getattr(self, field)}")
        if self.micro_batch_size != "auto" and self.micro_batch_size < 1:
            raise ValueError(f"Cluster.micro_batch_size must be auto or at least 1, got {self.micro_batch_size}")

    @property
    def num_workers(self) -> int:
        """Workers in the whole cluster."""
        return self.nodes * self.workers_per_node
