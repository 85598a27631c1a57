"""Texts about a class and its arguments, from its docstring."""

from __future__ import annotations

import inspect
import re
from functools import cache

__all__ = ["argument_texts", "first_line"]

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.*)")


@cache
def argument_texts(cls: type) -> dict[str, str]:
    """The texts of `Args:`, by argument, each as one line.

    >>> from lr_schedules import Exponential
    >>> argument_texts(Exponential)
    {'ratio': 'what is left of the factor after one epoch, in (0, 1].'}
    """
    texts: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in (inspect.getdoc(cls) or "").splitlines():
        if line == "Args:":
            inside = True
        elif inside and line and not line.startswith(" "):
            break
        elif inside and (entry := _ENTRY.fullmatch(line)):
            names = entry[1].split(", ")
            texts |= dict.fromkeys(names, entry[2])
        elif inside and line.strip():
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def first_line(cls: type) -> str:
    """The first line of the docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0]
