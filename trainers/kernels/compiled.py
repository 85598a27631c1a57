"""The library compiled from this folder's `*.c` when kilobatch was installed, and the threads that it runs on."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_VERSION = 3  # of the library's interface: increase it here and in passes.h whenever arguments change


@dataclass(frozen=True)
class Threads:
    """A pool of threads that compiled code may run on.

    Args:
        count: how many there are now.
        parallel: address of a function like OpenMP's GOMP_parallel, (work, data, threads, flags), that calls work(data)
            on so many threads at once and waits for all; None where there is none.
        worth: size of an array, in values, from which on several threads are used.
    """

    count: Callable[[], int]
    parallel: int | None = None
    worth: int = 0

    @property
    def serve(self) -> bool:
        """Whether compiled code can run on all of them."""
        return self.parallel is not None or self.count() == 1

    def on(self, values: int) -> int:
        """How many threads should work on `values` values."""
        return self.count() if values >= self.worth else 1


def load(library: ctypes.CDLL | None, functions: Mapping[str, tuple[Any, ...]]) -> ctypes.CDLL | None:
    """The library, with argument types set; None where its version differs, or this processor lacks AVX2 or FMA.

    Args:
        functions: argument types of the functions that are called, which return nothing.
    """
    try:
        for name, arguments in functions.items():
            getattr(library, name).argtypes, getattr(library, name).restype = arguments, None
    except AttributeError:  # it has no such function
        return None
    return library if library.serves() == _VERSION else None


def _built() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("trainers.kernels._passes")
    try:
        return None if found is None or found.origin is None else ctypes.CDLL(found.origin)
    except OSError:  # damaged, or for another system
        return None


def address(library: ctypes.CDLL | None, name: str) -> int | None:
    """Address of a library's function, for another library to call; None where there is no such function."""
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


LIBRARY = _built()  # None without a compiler


def place(array: np.ndarray | None) -> int | None:
    """Address of an array's first value; None for None."""
    return None if array is None else array.__array_interface__["data"][0]
