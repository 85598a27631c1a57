"""Taps: the gradient of a parameter is taken where backward makes it, not when all of backward has ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import chainer
import numpy as np


class GradientTaps(chainer.LinkHook):
    """Within, a forward goes through taps: identities before the parameters that a link uses while it is called.

    In backward a tap hands over the gradient that comes back and lets nothing through to the parameter, whose `grad`
    stays None. It has the rank of the layer's input, so that Chainer's backward reaches it right after the layer's own
    backward; a plain identity would come last of all, as the gradients of parameters do without taps.

    Args:
        number_of: the number of a variable that a link has as a parameter; None for one that needs no tap.
        take: (number, gradient) for each use of it, as soon as backward has it.
    """

    name = "gradient taps"

    def __init__(
        self, number_of: Callable[[chainer.Variable], int | None], take: Callable[[int, np.ndarray], None]
    ) -> None:
        self._number_of, self._take = number_of, take
        self._held: list[tuple[chainer.Link, str, Any]] = []
        self.uses: list[int] = []  # numbers of the parameters used so far, one for each tap

    def forward_preprocess(self, args: Any) -> None:
        """Chainer calls this before a link's forward."""
        ranks = [argument.rank for argument in args.args if isinstance(argument, chainer.Variable)]
        for name in sorted(args.link._params):
            held = args.link.__dict__[name]
            number = self._number_of(held)
            if number is not None:
                self._held.append((args.link, name, held))
                self.uses.append(number)
                args.link.__dict__[name] = _tapped(held, max(ranks, default=0), partial(self._take, number))

    def forward_postprocess(self, args: Any) -> None:
        """Chainer calls this after it: the link has its parameters back."""
        while self._held and self._held[-1][0] is args.link:
            self._restore()

    def deleted(self, link: chainer.Link | None) -> None:
        """Chainer calls this at the end, also that of a forward that raised."""
        while self._held:
            self._restore()

    def _restore(self) -> None:
        link, name, held = self._held.pop()
        link.__dict__[name] = held


class _Tap(chainer.FunctionNode):
    """Identity forward; backward hands the gradient over and ends there."""

    def __init__(self, take: Callable[[np.ndarray], None]) -> None:
        super().__init__()
        self._take_gradient = take

    def forward(self, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return inputs

    def backward(self, indexes: tuple[int, ...], grads: tuple[chainer.Variable, ...]) -> tuple[None]:
        self._take_gradient(grads[0].array)
        return (None,)


def _tapped(variable: chainer.Variable, rank: int, take: Callable[[np.ndarray], None]) -> chainer.Variable:
    tap = _Tap(take)
    (out,) = tap.apply((variable,))
    tap.rank = max(rank, tap.rank)
    out.node._rank = tap.rank + 1
    return out
