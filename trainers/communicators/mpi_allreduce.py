"""The all-reduce of the MPI library, on arrays of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainers.communicators.connection import Connection
from trainers.communicators.wire import FullWire, Wire


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
        from mpi4py import MPI

        def sum_of(values: Any, wire: Wire) -> None:
            if not isinstance(wire, FullWire):
                raise ValueError(f"MpiAllreduce: MPI has no sum of {wire.name}; take Direct, Ring or HalvingDoubling")
            mpi.Allreduce(MPI.IN_PLACE, values)

        return Connection(mpi, sum_of, num_roundings=0, wait_mode="spins", sums_16_bits=self.sums_16_bits)
