"""All gradients of a model in one array, to which hooks deliver each gradient as soon as backward has computed it."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np
from chainer import functions as F
from chainer.backend import get_array_module
from chainer.functions.array.cast import Cast

from trainers.gradients.norms import PartNorms, SquaredNorm
from trainers.kernels import chainer_hooks
from trainers.kernels.chainer_nodes import variable_of

BackwardOrder = list[tuple[str, chainer.Parameter, bool]]  # see `backward_order`


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The part of the flat array that holds the gradient of a parameter."""

    path: str
    parameter: chainer.Parameter
    span: slice
    late: bool  # used outside its link as well, so its gradient is complete only when all of backward has ended


class FlatGradients:
    """Gradients laid out in the order in which backward finishes them, so that the first buckets are complete early.

    Accumulation over micro-batches is the only pass over them: hooks add what a layer's backward gives to the array.

    Args:
        order: of `backward_order`; the parameters are initialised.
        allocate: (num_values, dtype) -> zeros on the model's device, the memory of the gradients.
        copies: number of arrays, written in turn.
    Attributes:
        values: the current array, one-dimensional.
        slots: in the order of the array.
        flags: uint8, one a slot: not 0 if an infinity or a NaN has arrived in this update, where that is checked.
    """

    def __init__(
        self,
        order: BackwardOrder,
        allocate: Callable[[int, Any], np.ndarray] = np.zeros,
        *,
        copies: int = 1,
    ) -> None:
        ends = np.cumsum([0, *(parameter.size for _, parameter, _ in order)])
        self.slots = [
            Slot(path=path, parameter=parameter, span=slice(int(start), int(stop)), late=late)
            for (path, parameter, late), start, stop in zip(order, ends, ends[1:], strict=False)
        ]
        self._arrays = list(allocate(copies * int(ends[-1]), order[0][1].dtype).reshape(copies, -1))
        self.values = self._arrays[0]
        self._number = {id(slot.parameter): number for number, slot in enumerate(self.slots)}
        self._written = [False] * len(self.slots)
        self._checks = False
        self._assigned: np.ndarray | None = None
        self._views: dict[int, list[np.ndarray]] = {}  # by id of an array: its slots, shaped as their parameters
        self.flags = get_array_module(self.values).zeros(len(self.slots), np.uint8)

    def begin_update(self, *, check: bool = False) -> None:
        """The next gradient of each parameter replaces what is there.

        Args:
            check: look for infinities and NaN in this update.
        """
        self._checks = check
        self.flags.fill(0)
        self._clear()
        self.overwrite()

    def overwrite(self) -> None:
        """The next gradient of each parameter replaces what is there."""
        self._written = [False] * len(self.slots)

    @contextlib.contextmanager
    def collect(
        self, finished: Callable[[int], None] | None = None, *, ends: Collection[int] = (), measure: bool = False
    ) -> Iterator[SquaredNorm]:
        """Around forward and backward of a micro-batch, whose gradients are added to those of the update.

        Args:
            finished: called with the number of a slot when all of this micro-batch's gradient has been added to it.
            ends: slots up to which gradients may be held back, to be added in one launch.
            measure: take the squared norm of what this micro-batch adds.
        Raises:
            RuntimeError: a parameter was used outside its link, as shared weights are, and `finished` was called too
                early.
        """
        num_arrived: Counter[int] = Counter()
        arrivals, parts = _Arrivals(self, finished, ends), PartNorms() if measure else None

        def deliver(number: int, array: np.ndarray) -> None:
            num_arrived[number] += 1
            whole = num_arrived[number] == uses[number]
            arrivals.add(number, array, whole=whole)
            if parts is not None:
                parts.add(number, array, whole=whole and not self.slots[number].late)

        hooks = GradientHooks(self._number_of, deliver)
        uses = hooks.uses  # `deliver` must not refer to `hooks`: that cycle would keep gradients after an exception
        norm = SquaredNorm() if parts is None else parts.norm
        with hooks:
            yield norm
        for number, slot in enumerate(self.slots):
            if slot.parameter.grad is not None:  # used outside its link, where no hook is
                if finished is not None and num_arrived[number]:
                    raise RuntimeError(
                        f"{slot.path} is used past its link as well, and its gradient came too late to be sent while "
                        f"backward goes on; set exchange.overlap to false in the cluster file"
                    )
                uses[number] += 1
                deliver(number, slot.parameter.grad)
                slot.parameter.cleargrad()
        arrivals.settle()
        if parts is not None:
            parts.end()

    def _number_of(self, variable: chainer.Variable) -> int | None:
        """The slot number of a parameter, or of the parameter behind a mixed-precision cast; None of anything else."""
        creator = variable.creator_node
        if isinstance(creator, Cast):
            variable = creator.inputs[0].get_variable()
        return self._number.get(id(variable))

    def first_flagged(self, flags: np.ndarray) -> str | None:
        """Path of the first slot with an infinity or a NaN, from `flags` on the host; None if there is none."""
        numbers = np.flatnonzero(flags)
        return self.slots[numbers[0]].path if len(numbers) else None

    def _add(self, arrived: dict[int, np.ndarray]) -> None:
        """Add the gradients of some slots: in one launch where the kernels can."""
        slots = [self.slots[number] for number in arrived]
        adds = [self._written[number] for number in arrived]
        for number in arrived:
            self._written[number] = True
        if gather := getattr(chainer_hooks.operators_for(self.values), "gather", None):
            starts = [slot.span.start for slot in slots]
            flags = self.flags if self._checks else None
            if gather([*arrived.values()], self.values, starts=starts, adds=adds, found=flags, numbers=[*arrived]):
                return
        for (number, array), slot, add in zip(arrived.items(), slots, adds, strict=True):
            if self._checks:
                self.flags[number] |= ~np.isfinite(array).all()
            kept = self.values[slot.span].reshape(array.shape)
            if add:
                kept += array
            else:
                np.copyto(kept, array)

    @property
    def work_key(self) -> Hashable:
        """A key of what the next micro-batch does here: equal keys run the same operations, on other numbers."""
        return id(self.values), self._checks, tuple(self._written)

    @property
    def written(self) -> list[bool]:
        """Of each slot whether its first gradient of the update has arrived."""
        return list(self._written)

    @written.setter
    def written(self, known: list[bool]) -> None:
        self._written = list(known)
        self._clear()  # a failed capture may have left gradients in parameters

    def zero_unwritten(self) -> None:
        """Write zeros where no gradient has arrived in this update: an unused parameter, a worker without samples."""
        for slot, written in zip(self.slots, self._written, strict=True):
            if not written:
                self.values[slot.span] = 0

    def next_array(self) -> None:
        """From now on write the next array; the current one stays as it is."""
        self._arrays.append(self._arrays.pop(0))
        self.values = self._arrays[0]

    def assign_to_parameters(self, values: np.ndarray) -> None:
        """Make each parameter's `grad` a view of its slot in one of this object's arrays."""
        if self._assigned is values:
            return
        if id(values) not in self._views:
            self._views[id(values)] = list(self.by_path(values).values())
        for slot, view in zip(self.slots, self._views[id(values)], strict=True):
            slot.parameter.grad = view
        self._assigned = values

    def _clear(self) -> None:
        self._assigned = None
        for slot in self.slots:
            slot.parameter.cleargrad()

    def release(self) -> None:
        """Drop all references to the arrays: their memory is about to be freed."""
        self._clear()
        self._views = {}
        self._arrays, self.values = [], np.zeros(0, self.values.dtype)

    def by_path(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Views of the slots of an array, by the path of their parameter."""
        return {slot.path: values[slot.span].reshape(slot.parameter.shape) for slot in self.slots}


class _Arrivals:
    """Gradients that have arrived: added at once, or held back up to the next end where a kernel adds many at once."""

    def __init__(self, flat: FlatGradients, finished: Callable[[int], None] | None, ends: Collection[int]) -> None:
        self._flat, self._finished = flat, finished
        self._ends = ends if hasattr(chainer_hooks.operators_for(flat.values), "gather") else None
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
        """Add all gradients held back, then call `finished` for the slots that are complete."""
        if self._waiting:
            self._flat._add(self._waiting)
        self._waiting, whole, self._whole = {}, self._whole, []
        for number in whole if self._finished is not None else ():
            self._finished(number)


class GradientHooks(chainer.LinkHook):
    """Delivers the gradient of each parameter as soon as backward has computed it, not when all of backward has ended.

    While active, a link that is called sees its parameters through an identity function. In backward this function
    gives the gradient to `deliver` and none to the parameter, whose `grad` stays None. It has the rank (depth in the
    graph) of the layer's input, so that Chainer's backward reaches it right after the layer's own backward; a plain
    identity would come last of all, as the gradients of parameters do without hooks.

    A hook of the link's own, as `WeightStandardization`, sees that function's output, and puts it back into the link
    after Chainer has called this hook; the link then gets its parameter at the next call of any link, or at the end.

    Args:
        number_of: a link's parameter -> its number; None for one whose gradient is not delivered.
        deliver: called with (number, gradient) for each use of a parameter.
    Attributes:
        uses: how often each number was used so far.
    """

    name = "gradient hooks"

    def __init__(
        self, number_of: Callable[[chainer.Variable], int | None], deliver: Callable[[int, np.ndarray], None]
    ) -> None:
        self._number_of, self._deliver = number_of, deliver
        self._replaced: list[tuple[chainer.Link, str, Any, Any]] = []  # with what is there instead
        self._ended: list[tuple[chainer.Link, str, Any, Any]] = []  # the same of links whose own hooks came last
        self.uses: Counter[int] = Counter()

    def forward_preprocess(self, args: Any) -> None:
        """Chainer calls this before a link's forward."""
        self._restore_ended()
        link, number_of, replaced, numbers = args.link, self._number_of, [], []
        for name in sorted(link._params):
            parameter = link.__dict__[name]
            number = number_of(parameter)
            if number is not None:
                replaced.append((link, name, parameter))
                numbers.append(number)
        if not replaced:
            return
        self.uses.update(numbers)
        ranks = [argument.rank for argument in args.args if isinstance(argument, chainer.Variable)]
        identity = DeliveringIdentity(self._deliver, numbers)
        outs = identity.outs([parameter for *_, parameter in replaced], ranks)
        for (_, name, parameter), out in zip(replaced, outs, strict=True):
            self._replaced.append((link, name, parameter, out))
            link.__dict__[name] = out

    def forward_postprocess(self, args: Any) -> None:
        """Chainer calls this after a link's forward: give the link its parameters back."""
        self._restore_ended()
        while self._replaced and self._replaced[-1][0] is args.link:
            if args.link._n_local_link_hooks:
                self._ended.append(self._replaced[-1])
            self._restore()

    def deleted(self, link: chainer.Link | None) -> None:
        """Chainer calls this when the hook is removed, also after a forward that raised."""
        self._restore_ended()
        while self._replaced:
            self._restore()

    def _restore(self) -> None:
        link, name, parameter, _ = self._replaced.pop()
        link.__dict__[name] = parameter

    def _restore_ended(self) -> None:
        while self._ended:
            link, name, parameter, out = self._ended.pop()
            if link.__dict__[name] is out:  # else no hook has put it back
                link.__dict__[name] = parameter


class DeliveringIdentity(chainer.FunctionNode):
    """Identity of a link's parameters; backward gives their gradients to `deliver` and ends there."""

    def __init__(self, deliver: Callable[[int, np.ndarray], None], numbers: list[int]) -> None:
        super().__init__()
        self._deliver, self._numbers = deliver, numbers

    def outs(self, variables: list[chainer.Variable], ranks: list[int]) -> list[chainer.Variable]:
        """What `apply` would return, in a third of its time: small models have many layers and little arithmetic."""
        self.inputs = tuple([variable._node for variable in variables])
        self.rank = max([*ranks, *[node._rank for node in self.inputs]])
        outs = [variable_of(one._data[0], requires_grad=one._requires_grad) for one in variables]
        for out in outs:
            out.creator_node = self
        self.outputs = tuple([weakref.ref(out._node) for out in outs])
        return outs

    def number_of(self, out: Any) -> int:
        """The number of the parameter behind one of its outputs, a node of a variable."""
        return next(number for number, each in zip(self._numbers, self.outputs, strict=True) if each() is out)

    def backward(self, indexes: tuple[int, ...], grads: tuple[chainer.Variable | None, ...]) -> tuple[None, ...]:
        for number, grad in zip(self._numbers, grads, strict=True):
            if grad is not None:
                self._deliver(number, grad._data[0])
        return (None,) * len(grads)


def backward_order(model: chainer.Chain, images_NCHW: np.ndarray) -> BackwardOrder:
    """Path, parameter and whether it is late (see `Slot`), in the order in which a trial backward pass finishes them.

    Late and unused parameters come last.
    """
    known = sorted(model.namedparams())
    numbers = {id(parameter): number for number, (_, parameter) in enumerate(known)}
    arrivals: list[int] = []
    hooks = GradientHooks(lambda variable: numbers.get(id(variable)), lambda number, _: arrivals.append(number))
    model.cleargrads()
    with chainer.using_config("train", False), hooks:
        F.sum(model(images_NCHW)).backward()
    late = {number for number, (_, parameter) in enumerate(known) if parameter.grad is not None}
    model.cleargrads()
    position = {number: at for at, number in enumerate(arrivals)}  # the last use of one that is used several times
    position |= dict.fromkeys(late, len(arrivals))
    order = sorted(range(len(known)), key=lambda number: position.get(number, math.inf))
    return [(*known[number], number in late) for number in order]
