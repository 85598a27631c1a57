"""Numbers as they cross between workers: 32, 16 or 16 bits with float32's range."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Wire(Protocol):
    """A format, and what happened to the numbers that were rounded to it.

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

    def pack(self, values: np.ndarray) -> np.ndarray:
        """The values as they are sent; may be the array itself."""

    def room(self, values: np.ndarray) -> np.ndarray:
        """Where what replaces `values` may be received; may be the array itself."""

    def scratch(self, values: np.ndarray) -> np.ndarray:
        """Where something as long as `values` may be received without touching them; used again by the next call."""

    def add(self, values: np.ndarray, received: np.ndarray) -> None:
        """values += received, in the precision of `values`."""

    def store(self, values: np.ndarray, received: np.ndarray) -> None:
        """values <- received."""

    def losses(self, values: np.ndarray) -> tuple[int, int]:
        """How many of these numbers become infinite once packed, and how many become zero, without having been so."""


class FullWire:
    """The numbers themselves, float32 or float64: nothing is rounded."""

    name, largest, epsilon = "float32", float("inf"), 0.0

    def __init__(self, dtype: Any = np.float32) -> None:
        self.num_bytes = np.dtype(dtype).itemsize
        self._scratch = np.empty(0, dtype)

    def pack(self, values: np.ndarray) -> np.ndarray:
        return values

    def room(self, values: np.ndarray) -> np.ndarray:
        return values

    def scratch(self, values: np.ndarray) -> np.ndarray:
        if len(self._scratch) < len(values) or self._scratch.dtype != values.dtype:
            self._scratch = np.empty(len(values), values.dtype)
        return self._scratch[: len(values)]

    def add(self, values: np.ndarray, received: np.ndarray) -> None:
        values += received

    def store(self, values: np.ndarray, received: np.ndarray) -> None:
        if received is not values:
            np.copyto(values, received)

    def losses(self, values: np.ndarray) -> tuple[int, int]:
        return 0, 0


class _HalfWire:
    """Sixteen bits a number, summed in float32 by whoever receives them."""

    num_bytes = 2

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.uint16)

    def room(self, values: np.ndarray) -> np.ndarray:
        return self.scratch(values)

    def scratch(self, values: np.ndarray) -> np.ndarray:
        if len(self._scratch) < len(values):
            self._scratch = np.empty(len(values), np.uint16)
        return self._scratch[: len(values)]

    def add(self, values: np.ndarray, received: np.ndarray) -> None:
        values += self._unpacked(received)

    def store(self, values: np.ndarray, received: np.ndarray) -> None:
        np.copyto(values, self._unpacked(received))

    def losses(self, values: np.ndarray) -> tuple[int, int]:
        packed = self._unpacked(self.pack(values))
        overflowed = np.isinf(packed) & np.isfinite(values)
        return int(overflowed.sum()), int(((packed == 0) & (values != 0)).sum())


class Float16Wire(_HalfWire):
    """IEEE half precision: 11 significant bits, largest 65,504, below 6e-8 nothing."""

    name, largest, epsilon = "float16", 65504.0, 2.0**-11

    def pack(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # counted by whoever asks; an infinity is found after the sum
            return values.astype(np.float16).view(np.uint16)

    @staticmethod
    def _unpacked(received: np.ndarray) -> np.ndarray:
        return received.view(np.float16).astype(np.float32)


class BFloat16Wire(_HalfWire):
    """bfloat16: 8 significant bits and the range of float32, rounded to nearest, ties to even."""

    name, largest, epsilon = "bfloat16", float("inf"), 2.0**-8

    def pack(self, values: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        packed = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
        lost = np.isnan(values)
        if lost.any():  # the carry would make infinities or zeros of them
            packed[lost] = 0x7FC0
        return packed

    @staticmethod
    def _unpacked(received: np.ndarray) -> np.ndarray:
        return (received.astype(np.uint32) << 16).view(np.float32)


WIRES = {wire.name: wire for wire in (FullWire, Float16Wire, BFloat16Wire)}
