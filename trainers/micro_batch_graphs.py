"""Forward and backward of a micro-batch as a CUDA graph: captured, checked against eager ones, then replayed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from chainer.backend import get_array_module

from trainers.faults import one_line
from trainers.flat_gradients import FlatGradients
from trainers.kernels import cuda_launch
from trainers.memory import count_also, ran_out
from trainers.norm_groups import NormGroups
from trainers.squared_norm import SquaredNorm

log = logging.getLogger("kilobatch")

EAGER, CHECKED = 2, 2  # times that a kind of micro-batch comes first: plans and kernels are made; graph beside eager
APART = {"float32": 1e-3, "tf32": 2e-2, "mixed16": 5e-2, "bfloat16": 0.2}  # at most, as a part of the norm: assumed
_MOST = 16  # kinds of micro-batches at a time

Found = tuple[Any, SquaredNorm]  # mean loss of a micro-batch, an array; what it added, where that is measured
Work = Callable[..., Found]  # (images, targets, finished)


class Gpu:
    """Captures what this thread asks of the current GPU, in memory and on a stream that nothing else uses.

    CuPy's default pool keeps the memory of each stream apart, but gives all of it back when memory runs out, also what
    a graph will write again.

    Attributes:
        pool: the memory.
        lost: memory has run out in here once; what graphs use may have been given back.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.pool = cupy.cuda.MemoryPool(self._take)
        count_also(self.pool)
        self.lost = False

    def _take(self, num_bytes: int) -> Any:
        try:
            return self._cupy.cuda.MemoryPointer(self._cupy.cuda.Memory(num_bytes), 0)
        except Exception:
            self.lost = True
            raise

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """What is asked within is done when this is left; it is asked as in a capture: with the same plans and kernels.

        In the default pool, since it gives what lives on, and a graph writes all of its memory again at each launch.
        """
        cuda_launch.device.rehearses = True
        try:
            yield
        finally:
            cuda_launch.device.rehearses = False
            self._clear()

    def _clear(self) -> None:
        """All that was asked is done, and what it no longer needs is given back: graphs have memory of their own."""
        self._cupy.cuda.get_current_stream().synchronize()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def record(self, work: Callable[[Callable[[], None]], Any]) -> tuple[Any, list[Callable[[], None]]]:
        """What `work` gives, and what runs it, in order; only its arrays are worth anything, and only after that.

        Args:
            work: is given what ends a graph and begins the next one.
        """
        graphs = []

        def cut() -> None:
            graphs.append(self._stream.end_capture())
            self._stream.begin_capture()

        with self.rehearsal(), self._stream, self._cupy.cuda.using_allocator(self.pool.malloc):
            self._stream.begin_capture()
            try:
                found = work(cut)
            except BaseException:
                with contextlib.suppress(Exception):  # it was invalidated, and has ended all the same
                    self._stream.end_capture()
                raise
            graphs.append(self._stream.end_capture())
        return found, [graph.launch for graph in graphs]

    def forget(self) -> None:
        """No graph will be launched any more: give their memory back."""
        self._cupy.cuda.Device().synchronize()
        self.pool.free_all_blocks()
        self.lost = False


@dataclass
class _Kind:
    """Micro-batches whose work is the same but for the numbers.

    Args:
        came: how many.
        checks: of them, how many were replayed beside eager ones.
        given: images and targets that the graph reads.
        told: float64, what it tells in numbers: the loss, then squares.
        written: slots that have come when it is done.
        steps: what runs it, in order, each with the slots that are whole behind it.
    """

    came: int = 0
    checks: int = 0
    given: tuple[Any, ...] = ()
    told: Any = None
    written: list[bool] = field(default_factory=list)
    steps: list[tuple[Callable[[], None], tuple[int, ...]]] = field(default_factory=list)


