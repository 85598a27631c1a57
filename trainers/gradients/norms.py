"""Norms of gradients: of an update, to clip it, and of its micro-batches, for the noise scale and AdaScale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from recipes.planning.noise_scale import Norms
from trainers.kernels import chainer_hooks

_PART = 1 << 20  # values squared at a time: their squares stay in the cache, and a GPU has few launches


def squared_norm(values: Any) -> float:
    """Sum of the squares of all gradients, added up in float64.

    Args:
        values: all of them, in one array without further axes.
    """
    parts = (values[start : start + _PART] for start in range(0, len(values), _PART))
    return math.fsum(map(float, read_together([np.square(part, dtype=np.float64).sum() for part in parts])))


def clip(values: Any, clip_norm: float) -> float:
    """Shorten the gradient to a global norm of at most `clip_norm`, in place.

        g <- g * clip_norm / max(|g|, clip_norm)            |g| over all parameters together

    Args:
        values: means over the global batch, of all parameters in one array without further axes.
        clip_norm: above 0.
    Returns:
        the norm before.

    Source: Pascanu et al. 2013, arXiv 1211.5063 (not checked). Differs: PyTorch's `clip_grad_norm_` divides by
        |g| + 1e-6.
    """
    norm = math.sqrt(squared_norm(values))
    if norm > clip_norm:
        values *= values.dtype.type(clip_norm / norm)
    return norm


class FiniteCheck:
    """Which of some arrays are finite; on a GPU the answer stays there until it is read.

    Args:
        arrays: by name; an array may be None.
    Attributes:
        flags: one an array, on its device; 0 where it holds an infinity or a NaN.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        arrays = {name: values for name, values in arrays.items() if values is not None}
        self._names, values = list(arrays), list(arrays.values())
        ours = chainer_hooks.operators_for(*values) if values else None
        fit = all(each.flags.c_contiguous and each.dtype == values[0].dtype for each in values)
        if hasattr(ours, "finite") and fit:
            self.flags = ours.finite(values)
        else:
            xp = chainer.backend.get_array_module(*values)
            self.flags = xp.stack([xp.isfinite(each).all() for each in values]) if values else np.empty(0)

    def first(self, flags: Any) -> str | None:
        """Name of the first array that is not finite, None if all are, from `flags` on the host."""
        return next((name for name, flag in zip(self._names, flags, strict=True) if not flag), None)


def first_not_finite(arrays: Mapping[str, Any]) -> str | None:
    """Name of the first of these arrays with an infinity or a NaN, None if there is none; an array may be None."""
    check = FiniteCheck(arrays)
    return check.first(*read_together([check.flags]))


def read_together(arrays: Sequence[Any]) -> list[Any]:
    """What these arrays hold: those of a GPU in one transfer, since each one waits for the GPU."""
    cuda = chainer.backends.cuda
    if not any(isinstance(each, cuda.ndarray) for each in arrays):
        return list(arrays)
    values = cuda.cupy.concatenate([each.ravel() for each in arrays]).get()
    ends = np.cumsum([each.size for each in arrays])[:-1]
    return [part.reshape(each.shape) for part, each in zip(np.split(values, ends), arrays, strict=True)]


class MicroBatchNorms:
    """The squared norms of the mean gradients of this worker's micro-batches in one update.

    Each micro-batch holds whole norm groups, so that it is the same function of its samples as it would be alone.

    Args:
        factor: multiplies the losses, and is not divided out of the gradients that are added.
    Attributes:
        unread: arrays that `read` takes in: on a GPU they stay there until then, since each transfer waits for it.
    """

    def __init__(self, *, factor: float) -> None:
        self._factor, self._sizes = factor, []
        self.unread: list[Any] = []
        self._own: list[tuple[int, float]] = []  # samples, squared norm

    def add(self, *, size: int, norm: SquaredNorm) -> None:
        """Take in a micro-batch of `size` samples.

        Args:
            norm: of the gradient of the sum of its samples' losses, times the factor.
        """
        self._sizes.append(size)
        self.unread.append(norm.terms)

    def read(self, terms: Iterable[Any]) -> None:
        """Take in what the arrays of `unread` hold."""
        for size, squares in zip(self._sizes, terms, strict=True):
            self._own.append((size, math.fsum(map(float, squares)) / (size * self._factor) ** 2))
        self._sizes, self.unread = [], []

    def fail(self) -> None:
        """This worker could not compute all of its micro-batches: there are no estimates."""
        self._sizes, self.unread, self._own = [], [], [(1, math.nan)]

    def gathered(self, values: Any, mpi: Any) -> Norms | None:
        """The estimates of the whole update, the same on all workers.

        Bytes on the wire: about 13 a micro-batch and 25 a worker, from each worker to each.

        Args:
            values: the mean gradient of the update, of all parameters in one array.
            mpi: communicator of all workers; all call this together.
        Returns:
            None where the update is one micro-batch.
        """
        sizes, norms = zip(*(one for own in mpi.allgather(self._own) for one in own), strict=True)
        if not all(map(math.isfinite, norms)):
            return None  # the check of the loss or of the weights reports the failure
        return Norms.of_micro_batches(sizes, norms, squared_norm(values))


class SquaredNorm:
    """Sum of squares, added up in float64; `squares` are arrays of the terms so far."""

    def __init__(self, squares: Iterable[Any] = ()) -> None:
        self.squares = list(squares)

    def add(self, array: np.ndarray) -> None:
        """Add the squares of an array."""
        self.squares.append(np.square(array, dtype=np.float64).sum())

    @property
    def terms(self) -> Any:
        """The terms in one array, on their device."""
        if not self.squares:
            return np.zeros(1)
        xp = chainer.backend.get_array_module(*self.squares)
        return xp.concatenate([xp.ravel(each) for each in self.squares])


class PartNorms:
    """The squared norm of gradients that may arrive in several parts.

    Attributes:
        norm: of those that are complete.
    """

    def __init__(self) -> None:
        self.norm = SquaredNorm()
        self._so_far: dict[int, np.ndarray] = {}

    def add(self, number: int, array: np.ndarray, *, whole: bool) -> None:
        """Add a part of the gradient of slot `number`; with `whole` it is the last one."""
        known = self._so_far.pop(number, None)
        array = array if known is None else known + array
        if whole:
            self.norm.add(array)
        else:
            self._so_far[number] = array

    def end(self) -> None:
        """No more parts come. Count incomplete gradients as well: a use of a parameter may have got no gradient."""
        for array in self._so_far.values():
            self.norm.add(array)
        self._so_far = {}
