"""Compiled passes over numbers of 16 bits: `half.c`, built when kilobatch is installed where there is a C compiler."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

import numpy as np

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_PASSES = [f"{way}_{name}" for way in ("pack", "add", "store") for name in ("float16", "bfloat16")]


def _load() -> ctypes.CDLL | None:
    """The library; None where it was not built or this processor lacks its instructions (F16C and AVX2)."""
    found = importlib.util.find_spec("trainers.communicators._half")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    if not library.serves():
        return None
    for name in _PASSES:
        getattr(library, name).argtypes, getattr(library, name).restype = (_POINTER, _POINTER, _COUNT), None
    return library


COMPILED = _load()


def passed(name: str, values: Any, packed: Any) -> bool:
    """Whether the pass of this name went over values, float32 in one piece on a CPU, and as many numbers of 16 bits."""
    if COMPILED is None or not isinstance(values, np.ndarray) or values.dtype != np.float32:
        return False
    if not values.flags.c_contiguous or not packed.flags.c_contiguous:
        return False
    assert packed.nbytes == 2 * len(values)
    getattr(COMPILED, name)(values.ctypes.data, packed.ctypes.data, len(values))
    return True