class MicroBatchGraphs:
    """Runs the work of micro-batches: eagerly, or from the fifth of a kind on as a CUDA graph.

    What a graph holds is forward and backward with all their casts, the statistics of norm groups added up, the
    gradients added to the flat array, whether they are finite, and their squares. Loading, the exchange, the
    optimizer's step and whatever the host reads lie outside. Where buckets are sent while backward goes on, it is a
    graph for each bucket, which is sent behind it.

    The third and the fourth of a kind are computed twice: eagerly, which counts, and by the graph, which was captured
    beside the third, on the same inputs. Where gradients, statistics or loss are further apart than rounding, or
    anything fails, there are no graphs from then on.

    A capture keeps what the host did: so a graph is right only where that is the same each time. What belongs to the
    kind is the caller's business; a model whose Python code depends on anything else is not covered, and a dropout
    mask, drawn by the host, cannot be captured.

    Args:
        flat: gradients that work writes.
        groups: with the statistics that it adds to.
        compute: the recipe's `precision.compute`, for how far apart is too far.
        cuts: slots that end a graph, where somebody wants to know of them.
        device: where graphs are captured.
    """

    def __init__(
        self, flat: FlatGradients, groups: NormGroups, *, compute: str, cuts: Collection[int], device: Any
    ) -> None:
        self._flat, self._groups, self._apart, self._device = flat, groups, APART[compute], device
        self._cuts = frozenset(cuts)
        self._kinds: dict[Hashable, _Kind] = {}
        self.over = False

    def run(self, kind: Hashable, arrays: tuple[Any, ...], work: Work, finished: Callable[[int], None] | None) -> Found:
        """Do the work of a micro-batch.

        Args:
            kind: equal where all but the numbers is.
            arrays: its images and targets, on the device.
            work: (*arrays, finished) -> loss, norm: eagerly.
            finished: told of slots that are whole, but not where graphs are checked.
        """
        if self.over:
            return work(*arrays, finished)
        finished = finished if self._cuts else None
        kind = (kind, finished is not None)
        if kind not in self._kinds and len(self._kinds) == _MOST:
            self.forget()
        known = self._kinds.setdefault(kind, _Kind())
        known.came += 1
        if known.came <= EAGER:
            return work(*arrays, finished)
        if known.checks < CHECKED:
            return self._checked(known, arrays, work, cuts=finished is not None)
        return self._replayed(known, arrays, finished)

    def forget(self) -> None:
        """Begin anew: what is kept for graphs is given back."""
        self._kinds = {}
        self._device.forget()

    def _give_up(self, why: str) -> None:
        self.over = True
        self.forget()
        log.warning("cuda_graph: %s; forward and backward stay eager", why)

    def _checked(self, known: _Kind, arrays: tuple[Any, ...], work: Work, *, cuts: bool) -> Found:
        """Eager work, with a graph of it beside, captured if that has not been done."""
        before, said = self._state(), None
        try:
            with self._device.rehearsal():
                found = work(*arrays, None)
        except Exception as error:
            if not ran_out(error):
                raise
            said = one_line(error)
        if said is not None:  # the frames of the error are gone now, and what they held
            self._set(before)
            self._give_up(f"memory for a graph ran out: {said}")
            return work(*arrays, None)
        after, why = self._state(), None
        try:
            self._set(before)
            if not known.steps:
                self._capture(known, arrays, work, cuts=cuts)
                self._set(before)
            if self._device.lost:
                why = "memory for graphs ran out"
            elif _finite(after[0][0]):  # else float16 has overflowed, which shows nothing
                why = self._difference(found, self._replayed(known, arrays, None), after)
                known.checks += 1
        except Exception as error:
            why = f"no graph was captured: {one_line(error)}"
        self._set(after)
        if why:
            self._give_up(why)
        elif known.checks == CHECKED:
            log.info("micro-batches of %d samples are replayed as a CUDA graph from now on", len(arrays[0]))
        return found

    def _capture(self, known: _Kind, arrays: tuple[Any, ...], work: Work, *, cuts: bool) -> None:
        known.given = tuple(array.copy(order="K") for array in arrays)  # channels stay last
        whole: list[list[int]] = [[]]

        def captured(cut: Callable[[], None]) -> tuple[Any, list[bool]]:
            def finished(number: int) -> None:
                whole[-1].append(number)
                if number in self._cuts:
                    cut()
                    whole.append([])

            loss, norm = work(*known.given, finished if cuts else None)
            numbers = [loss, *norm.squares]
            told = get_array_module(loss).empty(len(numbers), "d")
            for place, number in enumerate(numbers):
                told[place] = number
            return told, self._flat.written

        (known.told, known.written), launches = self._device.record(captured)
        known.steps = list(zip(launches, map(tuple, whole), strict=True))

    def _replayed(self, known: _Kind, arrays: tuple[Any, ...], finished: Callable[[int], None] | None) -> Found:
        """What eager work does and gives, by the graph."""
        for given, array in zip(known.given, arrays, strict=True):
            given[...] = array
        for launch, numbers in known.steps:
            launch()
            for number in numbers if finished is not None else ():
                finished(number)
        told = known.told.copy()  # the next launch writes there again
        self._flat.written = known.written
        return told[0], SquaredNorm(told[1:])

    def _state(self) -> tuple[list[Any], Any]:
        return [array.copy() for array in self._arrays()], self._flat.written

    def _set(self, state: tuple[list[Any], Any]) -> None:
        for array, kept in zip(self._arrays(), state[0], strict=True):
            array[...] = kept
        self._flat.written = state[1]

    def _arrays(self) -> list[Any]:
        """What work writes in place."""
        return [self._flat.values, self._flat.flags, *self._groups.seen]

    def _difference(self, eager: Found, replayed: Found, after: tuple[list[Any], Any]) -> str | None:
        """What a replay, whose results lie in place, made otherwise, in words; None where nothing."""
        named = {"the loss": (replayed[0], eager[0]), "gradients": (self._flat.values, after[0][0])}
        if self._groups.seen:
            named["statistics"] = (self._groups.seen[0], after[0][2])
        for name, (found, expected) in named.items():
            distance, norm = _norm(found - expected), _norm(expected)
            if not distance <= self._apart * norm:  # so that NaN is told
                return f"a replay is not the eager computation: {name} {distance:.3g} apart of {norm:.3g}"
        return None


def _norm(array: Any) -> float:
    xp = get_array_module(array)
    return float(xp.sqrt(xp.square(array, dtype="d").sum()))


def _finite(array: Any) -> bool:
    return bool(get_array_module(array).isfinite(array).all())
