"""Our CUDA kernels: compiled when they are first launched, for each type of values and each width of access."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 256  # of a block
_FILES = ("prelude", "normalization", "pooling", "elementwise", "loss", "tensors", "steps", "images", "averages")
_TYPES = {  # in memory, in registers; E is ml_dtypes.bfloat16, which CuPy knows
    "e": ("float16", "float"),
    "E": ("bfloat16", "float"),
    "f": ("float", "float"),
    "d": ("double", "double"),
}
_ACCESS_BYTES = 16


@dataclass(frozen=True)
class ByValue:
    """An argument of integers that the kernel has itself, not their address: a CUDA graph keeps those of its capture.

    Args:
        numbers: int64, on the host.
    """

    numbers: np.ndarray


class Gpu:
    """Where kernels run: CuPy's device and stream at the moment.

    Attributes:
        rehearses: what is asked of it now is captured as a CUDA graph, or is what will be.
    """

    rehearses = False

    @functools.cached_property
    def xp(self) -> Any:
        """The module of its arrays."""
        import cupy

        return cupy

    @property
    def captures(self) -> bool:
        """Whether what is asked of it now becomes part of a CUDA graph, and does not run."""
        return self.xp.cuda.get_current_stream().is_capturing()

    def launch(self, name: str, kind: str, width: int, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        """Run a kernel: integers are 64 bits, None is no array."""
        _kernel(name, kind, width)(grid, (THREADS,), tuple(map(_argument, arguments)))


device = Gpu()  # the tests have one that is a CPU


def source() -> str:
    """All kernels, as one text."""
    return "\n".join((Path(__file__).parent / f"cuda_{name}.cu").read_text(encoding="utf-8") for name in _FILES)


def definitions(kind: str, width: int) -> tuple[str, ...]:
    """What a compiler is told: values of NumPy's type character `kind`, `width` of them at once."""
    memory, registers = _TYPES[kind]
    return f"-DMEMORY={memory}", f"-DREGISTERS={registers}", f"-DWIDTH={width}"


def width_of(x: Any, values: int) -> int:
    """How many values of x's type a thread takes at once, where runs of `values` lie together."""
    width = _ACCESS_BYTES // x.itemsize
    return width if values % width == 0 else 1


def vector_type(x: Any) -> str:
    """Type of what is the same for all rows of x: float32 for 16 bits."""
    return "d" if x.dtype.char == "d" else "f"


def _argument(argument: Any) -> Any:
    """As CuPy must be given it, so that its size is not left to CuPy."""
    if argument is None or type(argument) is int:
        return np.int64(argument or 0)
    if type(argument) is ByValue:
        return argument.numbers.view(f"V{argument.numbers.nbytes}")  # one value, which is what CuPy hands over
    return np.float64(argument) if type(argument) is float else argument


@functools.cache
def _module(kind: str, width: int) -> Any:
    return device.xp.RawModule(code=source(), options=("--std=c++17", *definitions(kind, width)))


@functools.cache
def _kernel(name: str, kind: str, width: int) -> Any:
    return _module(kind, width).get_function(name)
