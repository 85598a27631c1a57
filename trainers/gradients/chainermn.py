"""ChainerMN's communicator interface around our exchange, for programs written with Chainer and ChainerMN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import chainer
import chainermn  # noqa: F401  before its communicators, which its functions import in a circle
import numpy as np
from chainermn.communicators.mpi_communicator_base import MpiCommunicatorBase

from recipes.arguments import require_count
from trainers.communicators.auto import Auto
from trainers.communicators.connection import Connection
from trainers.communicators.host_staging import connect_on_gpu
from trainers.communicators.wire import WIRES, FullWire, Wire, array_module
from trainers.gradients.exchange import mean
from trainers.runs.stack_dump import waiting_for_ranks


def create_communicator(
    communicator: Any = None, mpi_comm: Any = None, *, wire: str = "float32", bucket_bytes: int = 4_000_000
) -> ChainerMNCommunicator:
    """What `chainermn.create_communicator` gives, with our mean of gradients; all ranks call this together.

    Args:
        communicator: one of `trainers.communicators`, such as `Ring()`; `Auto()` by default.
        mpi_comm: of mpi4py; all ranks by default.
        wire: float32, float16 or bfloat16, what gradients are sent as.
        bucket_bytes: gradients that are sent together, at least 8.
    Raises:
        TypeError: `communicator` is not a component, but for example a word such as "naive" or a class.
        ValueError: `wire` is unknown or the communicator cannot sum it; `bucket_bytes` is too small; the communicator
            does not fit this machine or number of ranks. What depends on the hosts is checked with the first gradients.
    """
    communicator = Auto() if communicator is None else communicator
    if isinstance(communicator, type) or not hasattr(communicator, "connect"):
        raise TypeError(f"communicator must be one of trainers.communicators, such as Ring(), got {communicator!r}")
    if wire not in WIRES:
        raise ValueError(f"wire must be one of {', '.join(WIRES)}, got {wire!r}")
    require_count("bucket_bytes", bucket_bytes, at_least=8)
    if mpi_comm is None:
        from mpi4py import MPI

        mpi_comm = MPI.COMM_WORLD
    _require_fit(communicator, wire, mpi_comm.size)
    return ChainerMNCommunicator(mpi_comm, communicator, wire, bucket_bytes)


def _require_fit(communicator: Any, wire: str, ranks: int) -> None:
    kind = type(communicator).__name__
    if hasattr(communicator, "missing") and (missing := communicator.missing()):
        raise ValueError("; ".join(missing))
    if hasattr(communicator, "misfit") and (misfit := communicator.misfit(ranks)):
        raise ValueError(f"{kind}: {misfit}")
    if wire != "float32" and not getattr(communicator, "sums_16_bits", True):
        raise ValueError(f"{kind} has no sum of {wire}; take Direct, Ring or HalvingDoubling")


class ChainerMNCommunicator(MpiCommunicatorBase):
    """A communicator of ChainerMN that averages gradients through ours.

        param.grad <- 1/P * sum over P ranks of param.grad

    Gradients pass through one buffer of `bucket_bytes` in memory that the communicator allocates, such as shared
    memory; those on a GPU through one on the current device, see `connect_on_gpu`. On a 16-bit wire each bucket is
    scaled as in training; float64 gradients are sent as such. Everything else is ChainerMN's own: collectives,
    point-to-point, `bcast_data`, and so its evaluator, datasets, links and functions.

    Bytes on the wire: what the communicator sends for as many numbers; on a 16-bit wire 8 more a bucket, from each rank
    to each.

    Differs: no message leaves before backward has ended, and ChainerMN's own double buffering, for NCCL only, does not
    accept this class. RecipeUpdater does both.

    Args: as of `create_communicator`, which checks them.
    """

    def __init__(self, mpi_comm: Any, communicator: Any, wire: str, bucket_bytes: int) -> None:
        super().__init__(mpi_comm)
        self.settings = (communicator, wire, bucket_bytes)
        self._buffers: dict[tuple[str, str], tuple[Connection, Wire, np.ndarray]] = {}

    def multi_node_mean_grad(self, model: chainer.Link, zero_fill: bool = False) -> None:
        """Every parameter's gradient becomes its mean over the ranks, in place; all ranks call this together.

        Args:
            model: with the same parameters on all ranks.
            zero_fill: give a parameter without a gradient one of zeros; else it must be without one on all ranks.
        Raises:
            TypeError: a gradient is not an array of NumPy or CuPy, or of another type than float16, 32 or 64.
        """
        by_kind: dict[tuple[str, str], list[np.ndarray]] = {}
        for gradient in _gradients_of(model, zero_fill):
            type_ = "float64" if gradient.dtype == np.float64 else "float32"
            by_kind.setdefault((type_, array_module(gradient).__name__), []).append(gradient.reshape(-1))
        for kind in sorted(by_kind):
            self._average(by_kind[kind], *self._buffer(*kind))

    def split(self, color: int, key: int) -> ChainerMNCommunicator:
        """A communicator of the same kind between the ranks with the same colour, in the order of their keys."""
        return ChainerMNCommunicator(self.mpi_comm.Split(color, key), *self.settings)

    def finalize(self) -> None:
        """Free our memory and communicators; all ranks call this together, and nothing afterwards."""
        for kind in sorted(self._buffers):
            connection, _, _ = self._buffers.pop(kind)
            connection.close()
        super().finalize()

    def _buffer(self, type_: str, library: str) -> tuple[Connection, Wire, np.ndarray]:
        kind = (type_, library)
        if kind not in self._buffers:
            (communicator, wire, bucket_bytes), mpi = self.settings, self.mpi_comm.Dup()
            connection = communicator.connect(mpi) if library == "numpy" else connect_on_gpu(communicator, mpi)
            full = wire == "float32" or type_ == "float64" or connection.sends_nothing()
            values = connection.allocate(max(bucket_bytes // np.dtype(type_).itemsize, 1), np.dtype(type_))
            self._buffers[kind] = (connection, FullWire(type_) if full else WIRES[wire](), values)
        return self._buffers[kind]

    def _average(self, gradients: list[np.ndarray], connection: Connection, wire: Wire, buffer: np.ndarray) -> None:
        copyto = array_module(buffer).copyto
        for pieces in _buckets(gradients, len(buffer)):
            ends = np.cumsum([len(piece) for piece in pieces])
            slots = [buffer[end - len(piece) : end] for piece, end in zip(pieces, ends, strict=True)]
            for slot, piece in zip(slots, pieces, strict=True):
                copyto(slot, piece)
            with waiting_for_ranks(), connection.on_stream_after(connection.record_event()):
                mean(buffer[: ends[-1]], connection, wire, 1.0 / self.size)
            for slot, piece in zip(slots, pieces, strict=True):
                copyto(piece, slot, casting="same_kind")


def _gradients_of(model: chainer.Link, zero_fill: bool) -> Iterator[np.ndarray]:
    """Contiguous gradients of a model's initialised parameters, by path."""
    for path, parameter in sorted(model.namedparams()):
        if parameter.array is None or (parameter.grad is None and not zero_fill):
            continue
        if parameter.grad is None:
            parameter.grad = parameter.xp.zeros_like(parameter.array)
        if not isinstance(parameter.grad, chainer.get_array_types()) or parameter.grad.dtype.kind != "f":
            raise TypeError(f"the gradient of {path} is no float array of NumPy or CuPy")
        if not parameter.grad.flags.c_contiguous:
            parameter.grad = parameter.xp.ascontiguousarray(parameter.grad)
        yield parameter.grad


def _buckets(gradients: list[np.ndarray], length: int) -> Iterator[list[np.ndarray]]:
    """Lists of pieces of the gradients, in order; each but the last list fills a buffer of `length` numbers."""
    pieces, left = [], length
    for gradient in gradients:
        start = 0
        while start < len(gradient):
            pieces.append(gradient[start : start + left])
            start += len(pieces[-1])
            left -= len(pieces[-1])
            if not left:
                yield pieces
                pieces, left = [], length
    if pieces:
        yield pieces
