"""Forward and backward of a micro-batch as a CUDA graph: captured, checked against eager execution, then replayed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from chainer.backend import get_array_module

from trainers.gradients.flat_gradients import FlatGradients
from trainers.gradients.norms import SquaredNorm
from trainers.kernels.cuda import launcher
from trainers.kernels.cuda.images import copied
from trainers.models.batch_norm import NormGroups
from trainers.runs.errors import one_line
from trainers.runs.memory import count_pool, free_blocks, is_out_of_memory

log = logging.getLogger("kilobatch")

EAGER, CHECKED = 2, 2  # first runs of a kind: eager, which creates plans and kernels; then eager and replay compared
APART = {"float32": 1e-3, "tf32": 2e-2, "mixed16": 5e-2, "bfloat16": 0.2}  # largest difference over norm: assumed
_MOST = 16  # kinds of micro-batches at a time

LossAndNorm = tuple[Any, SquaredNorm]  # mean loss of a micro-batch (array); norm of what it added, where measured
Work = Callable[..., LossAndNorm]  # (images, targets, finished)


class GraphRecorder:
    """Captures what this thread launches on the current GPU, with a stream and a memory pool of its own.

    CuPy's default pool keeps the memory of each stream apart, but frees all unused blocks when memory runs out, also
    those that a graph will write again.

    Attributes:
        pool: the memory pool of the graphs.
        lost: memory has run out in the pool once; blocks that graphs use may have been freed.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.pool = cupy.cuda.MemoryPool(self._take)
        count_pool(self.pool)
        self.lost = False

    def _take(self, num_bytes: int) -> Any:
        try:
            return self._cupy.cuda.MemoryPointer(self._cupy.cuda.Memory(num_bytes), 0)
        except Exception:
            self.lost = True
            raise

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Within, work uses the same plans and kernels as in a capture; on exit all that was launched has ended.

        Eager work uses the default pool, since its results live on; a graph overwrites its memory at each launch.
        """
        launcher.device.rehearses = True
        try:
            yield
        finally:
            launcher.device.rehearses = False
            self._clear()

    def _clear(self) -> None:
        """Wait for the GPU and free the unused blocks of the default pool: graphs have a pool of their own."""
        self._cupy.cuda.get_current_stream().synchronize()
        free_blocks(self._cupy.get_default_memory_pool(), self._cupy)

    def record(self, work: Callable[[Callable[[], None]], Any]) -> tuple[Any, list[Callable[[], None]]]:
        """Capture `work`: what it returns, and the launches that replay it, in order.

        Of what it returns only arrays are valid, and only after a replay.

        Args:
            work: called with a function that ends a graph and begins the next one.
        """
        graphs = []

        def cut() -> None:
            graphs.append(self._stream.end_capture())
            self._stream.begin_capture()

        with self.rehearsal(), self._stream, self._cupy.cuda.using_allocator(self.pool.malloc):
            self._stream.begin_capture()
            try:
                result = work(cut)
            except BaseException:
                with contextlib.suppress(Exception):  # raises if the capture was invalidated, but ends it
                    self._stream.end_capture()
                raise
            graphs.append(self._stream.end_capture())
        return result, [graph.launch for graph in graphs]

    def forget(self) -> None:
        """No graph will be launched any more: free their memory."""
        self._cupy.cuda.Device().synchronize()
        free_blocks(self.pool, self._cupy)
        self.lost = False


@dataclass
class _Kind:
    """Micro-batches that run the same operations on other numbers.

    Args:
        came: how many of them have run.
        checks: how many of them were computed both eagerly and by a replay.
        inputs: images and targets that the graph reads.
        outputs: float64, the numbers that it writes: the loss, then the terms of the squared norm.
        written: `FlatGradients.written` after it.
        steps: the launches, in order, each with the slots that are complete after it.
    """

    came: int = 0
    checks: int = 0
    inputs: tuple[Any, ...] = ()
    outputs: Any = None
    written: list[bool] = field(default_factory=list)
    steps: list[tuple[Callable[[], None], tuple[int, ...]]] = field(default_factory=list)


class MicroBatchGraphs:
    """Runs the work of micro-batches: eagerly, or from the fifth of a kind on by replaying a CUDA graph.

    A graph contains forward and backward with their casts, the sums of the norm groups' statistics, the accumulation
    into the flat gradients, the check that these are finite, and their squared norms. Loading, the exchange, the
    optimizer's step and whatever the host reads lie outside. Where buckets are sent while backward runs, there is one
    graph for each bucket, which is sent after it.

    The third and the fourth of a kind are computed twice on the same inputs: eagerly, whose results are used, and by a
    replay of the graph, which is captured at the third. If gradients, statistics or loss differ by more than rounding,
    or anything fails, no graphs are used from then on. Where memory runs out in eager work beside graphs, that work is
    done again without them.

    A capture freezes what the host did, so a replay is right only where the host would do the same again. The caller
    puts all that this depends on into the kind; a model whose Python code depends on anything else is not covered, and
    a dropout mask, drawn by the host, cannot be captured.

    Args:
        flat: gradients that `work` adds to.
        groups: whose statistics `work` adds to.
        compute: the recipe's `precision.compute`, which sets the largest difference allowed.
        cuts: slots after which a graph ends, in micro-batches that `run` is given a `finished` for.
        device: captures graphs; see `GraphRecorder`.
    """

    def __init__(
        self, flat: FlatGradients, groups: NormGroups, *, compute: str, cuts: Collection[int], device: Any
    ) -> None:
        self._flat, self._groups, self._apart, self._device = flat, groups, APART[compute], device
        self._cuts = frozenset(cuts)
        self._kinds: dict[Hashable, _Kind] = {}
        self._inputs: dict[Hashable, tuple[Any, ...]] = {}  # by shapes: one graph runs at a time
        self.over = False

    def run(
        self, kind: Hashable, arrays: tuple[Any, ...], work: Work, finished: Callable[[int], None] | None
    ) -> LossAndNorm:
        """Do the work of a micro-batch.

        Args:
            kind: equal for micro-batches that run the same operations on other numbers.
            arrays: its images and targets, on the device.
            work: (*arrays, finished) -> loss, norm: eagerly.
            finished: called with slots that are complete, but not while graphs are checked.
        """
        if self.over:
            return work(*arrays, finished)
        finished = finished if self._cuts else None
        kind = (kind, finished is not None)
        if kind not in self._kinds and (len(self._kinds) == _MOST or self._are_outgrown_by(arrays)):
            self.forget()
        known = self._kinds.setdefault(kind, _Kind())
        known.came += 1
        if known.came <= EAGER:
            return self._beside_graphs(arrays, work)[1] if self._inputs else work(*arrays, finished)
        if known.checks < CHECKED:
            return self._checked(known, arrays, work, cuts=finished is not None)
        return self._replayed(known, arrays, finished)

    def forget(self) -> None:
        """Drop all graphs and kinds, and free their memory."""
        self._kinds, self._inputs = {}, {}
        self._device.forget()

    def _are_outgrown_by(self, arrays: tuple[Any, ...]) -> bool:
        """Whether a larger micro-batch begins, as at a ramp, that may need the memory of the graphs."""
        return bool(self._inputs) and _bytes_of(arrays) > max(map(_bytes_of, self._inputs.values()))

    def _give_up(self, why: str) -> None:
        self.over = True
        self.forget()
        log.warning("cuda_graph: %s; forward and backward stay eager", why)

    def _beside_graphs(self, arrays: tuple[Any, ...], work: Work) -> tuple[Any, LossAndNorm, Any]:
        """Run eagerly, or where memory runs out, again without graphs; the results between the states around them."""
        before = result = after = out_of_memory = None
        try:
            before = self._state()
            with self._device.rehearsal():
                result = work(*arrays, None)
            after = self._state()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            out_of_memory = one_line(error)
        if out_of_memory is not None:  # not in `except`: the error's frames would keep their arrays alive
            if before is not None and result is None:
                self._set(before)
            before = after = None
            room = "half the --micro-batch-size would leave room for one"
            self._give_up(f"memory for a graph ran out: {out_of_memory}; {room}")
            result = work(*arrays, None) if result is None else result
        return before, result, after

    def _checked(self, known: _Kind, arrays: tuple[Any, ...], work: Work, *, cuts: bool) -> LossAndNorm:
        """Run eagerly, then replay the graph on the same inputs and compare; capture it first if there is none."""
        before, result, after = self._beside_graphs(arrays, work)
        if self.over:
            return result
        why = None
        try:
            self._set(before)
            if not known.steps:
                self._capture(known, arrays, work, cuts=cuts)
                self._set(before)
            if self._device.lost:
                why = "memory for graphs ran out"
            elif _finite(after[0][0]):  # else float16 has overflowed, and a comparison shows nothing
                why = self._difference(result, self._replayed(known, arrays, None), after)
                known.checks += 1
        except Exception as error:
            why = f"no graph was captured: {one_line(error)}"
        self._set(after)
        if why:
            self._give_up(why)
        elif known.checks == CHECKED:
            log.info("micro-batches of %d samples are replayed as a CUDA graph from now on", len(arrays[0]))
        return result

    def _capture(self, known: _Kind, arrays: tuple[Any, ...], work: Work, *, cuts: bool) -> None:
        known.inputs = self._inputs_like(arrays)
        whole: list[list[int]] = [[]]

        def captured(cut: Callable[[], None]) -> tuple[Any, list[bool]]:
            def finished(number: int) -> None:
                whole[-1].append(number)
                if number in self._cuts:
                    cut()
                    whole.append([])

            loss, norm = work(*known.inputs, finished if cuts else None)
            numbers = [loss, *norm.squares]
            outputs = get_array_module(loss).empty(len(numbers), "d")
            for place, number in enumerate(numbers):
                outputs[place] = number
            return outputs, self._flat.written

        (known.outputs, known.written), launches = self._device.record(captured)
        known.steps = list(zip(launches, map(tuple, whole), strict=True))

    def _inputs_like(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arrays that all graphs of such micro-batches read."""
        shapes = tuple((array.shape, array.strides, array.dtype.str) for array in arrays)
        if shapes not in self._inputs:
            self._inputs[shapes] = tuple(map(copied, arrays))
        return self._inputs[shapes]

    def _replayed(self, known: _Kind, arrays: tuple[Any, ...], finished: Callable[[int], None] | None) -> LossAndNorm:
        """Replay the graph: same effects and results as eager work."""
        for given, array in zip(known.inputs, arrays, strict=True):
            given[...] = array
        for launch, numbers in known.steps:
            launch()
            for number in numbers if finished is not None else ():
                finished(number)
        outputs = known.outputs.copy()  # the next replay overwrites them
        self._flat.written = known.written
        return outputs[0], SquaredNorm([outputs[1:]])

    def _state(self) -> tuple[list[Any], Any]:
        return [array.copy() for array in self._arrays()], self._flat.written

    def _set(self, state: tuple[list[Any], Any]) -> None:
        for array, kept in zip(self._arrays(), state[0], strict=True):
            array[...] = kept
        self._flat.written = state[1]

    def _arrays(self) -> list[Any]:
        """The arrays that `work` writes in place."""
        return [self._flat.values, self._flat.flags, *self._groups.seen]

    def _difference(self, eager: LossAndNorm, replayed: LossAndNorm, after: tuple[list[Any], Any]) -> str | None:
        """In words how a replay, whose results are in place, differs from eager work; None where it does not."""
        named = {"the loss": (replayed[0], eager[0]), "gradients": (self._flat.values, after[0][0])}
        if self._groups.seen:
            named["statistics"] = (self._groups.seen[0], after[0][2])
        for name, (replayed, expected) in named.items():
            distance, norm = _norm(replayed - expected), _norm(expected)
            if not distance <= self._apart * norm:  # `not <=`: NaN is a difference
                return f"a replay is not the eager computation: {name} {distance:.3g} apart of {norm:.3g}"
        return None


def _norm(array: Any) -> float:
    xp = get_array_module(array)
    return float(xp.sqrt(xp.square(array, dtype="d").sum()))


def _bytes_of(arrays: tuple[Any, ...]) -> int:
    return sum(array.nbytes for array in arrays)


def _finite(array: Any) -> bool:
    return bool(get_array_module(array).isfinite(array).all())
