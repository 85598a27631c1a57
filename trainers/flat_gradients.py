"""All gradients of a model in one array, written as the backward pass finishes them."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np
from chainer import functions as F
from chainer.functions.array.cast import Cast

from trainers.gradient_taps import GradientTaps
from trainers.gradients import read_together, to_host, together


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where the gradient of a parameter lives: `place` in the flat array.

    Args:
        late: it is used past its link as well, and whole only when all of backward has ended.
    """

    path: str
    parameter: chainer.Parameter
    place: slice
    late: bool


class FlatGradients:
    """Gradients laid out in the order in which backward finishes them, so that a part of the array is whole early on.

    The sums over micro-batches are the only pass over them: taps write there what a layer's backward gives.

    Args:
        model: its parameters are initialised.
        images_NCHW: what the model may be called with, to see in which order its parameters are finished.
        allocate: (num_values, dtype) -> zeros where the gradients live, on the model's device.
        copies: arrays to write in turn.
    Attributes:
        values: the array at hand, one-dimensional.
        slots: in its order.
    """

    def __init__(
        self,
        model: chainer.Chain,
        images_NCHW: np.ndarray,
        allocate: Callable[[int, Any], np.ndarray] = np.zeros,
        *,
        copies: int = 1,
    ) -> None:
        order = backward_order(model, images_NCHW)
        ends = np.cumsum([0, *(parameter.size for _, parameter, _ in order)])
        self.slots = [
            Slot(path=path, parameter=parameter, place=slice(int(start), int(stop)), late=late)
            for (path, parameter, late), start, stop in zip(order, ends, ends[1:], strict=False)
        ]
        self._arrays = list(allocate(copies * int(ends[-1]), order[0][1].dtype).reshape(copies, -1))
        self.values = self._arrays[0]
        self._number = {id(slot.parameter): number for number, slot in enumerate(self.slots)}
        self._written = [False] * len(self.slots)
        self._checks = False
        self._handed_over: np.ndarray | None = None
        self._views: dict[int, list[np.ndarray]] = {}  # of the arrays above, each parameter's part
        self._finite: list[tuple[int, Any]] = []  # of what came, in its order: whether it is, perhaps on a GPU
        self._flags: Any = None  # these together, once all have come

    def begin_update(self, *, check: bool = False) -> None:
        """The next gradient of each parameter replaces what is there.

        Args:
            check: look for numbers that are not finite.
        """
        self._checks, self._finite, self._flags = check, [], None
        self._clear()
        self.start_over()

    def start_over(self) -> None:
        """The next gradient of each parameter replaces what is there."""
        self._written = [False] * len(self.slots)

    @contextlib.contextmanager
    def taken(self, finished: Callable[[int], None] | None = None, *, measure: bool = False) -> Iterator[SquaredNorm]:
        """Around forward and backward of a micro-batch, whose gradients are added to those of the update.

        Args:
            finished: called with the number of a slot when this micro-batch has added all it will to it.
            measure: take the squared norm of what this micro-batch adds.
        Raises:
            RuntimeError: a parameter was used past its link, as shared weights are, and `finished` was told too early.
        """
        came: Counter[int] = Counter()
        parts = _Parts() if measure else None

        def take(number: int, array: np.ndarray) -> None:
            self._add(number, array)
            came[number] += 1
            whole = came[number] == taps.uses.count(number)
            if parts is not None:
                parts.add(number, array, whole=whole and not self.slots[number].late)
            if whole and finished is not None:
                finished(number)

        taps = GradientTaps(self._number_of, take)
        norm = SquaredNorm() if parts is None else parts.norm
        with taps:
            yield norm
        for number, slot in enumerate(self.slots):
            if slot.parameter.grad is not None:  # used past its link, where there was no tap
                if finished is not None and came[number]:
                    raise RuntimeError(
                        f"{slot.path} is used past its link as well, and its gradient came too late to be sent while "
                        f"backward goes on; set exchange.overlap to false in the cluster file"
                    )
                taps.uses.append(number)
                take(number, slot.parameter.grad)
                slot.parameter.cleargrad()
        if parts is not None:
            parts.end()

    def _number_of(self, variable: chainer.Variable) -> int | None:
        """Of a parameter, or of the cast of one that mixed precision has put in its place."""
        if isinstance(variable.creator, Cast):
            variable = variable.creator.inputs[0].get_variable()
        return self._number.get(id(variable))

    def gather_flags(self) -> None:
        """All gradients of the update have come: ask the GPU for what `not_finite` reads, while it is still at them."""
        if self._flags is None:
            self._flags = together([flag for _, flag in self._finite])

    @property
    def not_finite(self) -> str | None:
        """Path of the first parameter in this update with an infinity or a NaN; looked for where asked."""
        self.gather_flags()
        flags = to_host(self._flags)
        found = (number for (number, _), finite in zip(self._finite, flags, strict=True) if not finite)
        return next((self.slots[number].path for number in found), None)

    def _add(self, number: int, array: np.ndarray) -> None:
        if self._checks:
            self._finite.append((number, np.isfinite(array).all()))
        kept = self.values[self.slots[number].place].reshape(array.shape)
        if self._written[number]:
            kept += array
        else:
            np.copyto(kept, array)
            self._written[number] = True

    @property
    def place(self) -> Hashable:
        """What the next micro-batch does here, but for its numbers: equal where it does the same."""
        return id(self.values), self._checks, tuple(self._written)

    @property
    def notes(self) -> tuple[list[bool], list[tuple[int, Any]]]:
        """What is known of the update's gradients so far: which have come, and flags of what came, by slot."""
        return list(self._written), list(self._finite)

    @notes.setter
    def notes(self, known: tuple[list[bool], list[tuple[int, Any]]]) -> None:
        self._written, self._finite = map(list, known)
        self._flags = None
        self._clear()  # a capture that failed may have left some

    def fill_gaps(self) -> None:
        """Zeros where no gradient has come in this update: an unused parameter, a worker without samples."""
        for slot, written in zip(self.slots, self._written, strict=True):
            if not written:
                self.values[slot.place] = 0

    def next_array(self) -> None:
        """From now on write the next array; the one at hand stays as it is."""
        self._arrays.append(self._arrays.pop(0))
        self.values = self._arrays[0]

    def hand_over(self, values: np.ndarray) -> None:
        """Each parameter's `grad` is its slot of an array of this object's."""
        if self._handed_over is values:
            return
        if id(values) not in self._views:
            self._views[id(values)] = list(self.by_path(values).values())
        for slot, view in zip(self.slots, self._views[id(values)], strict=True):
            slot.parameter.grad = view
        self._handed_over = values

    def _clear(self) -> None:
        self._handed_over = None
        for slot in self.slots:
            slot.parameter.cleargrad()

    def forget(self) -> None:
        """Nobody refers to the arrays any longer: their memory is about to go."""
        self._clear()
        self._views = {}
        self._arrays, self.values = [], np.zeros(0, self.values.dtype)

    def by_path(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Views of the slots of an array, by the path of their parameter."""
        return {slot.path: values[slot.place].reshape(slot.parameter.shape) for slot in self.slots}


class SquaredNorm:
    """Sum of squares, added up in float64.

    Args:
        squares: what was taken in so far.
    """

    def __init__(self, squares: Iterable[Any] = ()) -> None:
        self.squares = list(squares)

    def add(self, array: np.ndarray) -> None:
        """Take in the squares of an array."""
        self.squares.append(np.square(array, dtype=np.float64).sum())

    @property
    def value(self) -> float:
        """The sum so far."""
        return math.fsum(map(float, read_together(self.squares)))


class _Parts:
    """The norm of gradients that may come in several parts."""

    def __init__(self) -> None:
        self.norm = SquaredNorm()
        self._so_far: dict[int, np.ndarray] = {}

    def add(self, number: int, array: np.ndarray, *, whole: bool) -> None:
        known = self._so_far.pop(number, None)
        array = array if known is None else known + array
        if whole:
            self.norm.add(array)
        else:
            self._so_far[number] = array

    def end(self) -> None:
        """No more will come, also of what is not whole: one of its uses may have been in vain."""
        for array in self._so_far.values():
            self.norm.add(array)
        self._so_far = {}


def backward_order(model: chainer.Chain, images_NCHW: np.ndarray) -> list[tuple[str, chainer.Parameter, bool]]:
    """Paths and parameters in the order in which a backward pass finishes them, seen in one, and whether that is late.

    Late are those used past their link; they and unused ones come last.
    """
    known = sorted(model.namedparams())
    numbers = {id(parameter): number for number, (_, parameter) in enumerate(known)}
    came: list[int] = []
    taps = GradientTaps(lambda variable: numbers.get(id(variable)), lambda number, _: came.append(number))
    model.cleargrads()
    with chainer.using_config("train", False), taps:
        F.sum(model(images_NCHW)).backward()
    late = {number for number, (_, parameter) in enumerate(known) if parameter.grad is not None}
    model.cleargrads()
    place = {number: place for place, number in enumerate(came)}  # the last use of one that is used several times
    place |= dict.fromkeys(late, len(came))
    order = sorted(range(len(known)), key=lambda number: place.get(number, math.inf))
    return [(*known[number], number in late) for number in order]
