"""The all-reduce of the MPI library, on arrays of the host and, where MPI is CUDA-aware, on those of GPUs."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from trainers.communicators.connection import Connection, Misfit
from trainers.communicators.gpu import Gpu, GpuConnection
from trainers.communicators.wire import FullWire, Wire

_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h
_WAY_OUT = (
    "install a CUDA-aware one and mpi4py for it (Open MPI --with-cuda, MPICH --with-cuda), or take Nccl, or leave "
    "communicator out"
)


@dataclass(frozen=True, kw_only=True)
class MpiAllreduce:
    """The all-reduce of the MPI library, which chooses by number of bytes and workers; 32 bits only.

        2 (P - 1)/P n to 2 log2(P) n numbers a worker on the wire, as the library chooses

    It spins while it waits: beside a backward pass on links of a gigabit it overlaps less than Ring.

    Source: MPI standard, MPI_Allreduce.
    """

    sums_16_bits = False

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        return Connection(
            mpi,
            lambda values, wire: _allreduce(mpi, values, wire, "MpiAllreduce", "Direct, Ring or HalvingDoubling"),
            num_roundings=0,
            wait_mode="spins",
            sums_16_bits=self.sums_16_bits,
        )


@dataclass(frozen=True, kw_only=True)
class CudaAwareMpi:
    """The all-reduce of an MPI library that reads and writes the memory of GPUs itself; 32 bits only.

        2 (P - 1)/P n to 2 log2(P) n numbers a worker on the wire, as the library chooses

    P workers, n numbers. For GPUs without NCCL, and for several workers on one GPU. Auto measures it there against
    copies in host memory, where MPI is CUDA-aware.

    Source: MPI standard, MPI_Allreduce; for whether the library is CUDA-aware see `takes_gpu_memory`.
    """

    needs_gpu = True
    sums_16_bits = False

    def missing(self) -> tuple[str, str] | None:
        """What this needs and is not here, with a way out; None where all is here, or MPI is not initialised yet."""
        if "mpi4py.MPI" not in sys.modules or takes_gpu_memory():
            return None
        return "CudaAwareMpi: this MPI takes no pointers into the memory of GPUs", _WAY_OUT

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together, each with its GPU as the current one.

        Raises:
            ValueError: the MPI library of some worker is not CUDA-aware.
        """
        if not all(mpi.allgather(takes_gpu_memory())):
            raise Misfit(f"CudaAwareMpi: this MPI takes no pointers into the memory of GPUs; {_WAY_OUT}")
        return cuda_aware_connection(mpi, Gpu())


def cuda_aware_connection(mpi: Any, gpu: Gpu) -> GpuConnection:
    """Sums by MPI on GPU memory, without copies to the host. Bytes on the wire: those of `CudaAwareMpi`.

    Args:
        mpi: communicator of its own; this MPI takes pointers to the memory of `gpu`.
        gpu: of this worker, or an object with its methods.
    """

    def sum_of(values: Any, wire: Wire) -> None:
        gpu.stream.synchronize()  # MPI does not follow the order of a stream
        _allreduce(mpi, values, wire, "CudaAwareMpi", "Nccl, Direct, Ring or HalvingDoubling")

    return GpuConnection(mpi, sum_of, num_roundings=0, gpu=gpu, sums_16_bits=CudaAwareMpi.sums_16_bits)


def _allreduce(mpi: Any, values: Any, wire: Wire, component: str, others: str) -> None:
    from mpi4py import MPI

    if not isinstance(wire, FullWire):
        raise ValueError(f"{component}: MPI has no sum of {wire.name}; take {others}")
    mpi.Allreduce(MPI.IN_PLACE, values)


def takes_gpu_memory() -> bool:
    """Whether the MPI library of this process, which is initialised, reports that it is CUDA-aware.

    There are three ways to query it: MPI 4.1's `mpi_memory_alloc_kinds`, MPICH's function and Open MPI's. A library
    without any of them counts as not CUDA-aware.
    """
    from mpi4py import MPI

    info = MPI.COMM_WORLD.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds") or ""
    info.Free()
    if "cuda" in kinds:
        return True
    library = ctypes.CDLL(MPI.__file__)
    if hasattr(library, "MPIX_GPU_query_support"):  # MPICH below 4 ends the process in MPIX_Query_cuda_support
        supported = ctypes.c_int(0)
        return library.MPIX_GPU_query_support(_CUDA, ctypes.byref(supported)) == 0 and supported.value != 0
    return hasattr(library, "MPIX_Query_cuda_support") and library.MPIX_Query_cuda_support() == 1
