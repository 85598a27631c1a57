"""Our CUDA kernels: compiled at their first launch, for each type of values and each vector width."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 256  # of a block
_FILES = ("prelude.cu", "normalization.cu", "pooling.cu", "elementwise.cu", "loss.cu", "tensors.cu")
_FILES += ("../step_formulas.h", "steps.cu", "images.cu", "averages.cu")
_TYPES = {  # in memory, in registers; E is ml_dtypes.bfloat16, which CuPy knows
    "e": ("float16", "float"),
    "E": ("bfloat16", "float"),
    "f": ("float", "float"),
    "d": ("double", "double"),
}
ACCESS_BYTES = 16  # of a thread at once, at a multiple of as many


@dataclass(frozen=True)
class ByValue:
    """Integers that a kernel gets by value, not by address, so that a CUDA graph keeps those of its capture.

    Args:
        numbers: int64, on the host.
    """

    numbers: np.ndarray


class Launcher:
    """Where kernels run: CuPy's current device and stream.

    Attributes:
        rehearses: whether work is being captured as a CUDA graph, or runs eagerly just as it will be captured.
    """

    rehearses = False

    @functools.cached_property
    def xp(self) -> Any:
        """The module of its arrays."""
        import cupy

        return cupy

    def launch(self, name: str, kind: str, width: int, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        """Launch a kernel; integer arguments are 64 bits, None is a null pointer."""
        given = [convert(each) if (convert := _BY_VALUE.get(type(each))) else each for each in arguments]
        _kernel(name, kind, width)(grid, (THREADS,), tuple(given))


device = Launcher()  # tests replace it by one that runs kernels on the CPU


def source() -> str:
    """The source of all kernels, as one text."""
    return "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in _FILES)


def definitions(kind: str, width: int) -> tuple[str, ...]:
    """The compiler's options for values of NumPy's type character `kind`, `width` of them in one access."""
    memory, registers = _TYPES[kind]
    return f"-DMEMORY={memory}", f"-DREGISTERS={registers}", f"-DWIDTH={width}"


def address(array: Any) -> int:
    """Where an array begins in memory."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def aligned(array: Any) -> Any:
    """The array, or a copy in the same order in memory where it does not begin at a multiple of 16 bytes."""
    return array.copy(order="K") if address(array) % ACCESS_BYTES else array


def width_of(itemsize: int, values: int) -> int:
    """How many values of so many bytes a thread accesses at once, where `values` of them are contiguous.

    The caller knows that the access is aligned: that the array begins at a multiple of 16 bytes where this is not 1.
    """
    width = ACCESS_BYTES // itemsize
    return width if values % width == 0 else 1


def vector_type(x: Any) -> str:
    """Type of vectors that apply to all rows of x: float32 for 16 bits."""
    return "d" if x.dtype.char == "d" else "f"


_BY_VALUE: dict[type, Callable[[Any], Any]] = {  # arguments in a form that fixes their size, which CuPy would choose
    int: np.int64,
    float: np.float64,
    type(None): lambda _: np.int64(0),
    ByValue: lambda given: given.numbers.view(f"V{given.numbers.nbytes}"),  # one value of that size
}


@functools.cache
def _module(kind: str, width: int) -> Any:
    return device.xp.RawModule(code=source(), options=("--std=c++17", *definitions(kind, width)))


@functools.cache
def _kernel(name: str, kind: str, width: int) -> Any:
    return _module(kind, width).get_function(name)
