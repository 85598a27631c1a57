"""What every communicator gives once it is connected; and `Dummy`, which sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.communicators.wire import Wire
from trainers.runs.errors import RunFailed

Sum = Callable[[np.ndarray, Wire], None]


class Misfit(RunFailed, ValueError):
    """A communicator cannot serve these workers; all of them raise it together."""


class Connection:
    """Sums of arrays over all workers, in place, with the same bits on every one.

    Args:
        mpi: communicator of its own, which nothing else uses.
        sum_of: (values, wire): one-dimensional `values` become their sums.
        num_roundings: how often at most a partial sum is rounded to the wire format before it is complete.
        release: functions that free what else the connection owns, such as communicators split from `mpi`.
        wait_mode: how this waits for others, in words.
        sent: numbers that this worker sends for each number that is summed; None where the MPI library decides.
        sums_16_bits: whether it can sum on 16-bit wires.
        gpu: a `trainers.communicators.gpu.Gpu`, where sums are launched on its stream.
    Attributes:
        choices: what a communicator that chooses has chosen so far, in words.
        waits: whether a sum blocks its caller; else it is only launched on a GPU.
        exchange_parts: of `TreeSum`, for arrays in the memory that `allocate` gives; None where MPI takes them.
    """

    waits, exchange_parts = True, None

    def __init__(
        self,
        mpi: Any,
        sum_of: Sum,
        *,
        num_roundings: int,
        release: Sequence[Callable[[], None]] = (),
        sent: float | None = None,
        wait_mode: str = "sleeps",
        sums_16_bits: bool = True,
        gpu: Any = None,
    ) -> None:
        self.mpi, self.sum, self.gpu = mpi, sum_of, gpu
        self.num_roundings, self.sums_16_bits = num_roundings, sums_16_bits
        self.choices: list[str] = []
        self._release, self._sent, self._wait_mode, self._beside_backward = release, sent, wait_mode, False

    @property
    def wait_mode(self) -> str:
        """How this waits for others, in words."""
        return self._wait_mode

    def set_beside_backward(self, value: bool) -> None:
        """From now on one thread waits here while another one computes, or not."""
        self._beside_backward = value

    def mean(self, values: np.ndarray, wire: Wire, prescale: float, postscale: float) -> tuple[int, int]:
        """values <- postscale * sum of prescale * values; returns what `wire.scale` does on this worker."""
        lost = wire.scale(values, prescale)
        self.sum(values, wire)
        values *= values.dtype.type(postscale)
        return lost

    def launch_sum(self, values: Any) -> bool:
        """Launch the sum of an array on a GPU in turn with all else there, without waiting; whether that was done."""
        return False

    def sent_values(self, num_values: int) -> float | None:
        """Numbers that this worker sends for the sum of so many; None where that is not known."""
        return None if self._sent is None else self._sent * num_values

    def sends_nothing(self) -> bool:
        """Whether no number leaves any worker, so that none need be rounded; all workers call this together.

        Bytes on the wire: about 15 from each worker, and as many back.
        """
        return self.mpi.allreduce(int(self.sent_values(1) == 0)) == self.mpi.size

    def allocate(self, num_values: int, dtype: Any) -> np.ndarray:
        """Zeroed memory; `sum` is called with parts of it."""
        return np.zeros(num_values, dtype)

    def record_event(self) -> Any:
        """An event after all that this thread has launched on its GPU so far; None on a CPU."""
        return None if self.gpu is None else self.gpu.record_event()

    def on_stream_after(self, event: Any) -> AbstractContextManager[None]:
        """Around the sum of what is complete at an event, on any thread; on exit the sum is done."""
        return nullcontext() if self.gpu is None else self.gpu.on_stream_after(event)

    def close(self) -> None:
        """Free memory and communicators; all workers call this together."""
        for release in (*self._release, self.mpi.Free):
            release()


def ring_traffic(size: int) -> float:
    """Numbers that each of `size` workers sends for each number summed, at the least: 2 (P - 1)/P.

    >>> ring_traffic(1), ring_traffic(4)
    (0.0, 1.5)
    """
    return 2 * (size - 1) / size


def even_slices(total: int, parts: int) -> list[slice]:
    """`total` values in contiguous parts, the first ones one more.

    >>> even_slices(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    each, more = divmod(total, parts)
    ends = [part * each + min(part, more) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(ends, ends[1:], strict=False)]


@dataclass(frozen=True, kw_only=True)
class Dummy:
    """No exchange: every worker keeps its own gradient. Measures the cost of communication; trains no model.

        nothing on the wire

    The workers' weights drift apart, and what is trained is no model: no checkpoint of it is written.

    Source: ChainerMN's communicator of that name.
    """

    weights_drift = True  # by intention, see `trainers.training.equal_ranks.why_weights_differ`

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`."""
        return Connection(mpi, lambda values, wire: None, num_roundings=0, sent=0.0)
