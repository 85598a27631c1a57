"""PowerSGD: gradients cross as two thin matrices; what these leave out is added to the next gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np

from recipes.planning.random_bits import draws, word
from trainers.communicators.connection import Connection
from trainers.communicators.wire import Wire
from trainers.gradients.exchange import Bucket, HandleAtEnd, mean
from trainers.gradients.flat_gradients import BackwardOrder, FlatGradients, Slot
from trainers.runs.stack_dump import waiting_for_ranks

_SMALL = 1e-8


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """A parameter's gradient of n rows and m columns, its factors P (n, r) and Q (m, r) in memory that is summed."""

    slot: Slot
    p: Any
    q: Any

    def of(self, values: Any) -> Any:
        """The part of a flat array that is this matrix."""
        return values[self.slot.span].reshape(len(self.p), len(self.q))


class PowerExchange:
    """Turns the workers' sums of gradients into a low-rank approximation of their mean; the counterpart of `Exchange`.

        S_w <- scale * sum of worker w's gradients + E_w          scale = 1 / global batch
        P   <- orthogonal columns of the sum over workers of S_w Q
        Q   <- the sum over workers of S_w^T P
        gradient = P Q^T;   E_w <- S_w - P Q^T / W

    matrix by matrix: a parameter's first axis against all others. A parameter with one axis, and one whose factors
    would not be smaller than itself, crosses as it is. P and Q depend on the sum of all S_w alone, and so does the sum
    of all errors: gradients are the same on any number of workers but for rounding, which grows with time.

    Q is kept from update to update (warm start); the first is drawn by the seed. On a 16-bit wire factors are scaled
    as gradients are, see `Exchange`; the errors hold what was rounded away.

    Bytes on the wire: as of `Exchange`, of r (n + m) numbers in place of n m. Nothing overlaps with backward.

    Notation: W workers, r rank.

    Args:
        model: whose gradients these are.
        order: of its `backward_order`.
        connection: of all workers.
        wire: format of the numbers sent.
        rank: r, at least 1.
        seed: of the first Q.
    Attributes:
        observe, range: as of `Exchange`.

    Source: Vogels et al. 2019, arXiv 1905.13727; github.com/epfml/powersgd, paper-code at f07be92 (as notes made from
        it have it).
    Differs: their S_w and E_w are W times these, with the mean over workers in place of the sum; there every matrix
        crosses as factors. A column of Q that comes out as zeros, as from a gradient of zeros behind a last gamma of
        0, is the first one again: theirs stays zero, and such weights are never trained.
    """

    overlaps, ends_of_buckets = False, ()

    def __init__(
        self, model: chainer.Chain, order: BackwardOrder, connection: Connection, *, wire: Wire, rank: int, seed: int
    ) -> None:
        self.connection, self.wire = connection, wire
        ranks = {path: rank_of(parameter.shape, rank) for path, parameter in model.namedparams()}
        sizes = {path: _sizes(parameter.shape, ranks[path]) for path, parameter in model.namedparams()}
        num_values, memory = sum(parameter.size for parameter in model.params()), []

        def allocate(_: int, dtype: Any) -> Any:
            memory.append(connection.allocate(num_values + sum(map(sum, sizes.values())), dtype))
            return memory[0][:num_values]  # all in one block: some sums go by the offset in it

        self.flat = FlatGradients(order, allocate)
        self._plain = [slot for slot in self.flat.slots if not ranks[slot.path]]
        thin = [slot for slot in self.flat.slots if ranks[slot.path]]
        lengths = [slot.parameter.size for slot in self._plain]
        lengths += [sizes[slot.path][place] for place in (0, 1) for slot in thin]
        ends = np.cumsum([num_values, *lengths]).tolist()
        pieces = [memory[0][start:stop] for start, stop in zip(ends, ends[1:], strict=False)]
        self._pieces, factors = pieces[: len(self._plain)], pieces[len(self._plain) :]
        self._matrices = [
            _Matrix(slot=slot, p=p.reshape(-1, ranks[slot.path]), q=q.reshape(-1, ranks[slot.path]))
            for slot, p, q in zip(thin, factors, factors[len(thin) :], strict=False)
        ]
        cuts = [ends[0], ends[len(self._plain)], ends[len(self._plain) + len(thin)], ends[-1]]
        parts = [(start, stop) for start, stop in zip(cuts, cuts[1:], strict=False) if stop > start]
        self.buckets = [Bucket(span=slice(*part), num_slots=0) for part in parts]  # plain ones, P, Q
        self._whole = memory[0]
        self._xp = chainer.backend.get_array_module(self._whole)
        self._error = self._xp.zeros(num_values, self._whole.dtype)
        self._first = [self._first_q(matrix, seed) for matrix in self._matrices]
        self._q = [q.copy() for q in self._first]
        self._next = (self._error.copy(), self._q)
        self.observe: Callable[[int, float, float], None] = lambda number, began, ended: None
        self.range: Callable[[str], contextlib.AbstractContextManager[None]] = lambda name: contextlib.nullcontext()

    def _first_q(self, matrix: _Matrix, seed: int) -> Any:
        drawn = draws(seed, "power sgd", word(matrix.slot.path)).normals(matrix.q.size)
        return self._xp.asarray(drawn.astype(matrix.q.dtype).reshape(matrix.q.shape))

    def begin(self, *, scale: float) -> HandleAtEnd:
        """Start the exchange of an update, or of one that is done again; all workers call this together.

        Args:
            scale: what the sum over workers is multiplied by.
        """
        return HandleAtEnd(lambda: self._approximate(scale), self.observe)

    def _approximate(self, scale: float) -> np.ndarray:
        """The gradients become their approximation; errors and Q of after it wait for `commit`."""
        values, (error, _) = self.flat.values, self._next
        with self.connection.on_stream_after(self.connection.record_event()):
            values *= values.dtype.type(scale)
            for matrix, q in zip(self._matrices, self._q, strict=True):
                matrix.of(values)[...] += matrix.of(self._error)
                self._xp.matmul(matrix.of(values), q, out=matrix.p)
            for slot, piece in zip(self._plain, self._pieces, strict=True):
                piece[...] = values[slot.span]
        sums = iter(self.buckets)
        lost = [self._sum(next(sums)) for _ in range(bool(self._plain) + bool(self._matrices))]
        with self.connection.on_stream_after(self.connection.record_event()):
            for matrix in self._matrices:
                orthogonalize(matrix.p)
                self._xp.matmul(matrix.of(values).T, matrix.p, out=matrix.q)
        lost += [self._sum(bucket) for bucket in sums]
        with self.connection.on_stream_after(self.connection.record_event()):
            for matrix in self._matrices:
                whole = matrix.p @ matrix.q.T
                matrix.of(error)[...] = matrix.of(values) - whole / whole.dtype.type(self.connection.mpi.size)
                matrix.of(values)[...] = whole
            for slot, piece in zip(self._plain, self._pieces, strict=True):
                values[slot.span] = piece
        made = zip(self._matrices, self._first, strict=True)
        self._next = (error, [self._xp.where(matrix.q.any(axis=0), matrix.q, first) for matrix, first in made])
        return np.array(lost, np.int64).reshape(-1, 2)

    def _sum(self, bucket: Bucket) -> tuple[int, int]:
        with self.connection.on_stream_after(self.connection.record_event()):
            return mean(self._whole[bucket.span], self.connection, self.wire, 1.0)

    def commit(self) -> None:
        """The gradient is applied: the next one gets its errors. An attempt that is done again leaves none."""
        (self._error, self._q), spare = self._next, self._error
        self._next = (spare, self._q)

    def own_arrays(self) -> dict[str, Any]:
        """What a checkpoint keeps of this worker: its errors, and Q, by kind and path of the parameter."""
        named = zip(self._matrices, self._q, strict=True)
        kept = ((matrix.slot.path, {"error": matrix.of(self._error), "q": q}) for matrix, q in named)
        return {f"{kind}:{path}": array for path, of in kept for kind, array in of.items()}

    def restore(self, own: Mapping[str, Any]) -> None:
        """Take back `own_arrays` of a checkpoint."""
        for path, array in self.own_arrays().items():
            array[...] = self._xp.asarray(own[path]).reshape(array.shape)

    def close(self) -> None:
        """Free the memory of the gradients. All workers call this together."""
        self.flat.release()
        self._matrices, self._pieces, self._whole = [], [], np.empty(0)
        with waiting_for_ranks():
            self.connection.close()


