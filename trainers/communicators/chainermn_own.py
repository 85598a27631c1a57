"""ChainerMN's own communicators, for comparison with ours and for programs that were measured with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainers.communicators.connection import Connection
from trainers.communicators.gpu import Gpu, GpuConnection
from trainers.communicators.wire import FullWire, Wire

_NAMES = ("naive", "flat", "pure_nccl")


@dataclass(frozen=True, kw_only=True)
class ChainerMN:
    """A communicator of ChainerMN: its `multi_node_mean_grad` sums the gradients; 32 bits only.

        2 (P - 1)/P n to 2 log2(P) n numbers a worker on the wire, as MPI or NCCL choose

    P workers, n numbers. It gives a mean, which is multiplied by P again: with a P that is no power of two this rounds
    once more than the others do.

    Args:
        name: `naive`, MPI_Allreduce on arrays of the host; `flat`, the same on one buffer in the memory of GPUs, by a
            CUDA-aware MPI; `pure_nccl`, NCCL. The last two need a GPU and were not run yet.
    Raises:
        ValueError: `name` is another word.

    Source: ChainerMN 7.8.1, chainermn/communicators.
    """

    name: Literal["naive", "flat", "pure_nccl"] = "naive"
    sums_16_bits = False

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise ValueError(f"ChainerMN.name must be one of {', '.join(_NAMES)}, got {self.name!r}")

    @property
    def needs_gpu(self) -> bool:
        """Whether it sums arrays of GPUs only."""
        return self.name != "naive"

    def missing(self) -> tuple[str, str] | None:
        """What this needs and is not here: nothing beside what ChainerMN itself says when it is connected."""
        return None

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        import chainermn

        communicator = chainermn.create_communicator(self.name, mpi)
        gpu = Gpu() if self.needs_gpu else None

        def sum_of(values: Any, wire: Wire) -> None:
            if not isinstance(wire, FullWire):
                raise ValueError(f"ChainerMN: MPI has no sum of {wire.name}; take Direct, Ring or HalvingDoubling")
            if gpu is not None:
                gpu.stream.synchronize()
            communicator.multi_node_mean_grad(_link_of(values))
            values *= values.dtype.type(mpi.size)

        if gpu is None:
            return Connection(mpi, sum_of, wait_mode="spins", num_roundings=0, sums_16_bits=False)
        return GpuConnection(mpi, sum_of, gpu=gpu, num_roundings=0, sums_16_bits=False)


def _link_of(values: np.ndarray) -> Any:
    """A link with one parameter, whose gradient is this array."""
    import chainer

    link = chainer.Link()
    with link.init_scope():
        link.W = chainer.Parameter(values)
    link.W.grad = values
    return link
