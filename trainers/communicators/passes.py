"""Compiled passes that convert numbers to 16 bits and back: `half.c`, built by kilobatch's installation."""

from __future__ import annotations

import ctypes
import importlib.util
import math
from typing import Any

import numpy as np

_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_PASSES = [f"scaled_{way}_{name}" for way in ("pack", "add", "store") for name in ("float16", "bfloat16")]
_SIGNATURE = (_POINTER, _POINTER, _COUNT, _FLOAT, _FLOAT, _FLOAT, _POINTER)
_NOTHING = (math.inf, 0.0)  # limits with which nothing is counted


def load(library: ctypes.CDLL | None) -> ctypes.CDLL | None:
    """The library, ready; None where it is of an older `half.c`, or this processor lacks F16C or AVX2."""
    try:
        for name in _PASSES:
            getattr(library, name).argtypes, getattr(library, name).restype = _SIGNATURE, None
        library.largest.argtypes, library.largest.restype = (_POINTER, _COUNT), ctypes.c_uint32
        library.scale.argtypes = (_POINTER, _COUNT, _FLOAT, _FLOAT, _FLOAT, _POINTER)
        library.scale.restype = None
    except AttributeError:  # it has no such pass
        return None
    return library if library.serves() else None


def _built() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("trainers.communicators._half")
    return None if found is None or found.origin is None else ctypes.CDLL(found.origin)


LIBRARY = _built()  # all that was compiled, None without a compiler
COMPILED = load(LIBRARY)


def largest(values: Any) -> float | None:
    """The largest absolute value, NaN where there is one, 0 of none; None where no pass serves."""
    if not _serves(values):
        return None
    bits = COMPILED.largest(values.ctypes.data, len(values))
    return float(np.uint32(bits).view(np.float32))


def scaled(values: Any, factor: float, infinite_from: float, zero_up_to: float) -> tuple[int, int] | None:
    """Multiply values; count finite ones from `infinite_from` on and nonzero ones up to `zero_up_to`, by magnitude.

    None where no pass serves: nothing has been done.
    """
    if not _serves(values):
        return None
    counts = np.zeros(2, np.int64)
    COMPILED.scale(values.ctypes.data, len(values), factor, infinite_from, zero_up_to, counts.ctypes.data)
    return int(counts[0]), int(counts[1])


def passed(
    name: str,
    values: Any,
    packed: Any,
    *,
    factor: float = 1.0,
    limits: tuple[float, float] = _NOTHING,
    counts: np.ndarray | None = None,
) -> bool:
    """Run the pass of this name over `values` and as many 16-bit numbers; returns whether there is one for them.

    Args:
        name: of a function of `half.c`, without "scaled".
        factor: of the values, or of what is stored in them.
        limits: as of `scaled`.
        counts: two int64, to which the counts of `scaled` are added.
    """
    if not _serves(values) or not packed.flags.c_contiguous:
        return False
    assert packed.nbytes == 2 * len(values)
    counts = np.zeros(2, np.int64) if counts is None else counts
    run = getattr(COMPILED, f"scaled_{name}")
    run(values.ctypes.data, packed.ctypes.data, len(values), factor, *limits, counts.ctypes.data)
    return True


def _serves(values: Any) -> bool:
    """Whether there are passes for this array: contiguous float32 on a CPU."""
    if COMPILED is None or not isinstance(values, np.ndarray):
        return False
    return values.dtype == np.float32 and values.flags.c_contiguous
