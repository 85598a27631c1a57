"""The GPU of a worker, as communicators use it: its memory, a separate stream, copies to and from the host."""

from __future__ import annotations

import contextlib
import socket
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainers.communicators.connection import Connection, Sum


class Gpu:
    """The GPU that is current where this is made, with a stream of its own beside that of forward and backward.

    CuPy's current device and stream are per thread: `on_stream_after` sets them on another thread.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def zeros(self, num_values: int, dtype: Any) -> Any:
        """Zeroed memory of the GPU."""
        return self._cupy.zeros(num_values, dtype)

    def record_event(self) -> Any:
        """An event after all that this thread has launched on the GPU so far."""
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        return event

    @contextlib.contextmanager
    def on_stream_after(self, event: Any) -> Iterator[None]:
        """Within, work is launched on the own stream, after the event; on exit it is done."""
        with self._device, self.stream:
            self.stream.wait_event(event)
            yield
            self.stream.synchronize()

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Within, work is launched on the own stream after that of the current one, which then waits for it."""
        event = self.record_event()
        with self._device, self.stream:
            self.stream.wait_event(event)
            yield
            done = self.record_event()
        self.wait_event(done)

    def pin(self, host: np.ndarray) -> None:
        """Page-lock host memory, so that copies need no staging buffer."""
        if host.nbytes:
            self._cupy.cuda.runtime.hostRegister(host.ctypes.data, host.nbytes, 0)

    def unpin(self, host: np.ndarray) -> None:
        """Undo `pin`."""
        if host.nbytes:
            self._cupy.cuda.runtime.hostUnregister(host.ctypes.data)

    def download(self, values: Any, host: np.ndarray) -> None:
        """host <- values; blocks until it is done."""
        values.get(out=host, stream=self.stream, blocking=True)

    def upload(self, host: np.ndarray, values: Any) -> None:
        """values <- host; done on exit of `on_stream_after`."""
        values.set(host, stream=self.stream)

    def send(self, host: np.ndarray, values: Any, *, behind: Any) -> Any:
        """values <- host on the own stream, after event `behind`; `host` must stay until the event that is returned."""
        self.stream.wait_event(behind)
        self.upload(host, values)
        return self.stream.record(self._cupy.cuda.Event(disable_timing=True))

    def wait_event(self, event: Any) -> None:
        """What this thread launches on the GPU from now on waits for the event."""
        self._cupy.cuda.get_current_stream().wait_event(event)


class GpuConnection(Connection):
    """Sums of arrays in the memory of GPUs, one of which every worker has.

    Args:
        mpi, sum_of, num_roundings and others: as of `Connection`; `sum_of` launches on the stream of `gpu`.
        gpu: of this worker; the current one by default.
    """

    def __init__(self, mpi: Any, sum_of: Sum, *, num_roundings: int, gpu: Gpu | None = None, **others: Any) -> None:
        gpu = gpu or Gpu()
        super().__init__(mpi, sum_of, num_roundings=num_roundings, wait_mode="as CUDA does", gpu=gpu, **others)

    def allocate(self, num_values: int, dtype: Any) -> Any:
        return self.gpu.zeros(num_values, dtype)


class LoneGpuConnection(Connection):
    """Of a single worker: nothing is summed, and gradients are scaled on the stream of backward without waiting."""

    waits = False

    def __init__(self, mpi: Any) -> None:
        super().__init__(mpi, lambda values, wire: None, num_roundings=0, sent=0.0, wait_mode="as CUDA does")

    def allocate(self, num_values: int, dtype: Any) -> Any:
        import cupy

        return cupy.zeros(num_values, dtype)


def shared_gpus(mpi: Any) -> str:
    """Which workers share a GPU, in words; empty where every one has its own. They call this together.

    Two parts of one GPU (MIG) count as one GPU: NCCL refuses them too. Bytes on the wire: about 50 from each worker to
    each.
    """
    import cupy

    return shared_gpu_text(mpi.allgather((socket.gethostname(), cupy.cuda.Device().pci_bus_id)))


def shared_gpu_text(gpus: list[tuple[str, str]]) -> str:
    """Which ranks share a GPU, in words, from (host, GPU) of each rank.

    >>> shared_gpu_text([("a", "0"), ("a", "1"), ("b", "0"), ("a", "0")])
    'ranks 0 and 3 share GPU 0 of a'
    >>> shared_gpu_text([("a", "0"), ("a", "1")])
    ''
    """
    ranks_of = defaultdict(list)
    for rank, gpu in enumerate(gpus):
        ranks_of[gpu].append(str(rank))
    return "; ".join(
        f"ranks {', '.join(ranks[:-1])} and {ranks[-1]} share GPU {gpu} of {host}"
        for (host, gpu), ranks in ranks_of.items()
        if len(ranks) > 1
    )
