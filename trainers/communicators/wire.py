"""The number formats in which gradients are sent: float32 (or float64), float16 and bfloat16.

A communicator packs numbers into the format, receives into a buffer of the format, and adds or stores what it received.
The conversions of 16 bits are compiled (`half.c`, built by kilobatch's installation), else NumPy's, or CuPy's on a GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

Lost = np.ndarray | None  # counts of numbers that overflowed, and that were flushed to zero
_PIECE = 32768  # numbers that are converted at a time


class Wire(Protocol):
    """A number format: how numbers are packed into it, added and unpacked.

    Arrays are NumPy's; those of `pack`, `store` and `scale` may be CuPy's too.
    """

    name: str  # as the cluster file spells it
    num_bytes: int  # of one number
    largest: float  # finite number; infinity where it is that of float32
    epsilon: float  # the largest relative error of one rounding

    def pack(self, values: np.ndarray, factor: float = 1.0, lost: Lost = None) -> np.ndarray:
        """values * factor as they are sent; may be `values` itself, which are overwritten where there is a factor.

        Args:
            lost: two numbers, to which those that `scale` would return are added.
        """

    def buffer_to_add(self, values: np.ndarray) -> np.ndarray:
        """A buffer of as many packed numbers, to receive what `add` adds; the next call returns the same memory."""

    def buffer_to_store(self, values: np.ndarray) -> np.ndarray:
        """A buffer of as many packed numbers, to receive what `store` puts into `values`; may be `values` itself."""

    def add(self, values: np.ndarray, received: np.ndarray, factor: float = 1.0, lost: Lost = None) -> None:
        """values <- values * factor + received, in the precision of `values`; `lost` as of `pack`.

        Raises:
            ValueError: `received` lies in the memory of `values`: it was not received into `buffer_to_add`.
        """

    def store(self, values: np.ndarray, received: np.ndarray, factor: float = 1.0) -> None:
        """values <- received * factor."""

    def scale(self, values: np.ndarray, factor: float) -> tuple[int, int]:
        """values *= factor; how many finite ones will be infinite once packed, how many nonzero ones zero."""


class FullWire:
    """The numbers themselves, float32 or float64: nothing is rounded."""

    name, largest, epsilon = "float32", float("inf"), 0.0

    def __init__(self, dtype: Any = np.float32) -> None:
        self.num_bytes = np.dtype(dtype).itemsize
        self._to_add = np.empty(0, dtype)

    def pack(self, values: np.ndarray, factor: float = 1.0, lost: Lost = None) -> np.ndarray:
        self.scale(values, factor)
        return values

    def buffer_to_add(self, values: np.ndarray) -> np.ndarray:
        self._to_add = _at_least(len(values), self._to_add, values.dtype)
        return self._to_add[: len(values)]

    def buffer_to_store(self, values: np.ndarray) -> np.ndarray:
        return values

    def add(self, values: np.ndarray, received: np.ndarray, factor: float = 1.0, lost: Lost = None) -> None:
        if np.may_share_memory(values, received):
            raise ValueError("received numbers have overwritten those that they are added to; use buffer_to_add")
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

    Compiled code does the work where there is some; else NumPy or CuPy, on a CPU piece by piece, to stay in the cache.
    """

    name: str
    num_bytes = 2
    _infinite_from: float  # the least number that is rounded to infinity
    _zero_up_to: float  # the largest that is rounded to zero

    def __init__(self) -> None:
        self._to_add = self._to_store = np.empty(0, np.uint16)
        self._piece = np.empty(_PIECE, np.float32)

    def pack(self, values: np.ndarray, factor: float = 1.0, lost: Lost = None) -> np.ndarray:
        packed = array_module(values).empty(len(values), np.uint16)
        if not self._compiled("pack", values, packed, factor, lost):
            self._scale(values, factor, lost)
            for piece in _pieces(values):
                self._pack(values[piece], packed[piece])
        return packed

    def buffer_to_add(self, values: np.ndarray) -> np.ndarray:
        self._to_add = _at_least(len(values), self._to_add, np.uint16)
        return self._to_add[: len(values)]

    def buffer_to_store(self, values: np.ndarray) -> np.ndarray:
        self._to_store = _at_least(len(values), self._to_store, np.uint16)
        return self._to_store[: len(values)]

    def add(self, values: np.ndarray, received: np.ndarray, factor: float = 1.0, lost: Lost = None) -> None:
        if self._compiled("add", values, received, factor, lost):
            return
        self._scale(values, factor, lost)
        for piece in _pieces(values):
            part = values[piece]
            unpacked = self._piece[: len(part)]
            self._unpack(received[piece], unpacked)
            part += unpacked

    def store(self, values: np.ndarray, received: np.ndarray, factor: float = 1.0) -> None:
        if self._compiled("store", values, received, factor, None):
            return
        for piece in _pieces(values):
            self._unpack(received[piece], values[piece])
        if factor != 1.0:
            values *= values.dtype.type(factor)

    def scale(self, values: np.ndarray, factor: float) -> tuple[int, int]:
        if _is_compiled_for(values):
            counts, limits = np.zeros(2, np.int64), (self._infinite_from, self._zero_up_to)
            COMPILED.scale(values.ctypes.data, len(values), factor, *limits, counts.ctypes.data)
            return int(counts[0]), int(counts[1])
        values *= values.dtype.type(factor)
        overflowed = flushed = 0
        count = array_module(values).count_nonzero
        for piece in _pieces(values):
            part = abs(values[piece])
            if not part.max() < self._infinite_from:  # or NaN
                overflowed += int(count(part >= self._infinite_from) - count(part == np.inf))
            flushed += int(count(part <= self._zero_up_to) - count(part == 0))
        return overflowed, flushed

    def _compiled(self, name: str, values: Any, packed: Any, factor: float, lost: Lost) -> bool:
        """Run the compiled conversion of this name; returns whether there is one for these arrays."""
        if not _is_compiled_for(values) or not packed.flags.c_contiguous:
            return False
        assert packed.nbytes == 2 * len(values)
        limits = _COUNT_NOTHING if lost is None else (self._infinite_from, self._zero_up_to)
        counts = np.zeros(2, np.int64) if lost is None else lost
        run = getattr(COMPILED, f"scaled_{name}_{self.name}")
        run(values.ctypes.data, packed.ctypes.data, len(values), factor, *limits, counts.ctypes.data)
        return True

    def _scale(self, values: np.ndarray, factor: float, lost: Lost) -> None:
        """Scale before the conversion, where it is not compiled."""
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
        out = self._bits[: len(values)] if xp is np else xp.empty(len(values), np.uint32)
        bits = xp.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = xp.right_shift(bits, 16, out=out)
        rounded &= 1
        rounded += np.uint32(0x7FFF)
        rounded += bits
        rounded >>= 16
        xp.copyto(packed, rounded, casting="same_kind")
        nan = xp.isnan(values)
        if nan.any():  # the carry of the rounding would make infinities or zeros of NaN
            packed[nan] = 0x7FC0

    def _unpack(self, received: np.ndarray, values: np.ndarray) -> None:
        xp = array_module(values)
        if values.dtype == np.float32:
            xp.left_shift(received, 16, out=values.view(np.uint32), dtype=np.uint32)
        else:
            xp.copyto(values, (received.astype(np.uint32) << 16).view(np.float32))


