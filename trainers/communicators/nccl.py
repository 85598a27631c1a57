"""The all-reduce of NVIDIA's NCCL."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

from recipes.extras import install
from trainers.communicators.connection import Connection, Misfit
from trainers.communicators.gpu import Gpu, GpuConnection, shared_gpus
from trainers.communicators.wire import FullWire, Wire


@dataclass(frozen=True, kw_only=True)
class Nccl:
    """The all-reduce of NVIDIA's NCCL, between workers with one GPU each.

        2 (P - 1)/P n numbers a worker on the wire in a ring, n where the switch sums, as NCCL chooses

    P workers, n numbers, which leave the GPUs only for the network. A sum runs on a stream of its own, after the layers
    of the backward pass that it needs and concurrently with all others. On a 16-bit wire NCCL adds in 16 bits: a
    partial sum is rounded up to P - 1 times, as in Ring.

    Source: NCCL's documentation, ncclAllReduce; called through `cupy.cuda.nccl`.
    Differs: ChainerMN's `pure_nccl` packs all gradients after backward, and divides after the sum.
    """

    needs_gpu = True

    def missing(self) -> tuple[str, str] | None:
        """What this needs and is not here, with a way out; None where all is here."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # CuPy's own, where it does not find the library
                why = "" if importlib.import_module("cupy.cuda.nccl").available else "CuPy finds no libnccl"
        except ImportError as error:
            why = str(error)
        way_out = f"{install('gpu')}, or leave communicator out"
        return (f"Nccl: NCCL is missing: {why}", way_out) if why else None

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together, each with its GPU as the current one.

        Raises:
            ValueError: two workers share a GPU.
        """
        if shared := shared_gpus(mpi):
            raise Misfit(f"Nccl: {shared}; take Auto or any communicator of the CPU: sums are then in host memory")
        nccl, gpu = importlib.import_module("cupy.cuda.nccl"), Gpu()
        communicator = nccl.NcclCommunicator(
            mpi.size, mpi.bcast(nccl.get_unique_id() if mpi.rank == 0 else None), mpi.rank
        )
        types = {"float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64}
        types_16_bits = {"float16": nccl.NCCL_FLOAT16, "bfloat16": nccl.NCCL_BFLOAT16}

        def sum_of(values: Any, wire: Wire) -> None:
            if not len(values):
                return
            packed = wire.pack(values)
            pointer = packed.data.ptr
            type_ = types[packed.dtype.name] if isinstance(wire, FullWire) else types_16_bits[wire.name]
            communicator.allReduce(pointer, pointer, packed.size, type_, nccl.NCCL_SUM, gpu.stream.ptr)
            wire.store(values, packed)

        return _NcclConnection(mpi, sum_of, communicator=communicator, types=types, gpu=gpu)


class _NcclConnection(GpuConnection):
    def __init__(self, mpi: Any, sum_of: Any, *, communicator: Any, types: dict[str, int], **others: Any) -> None:
        super().__init__(mpi, sum_of, num_roundings=mpi.size - 1, release=(communicator.destroy,), **others)
        self._communicator, self._types = communicator, types

    def exchange_parts(self, sent: list[list[Any]], received: list[list[Any]]) -> None:
        """See `trainers.communicators.tree_sum.exchange_by_mpi`; no number crosses the host."""
        nccl = importlib.import_module("cupy.cuda.nccl")
        with self.gpu.in_turn():
            nccl.groupStart()
            for arrays, pass_on in ((received, self._communicator.recv), (sent, self._communicator.send)):
                for other, some in enumerate(arrays):
                    for each in some if other != self.mpi.rank else ():
                        pass_on(each.data.ptr, each.size, self._types[each.dtype.name], other, self.gpu.stream.ptr)
            nccl.groupEnd()

    def launch_sum(self, values: Any) -> bool:
        with self.gpu.in_turn():
            self.sum(values, FullWire(values.dtype))
        return True
