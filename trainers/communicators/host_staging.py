"""Sums of arrays in GPU memory, staged through host memory where there is no direct way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from trainers.communicators.auto import Auto
from trainers.communicators.connection import Connection, Dummy
from trainers.communicators.gpu import Gpu, GpuConnection, LoneGpuConnection, shared_gpus
from trainers.communicators.nccl import Nccl
from trainers.communicators.tree_sum import exchange_by_mpi
from trainers.communicators.wire import Wire


def connect_on_gpu(component: Any, mpi: Any) -> Connection:
    """Connect any communicator for arrays in GPU memory; all workers of `mpi` call this together.

    `Nccl` sums in GPU memory, every other one copies in host memory. `Auto` is `Nccl` where every worker has a GPU of
    its own and NCCL is installed, else copies. With one worker it sums nothing.

    Bytes on the wire: those of the communicator; for `Auto` some hundred more from each worker to each, to agree.

    Raises:
        ValueError: the communicator does not fit these workers.
    """
    if isinstance(component, Auto) and mpi.size == 1:
        return LoneGpuConnection(mpi)
    if isinstance(component, Dummy):
        return GpuConnection(mpi, lambda values, wire: None, num_roundings=0, sent=0.0)
    if getattr(component, "needs_gpu", False):
        return component.connect(mpi)
    why = ""
    if isinstance(component, Auto):
        why = _why_not_nccl(mpi)
        if not why:
            connection = Nccl().connect(mpi)
            connection.choices = ["Nccl: every worker has a GPU of its own"]
            return connection
    connection = Staged(component.connect(mpi), Gpu())
    connection.choices.insert(0, "through host memory" + (f", because {why}" if why else ""))
    return connection


def _why_not_nccl(mpi: Any) -> str:
    """In words, the same on all workers; empty where NCCL can be used."""
    missing = next(filter(None, mpi.allgather(Nccl().missing())), None)
    return missing[0] if missing else shared_gpus(mpi)


class Staged(Connection):
    """Sums GPU arrays by a connection for host memory: numbers are copied to the host, and their sum back.

    Every number crosses the GPU's bus twice, to and from pinned memory, as float32 or float64 whatever the wire. Two
    workers on one GPU have no other way. On the wire is what `inner` sends.

    Args:
        inner: sums in host memory.
        gpu: of this worker, or an object with its methods.
    """

    def __init__(self, inner: Connection, gpu: Gpu) -> None:
        self._inner = inner
        super().__init__(inner.mpi, self._sum, num_roundings=inner.num_roundings, gpu=gpu)
        self.choices = inner.choices
        self._values: Any = None
        self._host = np.empty(0, np.float32)

    def set_beside_backward(self, value: bool) -> None:
        self._inner.set_beside_backward(value)

    @property
    def wait_mode(self) -> str:
        return self._inner.wait_mode

    def sent_values(self, num_values: int) -> float | None:
        return self._inner.sent_values(num_values)

    def allocate(self, num_values: int, dtype: Any) -> Any:
        self._host = self._inner.allocate(num_values, dtype)  # of the same length: some sums go by the offset in it
        self.gpu.pin(self._host)
        self._values = self.gpu.zeros(num_values, dtype)
        return self._values

    def exchange_parts(self, sent: list[list[Any]], received: list[list[Any]]) -> None:
        """See `trainers.communicators.tree_sum.exchange_by_mpi`; numbers cross the host."""
        with self.gpu.on_stream_after(self.gpu.record_event()):
            there, back = ([[np.empty(one.shape, one.dtype) for one in some] for some in of] for of in (sent, received))
            for values, host in zip(itertools.chain(*sent), itertools.chain(*there), strict=True):
                self.gpu.download(values, host)
            exchange_by_mpi(self.mpi, there, back)
            for other, some in enumerate(received):
                for values, host in zip(some, back[other], strict=True):
                    if other != self.mpi.rank:
                        self.gpu.upload(host, values)

    def mean(self, values: Any, wire: Wire, prescale: float, postscale: float) -> tuple[int, int]:
        return self._on_host(values, lambda host: self._inner.mean(host, wire, prescale, postscale))

    def _sum(self, values: Any, wire: Wire) -> None:
        self._on_host(values, lambda host: self._inner.sum(host, wire))

    def _on_host(self, values: Any, change: Callable[[np.ndarray], Any]) -> Any:
        start = (_address(values) - _address(self._values)) // values.itemsize
        host = self._host[start : start + len(values)]
        self.gpu.download(values, host)
        changed = change(host)
        self.gpu.upload(host, values)
        return changed

    def close(self) -> None:
        self.gpu.unpin(self._host)
        self._host, self._values = self._host[:0].copy(), None  # no reference to the memory that `inner` frees
        self._inner.close()


def _address(values: Any) -> int:
    return values.ctypes.data if isinstance(values, np.ndarray) else values.data.ptr