WIRES = {wire.name: wire for wire in (FullWire, Float16Wire, BFloat16Wire)}


def array_module(values: Any) -> Any:
    """NumPy, or CuPy for an array in the memory of a GPU."""
    if isinstance(values, np.ndarray):
        return np
    import cupy

    return cupy


def largest_absolute(values: Any) -> float:
    """The largest absolute value, without a temporary array; NaN if there is one, 0 of an empty array."""
    if _is_compiled_for(values):
        return float(np.uint32(COMPILED.largest(values.ctypes.data, len(values))).view(np.float32))
    return float(array_module(values).maximum(values.max(), -values.min())) if len(values) else 0.0


def _at_least(length: int, buffer: np.ndarray, dtype: Any) -> np.ndarray:
    return buffer if len(buffer) >= length and buffer.dtype == dtype else np.empty(length, dtype)


def _pieces(values: np.ndarray) -> Iterator[slice]:
    if array_module(values) is not np:
        return iter([slice(None)] if len(values) else [])  # CuPy has no maximum of nothing
    return (slice(begin, begin + _PIECE) for begin in range(0, len(values), _PIECE))


_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_COUNT_NOTHING = (math.inf, 0.0)  # limits of `scaled_...` with which nothing is counted


def load(library: ctypes.CDLL | None) -> ctypes.CDLL | None:
    """The library, ready; None where it is of an older `half.c`, or this processor lacks F16C or AVX2."""
    conversions = [f"scaled_{name}_{wire}" for name in ("pack", "add", "store") for wire in ("float16", "bfloat16")]
    try:
        for name in conversions:
            function = getattr(library, name)
            function.argtypes = (_POINTER, _POINTER, _COUNT, _FLOAT, _FLOAT, _FLOAT, _POINTER)
            function.restype = None
        library.largest.argtypes, library.largest.restype = (_POINTER, _COUNT), ctypes.c_uint32
        library.scale.argtypes = (_POINTER, _COUNT, _FLOAT, _FLOAT, _FLOAT, _POINTER)
        library.scale.restype = None
    except AttributeError:  # it has no such function
        return None
    return library if library.serves() else None


def _built() -> ctypes.CDLL | None:
    spec = importlib.util.find_spec("trainers.communicators._half")
    return None if spec is None or spec.origin is None else ctypes.CDLL(spec.origin)


LIBRARY = _built()  # all that was compiled, None without a compiler
COMPILED = load(LIBRARY)


def _is_compiled_for(values: Any) -> bool:
    """Whether there is compiled code for this array: contiguous float32 on a CPU."""
    if COMPILED is None or not isinstance(values, np.ndarray):
        return False
    return values.dtype == np.float32 and values.flags.c_contiguous
