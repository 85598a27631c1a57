"""The squared norm of what a micro-batch adds to the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from trainers.gradients import read_together


class SquaredNorm:
    """Sum of squares, added up in float64.

    Args:
        squares: the terms so far.
    """

    def __init__(self, squares: Iterable[Any] = ()) -> None:
        self.squares = list(squares)

    def add(self, array: np.ndarray) -> None:
        """Add the squares of an array."""
        self.squares.append(np.square(array, dtype=np.float64).sum())

    @property
    def value(self) -> float:
        """The sum so far."""
        return math.fsum(map(float, read_together(self.squares)))


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
