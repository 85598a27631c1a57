"""Constants of the time model, with units and sources.

`FITTED` was fitted on the rows of `configs/published_runs.csv` together, by the study of 2026 that the docs describe;
`UNFITTED` are the values of data sheets and papers before any fit. None is fitted to one row alone, and a row gives one
rate only, of fewer devices than the one that is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of `update_time`, none of them of one cluster.

    Args:
        efficiency: by transport, the share of a network card's line rate that an all-reduce reaches, in (0, 1].
        tcp_ceiling_bytes_per_second: the most that one node moves over TCP.
        sigma: standard deviation of a worker's compute time, as a share of it, at least 0.
        contention: how much communication that runs beside compute slows it, as a share of the overlapped time.
        node_latency_us, network_latency_us: one hop inside a node, by what joins its devices, and between nodes.
        fixed_ms: time of forward and backward that does not depend on the micro-batch, by device.
        forward_share: forward's share of compute; the rest is backward.
    """

    efficiency: MappingProxyType[str, float]
    tcp_ceiling_bytes_per_second: float = 2.2e9
    sigma: float
    contention: float
    node_latency_us: MappingProxyType[str, float] = field(
        default_factory=lambda: MappingProxyType({"pcie": 6.0, "nvlink": 4.0, "shared_memory": 2.0})
    )
    network_latency_us: MappingProxyType[str, float] = field(
        default_factory=lambda: MappingProxyType({"rdma": 14.0, "rdma_nogdr": 14.0, "tcp": 50.0})
    )
    fixed_ms: MappingProxyType[str, float] = field(
        default_factory=lambda: MappingProxyType({"p100": 15.0, "titanx": 20.0, "v100": 10.0, "a100": 10.0, "cpu": 0.0})
    )
    forward_share: float = 1 / 3


UNFITTED = Constants(
    efficiency=MappingProxyType({"rdma": 0.80, "rdma_nogdr": 0.50, "tcp": 0.55}), sigma=0.01, contention=0.05
)
FITTED = Constants(
    efficiency=MappingProxyType({"rdma": 0.88, "rdma_nogdr": 0.65, "tcp": 0.57}), sigma=0.018, contention=0.048
)
OTHER_FIXED_MS = 10.0  # a device that no table names: that of V100 and A100
TREE_FACTOR = 2.1  # bytes that a tree moves over the narrowest link, as a multiple of the buffer

# Deviations of a worker's compute that published runs show, 1 to 3 %: the ends of a range.
SIGMA_ENDS = MappingProxyType({"fast": 0.01, "slow": 0.03})
