"""Plain data as one sequence of bytes, and its SHA-256: equal data have equal digests on every machine."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import rfc8785

_EXACT = 2**53 - 1  # the largest whole number that JSON carries everywhere


def canonical_json(tree: Any) -> bytes:
    """Canonical JSON by RFC 8785: keys in one order, numbers in one spelling (1.0 is 1), no space.

    Numbers that JSON does not have, and whole numbers above 2^53, are written as texts.

    >>> canonical_json({"b": 1.0, "a": [1e-4, True]})
    b'{"a":[0.0001,true],"b":1}'
    """
    return rfc8785.dumps(_in_json(tree))


def sha256_of(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_of(tree: Any) -> str:
    """SHA-256 of plain data, by their canonical JSON."""
    return sha256_of(canonical_json(tree))


def mapping_in(data: bytes) -> dict[str, Any]:
    """The object that JSON from a stranger holds.

    Raises:
        ValueError: it is no JSON, or no object.
    """
    try:
        tree = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(tree, dict):
        raise ValueError(f"a {type(tree).__name__} in place of an object")
    return tree


def _in_json(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(key): _in_json(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_in_json(item) for item in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return str(tree)
    if isinstance(tree, int) and not isinstance(tree, bool) and abs(tree) > _EXACT:
        return str(tree)
    return tree
