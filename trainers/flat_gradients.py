"""All gradients of a model in one array, written as the backward pass finishes them."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np
from chainer import functions as F
from chainer.backend import get_array_module
from chainer.backends.cuda import to_cpu
from chainer.functions.array.cast import Cast

from trainers.gradient_taps import GradientTaps
from trainers.kernels import seams
from trainers.squared_norm import PartNorms, SquaredNorm


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
        flags: uint8 beside the values, of each slot whether an infinity or a NaN has come in this update, where that is
            looked for.
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
        self.flags = get_array_module(self.values).zeros(len(self.slots), np.uint8)

    def begin_update(self, *, check: bool = False) -> None:
        """The next gradient of each parameter replaces what is there.

        Args:
            check: look for numbers that are not finite.
        """
        self._checks = check
        self.flags.fill(0)
        self._clear()
        self.start_over()

    def start_over(self) -> None:
        """The next gradient of each parameter replaces what is there."""
        self._written = [False] * len(self.slots)

    @contextlib.contextmanager
    def taken(
        self, finished: Callable[[int], None] | None = None, *, ends: Collection[int] = (), measure: bool = False
    ) -> Iterator[SquaredNorm]:
        """Around forward and backward of a micro-batch, whose gradients are added to those of the update.

        Args:
            finished: called with the number of a slot when this micro-batch has added all it will to it.
            ends: slots that gradients before them may wait for, to be added together.
            measure: take the squared norm of what this micro-batch adds.
        Raises:
            RuntimeError: a parameter was used past its link, as shared weights are, and `finished` was told too early.
        """
        came: Counter[int] = Counter()
        arrivals, parts = _Arrivals(self, finished, ends), PartNorms() if measure else None

        def take(number: int, array: np.ndarray) -> None:
            came[number] += 1
            whole = came[number] == uses[number]
            arrivals.add(number, array, whole=whole)
            if parts is not None:
                parts.add(number, array, whole=whole and not self.slots[number].late)

        taps = GradientTaps(self._number_of, take)
        uses = taps.uses  # and `take` knows no taps: in a cycle gradients that wait would outlive an exception
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
                uses[number] += 1
                take(number, slot.parameter.grad)
                slot.parameter.cleargrad()
        arrivals.settle()
        if parts is not None:
            parts.end()

    def _number_of(self, variable: chainer.Variable) -> int | None:
        """Of a parameter, or of the cast of one that mixed precision has put in its place."""
        if isinstance(variable.creator, Cast):
            variable = variable.creator.inputs[0].get_variable()
        return self._number.get(id(variable))

    @property
    def not_finite(self) -> str | None:
        """Path of the first slot that an infinity or a NaN has come to in this update; looked for where asked."""
        found = np.flatnonzero(to_cpu(self.flags))
        return self.slots[found[0]].path if len(found) else None

    def _add(self, arrived: dict[int, np.ndarray]) -> None:
        """Gradients of some slots: all at once where the kernels do that."""
        slots = [self.slots[number] for number in arrived]
        adds = [self._written[number] for number in arrived]
        for number in arrived:
            self._written[number] = True
        if gather := getattr(seams.serving(self.values), "gather", None):
            starts = [slot.place.start for slot in slots]
            found = self.flags if self._checks else None
            if gather([*arrived.values()], self.values, starts=starts, adds=adds, found=found, numbers=[*arrived]):
                return
        for (number, array), slot, add in zip(arrived.items(), slots, adds, strict=True):
            if self._checks:
                self.flags[number] |= ~np.isfinite(array).all()
            kept = self.values[slot.place].reshape(array.shape)
            if add:
                kept += array
            else:
                np.copyto(kept, array)

    @property
    def place(self) -> Hashable:
        """What the next micro-batch does here, but for its numbers: equal where it does the same."""
        return id(self.values), self._checks, tuple(self._written)

    @property
    def written(self) -> list[bool]:
        """Of each slot whether its first gradient of the update has come."""
        return list(self._written)

    @written.setter
    def written(self, known: list[bool]) -> None:
        self._written = list(known)
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


class _Arrivals:
    """Gradients that have come: they are added at once, or where kernels add many together, with those before an end.

    Args:
        flat: where they are added.
        finished: told of slots that are whole, once they are there.
        ends: slots that others wait for.
    """

    def __init__(self, flat: FlatGradients, finished: Callable[[int], None] | None, ends: Collection[int]) -> None:
        self._flat, self._finished = flat, finished
        self._ends = ends if hasattr(seams.serving(flat.values), "gather") else None
        self._waiting: dict[int, np.ndarray] = {}
        self._whole: list[int] = []

    def add(self, number: int, array: np.ndarray, *, whole: bool) -> None:
        if number in self._waiting:
            self.settle()
        self._waiting[number] = array
        if whole:
            self._whole.append(number)
        if self._ends is None or (whole and number in self._ends):
            self.settle()

    def settle(self) -> None:
        """None waits any longer."""
        if self._waiting:
            self._flat._add(self._waiting)
        self._waiting, whole, self._whole = {}, self._whole, []
        for number in whole if self._finished is not None else ():
            self._finished(number)


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
