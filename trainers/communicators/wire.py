"""The library of an array: NumPy's and CuPy's formulas are the same, their memory is not.

Compiled passes that convert numbers to 16 bits and back: `half.c`, built by kilobatch's installation.

Wire formats: float32 (or float64), float16 and bfloat16.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np


def array_module(values: Any) -> Any:
    """NumPy, or CuPy for an array in the memory of a GPU."""
    if isinstance(values, np.ndarray):
        return np
    import cupy

    return cupy


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


_PIECE = 32768  # numbers that are converted at a time


class Wire(Protocol):
    """A number format on the wire: how numbers are packed into it, added and unpacked.

    Arrays are NumPy's; those of `pack`, `store` and `scale` may be CuPy's too.

    Args:
        name: as the cluster file spells it.
        num_bytes: of one number.
        largest: the largest finite number, or infinity where it is that of float32.
        epsilon: the largest relative error of one rounding.
    """

    name: str
    num_bytes: int
    largest: float
    epsilon: float

    def pack(self, values: np.ndarray, factor: float = 1.0, lost: np.ndarray | None = None) -> np.ndarray:
        """values * factor as they are sent; may be `values` itself, which are overwritten where there is a factor.

        Args:
            lost: two numbers, to which those that `scale` would return are added.
        """

    def room(self, values: np.ndarray) -> np.ndarray:
        """A buffer to receive what replaces `values`; may be `values` itself."""

    def scratch(self, values: np.ndarray) -> np.ndarray:
        """A buffer to receive as many numbers as `values` apart from them; the next call returns the same memory."""

    def add(
        self, values: np.ndarray, received: np.ndarray, factor: float = 1.0, lost: np.ndarray | None = None
    ) -> None:
        """values <- values * factor + received, in the precision of `values`; `lost` as of `pack`."""

    def store(self, values: np.ndarray, received: np.ndarray, factor: float = 1.0) -> None:
        """values <- received * factor; with a factor the two must not share memory."""

    def scale(self, values: np.ndarray, factor: float) -> tuple[int, int]:
        """values *= factor; how many finite ones will be infinite once packed, how many nonzero ones zero."""


class FullWire:
    """The numbers themselves, float32 or float64: nothing is rounded."""

    name, largest, epsilon = "float32", float("inf"), 0.0

    def __init__(self, dtype: Any = np.float32) -> None:
        self.num_bytes = np.dtype(dtype).itemsize
        self._scratch = np.empty(0, dtype)

    def pack(self, values: np.ndarray, factor: float = 1.0, lost: np.ndarray | None = None) -> np.ndarray:
        self.scale(values, factor)
        return values

    def room(self, values: np.ndarray) -> np.ndarray:
        return values

    def scratch(self, values: np.ndarray) -> np.ndarray:
        if len(self._scratch) < len(values) or self._scratch.dtype != values.dtype:
            self._scratch = np.empty(len(values), values.dtype)
        return self._scratch[: len(values)]

    def add(
        self, values: np.ndarray, received: np.ndarray, factor: float = 1.0, lost: np.ndarray | None = None
    ) -> None:
        self.scale(values, factor)
        values += received

    def store(self, values: np.ndarray, received: np.ndarray, factor: float = 1.0) -> None:
        xp = array_module(values)
        if not xp.may_share_memory(values, received):
            xp.copyto(values, received)
        self.scale(values, factor)

    def scale(self, values: np.ndarray, factor: float) -> tuple[int, int]:
        if factor != 1.0:
            values *= values.dtype.type(factor)
        return 0, 0


class _HalfWire:
    """Sixteen bits a number, summed in float32 by the receiver.

    A compiled pass does the work where there is one; else NumPy or CuPy, on a CPU piece by piece, to stay in the cache.

    `_infinite_from` and `_zero_up_to`: the least number that is rounded to infinity, the largest rounded to zero.
    """

    num_bytes = 2
    _infinite_from: float
    _zero_up_to: float

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.uint16)
        self._piece = np.empty(_PIECE, np.float32)

    def pack(self, values: np.ndarray, factor: float = 1.0, lost: np.ndarray | None = None) -> np.ndarray:
        packed = array_module(values).empty(len(values), np.uint16)
        if not self._passed("pack", values, packed, factor, lost):
            self._scale(values, factor, lost)
            for place in _pieces(values):
                self._pack(values[place], packed[place])
        return packed

    def room(self, values: np.ndarray) -> np.ndarray:
        return self.scratch(values)

    def scratch(self, values: np.ndarray) -> np.ndarray:
        if len(self._scratch) < len(values):
            self._scratch = np.empty(len(values), np.uint16)
        return self._scratch[: len(values)]

    def add(
        self, values: np.ndarray, received: np.ndarray, factor: float = 1.0, lost: np.ndarray | None = None
    ) -> None:
        if self._passed("add", values, received, factor, lost):
            return
        self._scale(values, factor, lost)
        for place in _pieces(values):
            part = values[place]
            unpacked = self._piece[: len(part)]
            self._unpack(received[place], unpacked)
            part += unpacked

    def store(self, values: np.ndarray, received: np.ndarray, factor: float = 1.0) -> None:
        if self._passed("store", values, received, factor, None):
            return
        for place in _pieces(values):
            self._unpack(received[place], values[place])
        if factor != 1.0:
            values *= values.dtype.type(factor)

    def scale(self, values: np.ndarray, factor: float) -> tuple[int, int]:
        counted = scaled(values, factor, self._infinite_from, self._zero_up_to)
        if counted is not None:
            return counted
        values *= values.dtype.type(factor)
        overflowed = flushed = 0
        count = array_module(values).count_nonzero
        for place in _pieces(values):
            part = abs(values[place])
            if not part.max() < self._infinite_from:  # or NaN
                overflowed += int(count(part >= self._infinite_from) - count(part == np.inf))
            flushed += int(count(part <= self._zero_up_to) - count(part == 0))
        return overflowed, flushed

    def _passed(self, way: str, values: Any, packed: Any, factor: float, lost: np.ndarray | None) -> bool:
        """Run the compiled pass; returns whether there is one."""
        counting = {} if lost is None else {"limits": (self._infinite_from, self._zero_up_to), "counts": lost}
        return passed(f"{way}_{self.name}", values, packed, factor=factor, **counting)

    def _scale(self, values: np.ndarray, factor: float, lost: np.ndarray | None) -> None:
        """Scale in a pass of its own, where there is no compiled one."""
        if lost is not None:
            lost += self.scale(values, factor)
        elif factor != 1.0:
            values *= values.dtype.type(factor)

    def _pack(self, values: np.ndarray, packed: np.ndarray) -> None:
        raise NotImplementedError

    def _unpack(self, received: np.ndarray, values: np.ndarray) -> None:
        raise NotImplementedError


class Float16Wire(_HalfWire):
    """IEEE half precision: 11 significant bits, largest 65,504, below 6e-8 nothing."""

    name, largest, epsilon = "float16", 65504.0, 2.0**-11
    _infinite_from, _zero_up_to = 65520.0, 2.0**-25

    def _pack(self, values: np.ndarray, packed: np.ndarray) -> None:
        with np.errstate(over="ignore"):  # `scale` counts overflows
            array_module(values).copyto(packed.view(np.float16), values, casting="same_kind")

    def _unpack(self, received: np.ndarray, values: np.ndarray) -> None:
        array_module(values).copyto(values, received.view(np.float16))


class BFloat16Wire(_HalfWire):
    """bfloat16: 8 significant bits and the range of float32, rounded to nearest, ties to even."""

    name, largest, epsilon = "bfloat16", float("inf"), 2.0**-8
    _infinite_from, _zero_up_to = 2.0**128 - 2.0**119, 2.0**-134

    def __init__(self) -> None:
        super().__init__()
        self._bits = np.empty(_PIECE, np.uint32)

    def _pack(self, values: np.ndarray, packed: np.ndarray) -> None:
        xp = array_module(values)
        room = self._bits[: len(values)] if xp is np else xp.empty(len(values), np.uint32)
        bits = xp.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = xp.right_shift(bits, 16, out=room)
        rounded &= 1
        rounded += np.uint32(0x7FFF)
        rounded += bits
        rounded >>= 16
        xp.copyto(packed, rounded, casting="same_kind")
        lost = xp.isnan(values)
        if lost.any():  # the carry of the rounding would make infinities or zeros of NaN
            packed[lost] = 0x7FC0

    def _unpack(self, received: np.ndarray, values: np.ndarray) -> None:
        xp = array_module(values)
        if values.dtype == np.float32:
            xp.left_shift(received, 16, out=values.view(np.uint32), dtype=np.uint32)
        else:
            xp.copyto(values, (received.astype(np.uint32) << 16).view(np.float32))


def _pieces(values: np.ndarray) -> Iterator[slice]:
    if array_module(values) is not np:
        return iter([slice(None)] if len(values) else [])  # CuPy has no maximum of nothing
    return (slice(begin, begin + _PIECE) for begin in range(0, len(values), _PIECE))


WIRES = {wire.name: wire for wire in (FullWire, Float16Wire, BFloat16Wire)}
