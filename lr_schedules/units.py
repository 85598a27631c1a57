"""The type of a position in epochs, the type of a schedule, and checks that all schedules share.

In the checks `name` is class and field, for the message.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from typing import Annotated

__all__ = ["Epochs", "Schedule", "as_written", "require_increasing", "require_number"]

# Marks a field as a position or a duration in epochs: a recipe may write it as 30ep, 500up, 1.5Msp or 0.5run,
# and the loader turns those words into a float before it builds the dataclass.
Epochs = Annotated[float, "epochs"]

# Every schedule and warmup is such a function: epochs seen -> factor, pure.
Schedule = Callable[[float], float]


@functools.lru_cache
def as_written(value: float) -> Fraction:
    """The simple fraction that was rounded to this float, if there is one; else the float's exact value.

    >>> as_written(0.1), as_written(2 / 3)
    (Fraction(1, 10), Fraction(2, 3))
    """
    simple = Fraction(value).limit_denominator(10**8)
    was_it = abs(float(simple) - value) < 1e-12 * value  # false for 1e-9, whose `simple` is 0
    return simple if was_it else Fraction(value)


def require_number(
    name: str, value: object, *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
) -> None:
    """Refuse what is not a finite real number above `above`, at least `at_least` and at most `at_most`.

    Raises:
        ValueError: `value` is not a finite number (a bool is none), or lies outside the range.

    >>> require_number("Cosine.epochs", -1, above=0)
    Traceback (most recent call last):
    ValueError: Cosine.epochs must be > 0, got -1
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if above is not None and not value > above:
        raise ValueError(f"{name} must be > {above}, got {value!r}")
    if at_least is not None and not value >= at_least:
        raise ValueError(f"{name} must be >= {at_least}, got {value!r}")
    if at_most is not None and not value <= at_most:
        raise ValueError(f"{name} must be <= {at_most}, got {value!r}")


def require_increasing(name: str, positions: object) -> None:
    """Refuse what is not a tuple of finite positions in epochs, each greater than the one before, none negative.

    Raises:
        ValueError: not a tuple (a list would make the schedule unhashable), empty, not finite, negative, equal or going
            backwards.

    >>> require_increasing("MultiStep.boundaries", (30, 80, 60))
    Traceback (most recent call last):
    ValueError: MultiStep.boundaries must increase, got 60 after 80
    """
    if not isinstance(positions, tuple) or not positions:
        raise ValueError(f"{name} must be a tuple of at least one position, got {positions!r}")
    for position in positions:
        require_number(name, position, at_least=0)
    for before, after in pairwise(positions):
        if after <= before:
            raise ValueError(f"{name} must increase, got {after!r} after {before!r}")
