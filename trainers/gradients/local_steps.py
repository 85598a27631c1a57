"""Local SGD: each worker steps by its own gradient; after some updates the workers average their weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import chainer
import numpy as np

from trainers.communicators.connection import Connection
from trainers.communicators.wire import FullWire
from trainers.gradients.exchange import Bucket, HandleAtEnd
from trainers.gradients.flat_gradients import FlatGradients
from trainers.runs.checkpoint import optimizer_arrays, weights_of
from trainers.runs.stack_dump import waiting_for_ranks


class LocalExchange:
    """Leaves each worker its own mean gradient, and averages the workers' weights; the counterpart of `Exchange`.

        gradient <- W * scale * the worker's sum                  scale = 1 / global batch; all shares are equal

    Bytes on the wire: of an average, as of `Exchange` without overlap, with one bucket of float32.

    Notation: W workers.

    Args:
        flat: the gradients, in memory that the connection allocated; weights cross in it too.
        connection: of all workers.
        optimizer: set up with the model.
    Attributes:
        observe, range: as of `Exchange`.
    """

    overlaps, ends_of_buckets = False, ()

    def __init__(self, flat: FlatGradients, connection: Connection, optimizer: chainer.Optimizer) -> None:
        self.flat, self.connection, self._optimizer = flat, connection, optimizer
        self.wire = FullWire(flat.values.dtype)
        self.buckets = [Bucket(span=slice(0, len(flat.values)), num_slots=len(flat.slots))]
        self.observe: Callable[[int, float, float], None] = lambda number, began, ended: None
        self.range: Callable[[str], contextlib.AbstractContextManager[None]] = lambda name: contextlib.nullcontext()

    def begin(self, *, scale: float) -> HandleAtEnd:
        """Start an update, or one that is done again.

        Args:
            scale: what the sum over workers would be multiplied by.
        """

        def own_mean() -> np.ndarray:
            values = self.flat.values
            values *= values.dtype.type(scale * self.connection.mpi.size)
            return np.zeros((1, 2), np.int64)

        return HandleAtEnd(own_mean, self.observe)

    def average_weights(self) -> None:
        """The parameters become their mean over the workers, who call this together; the gradients are lost."""
        values, connection = self.flat.values, self.connection
        with waiting_for_ranks(), connection.on_stream_after(connection.record_event()):
            for slot in self.flat.slots:
                values[slot.span] = slot.parameter.array.ravel()
            connection.mean(values, self.wire, 1.0, 1.0 / connection.mpi.size)
            for slot in self.flat.slots:
                slot.parameter.array[...] = values[slot.span].reshape(slot.parameter.shape)

    def average_model(self) -> None:
        """Parameters and running statistics become their means over the workers, who call this together.

        Bytes on the wire: one MPI_Allreduce of float64.
        """
        paths = sorted(weights_of(self._optimizer.target).items())  # Chainer keeps persistent names in a set
        arrays = [array for _, array in paths if array.dtype.kind == "f"]
        host = chainer.get_device("@numpy")
        whole = np.concatenate([np.asarray(host.send(array), np.float64).ravel() for array in arrays])
        with waiting_for_ranks():
            whole = self.connection.mpi.allreduce(whole) / self.connection.mpi.size
        starts = np.cumsum([array.size for array in arrays])[:-1]
        for array, mean in zip(arrays, np.split(whole, starts), strict=True):
            device = chainer.backend.get_device_from_array(array)
            array[...] = device.send(mean.reshape(array.shape).astype(array.dtype))

    def own_arrays(self) -> dict[str, Any]:
        """What a checkpoint keeps of this worker: weights, running statistics and the optimizer's state, by path."""
        weights = {f"weights:{path}": array for path, array in weights_of(self._optimizer.target).items()}
        return weights | {f"state:{path}": array for path, array in optimizer_arrays(self._optimizer).items()}

    def restore(self, own: Mapping[str, Any]) -> None:
        """Take back `own_arrays` of a checkpoint."""
        for path, array in self.own_arrays().items():
            array[...] = chainer.backend.get_device_from_array(array).send(own[path])

    def close(self) -> None:
        """Free the memory of the gradients. All workers call this together."""
        self.flat.release()
        with waiting_for_ranks():
            self.connection.close()