def shared_out(kept: Sequence[Mapping[str, np.ndarray]], size: int) -> list[Mapping[str, np.ndarray]]:
    """The `own_arrays` for each of `size` workers, of a checkpoint of another number.

    Each gets an equal part of the sum of all errors, on which alone the gradients depend.
    """
    if len(kept) == size:
        return list(kept)
    whole = dict(kept[0])
    for name in (name for name in whole if name.startswith("error:")):
        whole[name] = (sum(own[name] for own in kept) / np.float32(size)).astype(whole[name].dtype)
    return [whole] * size


def rank_of(shape: Sequence[int], rank: int) -> int:
    """The rank of the factors of a gradient, 0 where it crosses as it is.

    >>> rank_of((64, 32, 3, 3), 2), rank_of((10, 3), 4), rank_of((64,), 2)
    (2, 0, 0)
    """
    if len(shape) < 2:
        return 0
    rows, columns = shape[0], int(np.prod(shape[1:]))
    fits = min(rows, columns, rank)
    return fits if fits * (rows + columns) < rows * columns else 0


def _sizes(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Numbers that cross for a parameter: of P and of Q, or of itself."""
    if not rank:
        return (int(np.prod(shape)),)
    return shape[0] * rank, int(np.prod(shape[1:])) * rank


def orthogonalize(matrix: Any) -> None:
    """Make the columns orthogonal and of length 1, one after another, in place (Gram and Schmidt)."""
    for number in range(matrix.shape[1]):
        column, rest = matrix[:, number : number + 1], matrix[:, number + 1 :]
        column /= ((column * column).sum()) ** 0.5 + matrix.dtype.type(_SMALL)
        rest -= (column * rest).sum(axis=0) * column
