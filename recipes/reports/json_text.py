"""JSON that a stranger may have written, and numbers that JSON does not have."""

from __future__ import annotations

import json
import math
from typing import Any

_BEYOND = 2**63


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, or has a whole number of more than 64 bits, which arrays and floats cannot hold.
        RecursionError: it is nested too deeply.

    >>> parse_json("[1, 2.5]")
    [1, 2.5]
    >>> parse_json(str(10**30))
    Traceback (most recent call last):
        ...
    ValueError: the whole number 10000000000000000000... has more than 64 bits
    """
    return _DECODER.decode(text if isinstance(text, str) else text.decode(errors="surrogatepass"))


def finite(tree: Any) -> Any:
    """Plain data with null in place of numbers that JSON does not have: infinite ones and NaN.

    >>> finite({"loss": [0.5, float("inf")]})
    {'loss': [0.5, None]}
    """
    if isinstance(tree, dict):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def fits_64_bits(number: int) -> bool:
    """Whether a whole number is one of 64 bits with a sign."""
    return -_BEYOND <= number < _BEYOND


def _whole_number(digits: str) -> int:
    if len(digits) > 20 or not fits_64_bits(number := int(digits)):
        raise ValueError(f"the whole number {digits[:20]}... has more than 64 bits")
    return number


_DECODER = json.JSONDecoder(parse_int=_whole_number)
