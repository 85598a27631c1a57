"""What a trial asks of every component of one's own: the same again for the same arguments, and fields left alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from recipes.errors import InputRefused, listed

_TIMES = 8  # a component that draws for half of its calls passes one in 128 times


def differing(call: Callable[[], Any], *, times: int = _TIMES) -> tuple[Any, Any] | None:
    """The first result of a call and one that is not equal up to rounding; None if it gives the same every time."""
    first = np.array(call())
    for _ in range(times - 1):
        again = np.array(call())
        if first.shape != again.shape or not np.allclose(first, again, equal_nan=True):
            return first, again
    return None


@contextmanager
def keeping_fields(what: str, component: Any) -> Iterator[None]:
    """Refuse a component that changes its fields within: they are keys of the recipe, which would be another one.

    Raises:
        InputRefused: names the fields.
    """
    before = _fields(component)
    yield
    after = _fields(component)
    if changed := [name for name, text in before.items() if after[name] != text]:
        raise InputRefused(
            f"{what} changes its own field {listed(changed)}, a key of the recipe, which would be another recipe then; "
            "work on a copy, and keep nothing between calls"
        )


def _fields(component: Any) -> dict[str, str]:
    return {field.name: repr(getattr(component, field.name)) for field in dataclasses.fields(component)}
