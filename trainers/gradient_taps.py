"""Taps: the gradient of a parameter is taken as soon as backward has it, not when all of backward has ended."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import chainer
import numpy as np


class GradientTaps(chainer.LinkHook):
    """While active, a link that is called sees its parameters through taps: identity functions.

    In backward a tap gives the gradient to `take` and none to the parameter, whose `grad` stays None. A tap has the
    rank (depth in the graph) of the layer's input, so that Chainer's backward reaches it right after the layer's own
    backward; a plain identity would come last of all, as the gradients of parameters do without taps.

    Args:
        number_of: a link's parameter -> its number; None for one that needs no tap.
        take: called with (number, gradient) for each use of a parameter, as soon as backward has it.
    Attributes:
        uses: how often each number was used so far.
    """

    name = "gradient taps"

    def __init__(
        self, number_of: Callable[[chainer.Variable], int | None], take: Callable[[int, np.ndarray], None]
    ) -> None:
        self._number_of, self._take = number_of, take
        self._held: list[tuple[chainer.Link, str, Any]] = []
        self.uses: Counter[int] = Counter()

    def forward_preprocess(self, args: Any) -> None:
        """Chainer calls this before a link's forward."""
        link, number_of, tapped, numbers = args.link, self._number_of, [], []
        for name in sorted(link._params):
            held = link.__dict__[name]
            number = number_of(held)
            if number is not None:
                tapped.append((link, name, held))
                numbers.append(number)
        if not tapped:
            return
        self.uses.update(numbers)
        ranks = [argument.rank for argument in args.args if isinstance(argument, chainer.Variable)]
        tap = _Tap(self._take, numbers)
        self._held += tapped
        outs = tap.outs([held for *_, held in tapped], ranks)
        for (_, name, _), out in zip(tapped, outs, strict=True):
            link.__dict__[name] = out

    def forward_postprocess(self, args: Any) -> None:
        """Chainer calls this after a link's forward: give the link its parameters back."""
        while self._held and self._held[-1][0] is args.link:
            self._restore()

    def deleted(self, link: chainer.Link | None) -> None:
        """Chainer calls this when the hook is removed, also after a forward that raised."""
        while self._held:
            self._restore()

    def _restore(self) -> None:
        link, name, held = self._held.pop()
        link.__dict__[name] = held


class _Tap(chainer.FunctionNode):
    """Identity of a link's parameters; backward gives their gradients to `take` and ends there."""

    def __init__(self, take: Callable[[int, np.ndarray], None], numbers: list[int]) -> None:
        super().__init__()
        self._take, self._numbers = take, numbers

    def outs(self, variables: list[chainer.Variable], ranks: list[int]) -> list[chainer.Variable]:
        """What `apply` would return, in a third of its time: small models have many taps and little arithmetic."""
        self.inputs = tuple([variable.node for variable in variables])
        self.rank = max([*ranks, *[node.rank for node in self.inputs]])
        outs, make = [], chainer.Variable._init_unchecked
        for one in variables:
            out = make(one.array, requires_grad=one.requires_grad, is_chainerx_array=False)
            out.creator_node = self
            outs.append(out)
        self.outputs = tuple([weakref.ref(out.node) for out in outs])
        return outs

    def backward(self, indexes: tuple[int, ...], grads: tuple[chainer.Variable | None, ...]) -> tuple[None, ...]:
        for number, grad in zip(self._numbers, grads, strict=True):
            if grad is not None:
                self._take(number, grad.array)
        return (None,) * len(grads)
