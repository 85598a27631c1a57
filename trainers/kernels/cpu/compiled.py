"""The library compiled from this folder's `*.c` when kilobatch was installed: its threads, and an optimizer's step."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from trainers.kernels.optimizer_steps import OptimizerStep, StepDecay

_VERSION = 5  # of the library's interface: increase it here and in passes.h whenever arguments change


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
    spec = importlib.util.find_spec("trainers.kernels.cpu._passes")
    try:
        return None if spec is None or spec.origin is None else ctypes.CDLL(spec.origin)
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


_CHUNK = 1 << 16  # values
_FORMS = ("momentum", "adam", "rmsprop")


class _Step(ctypes.Structure):
    """`struct step` of `steps.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("chunks", "firsts", "weights", "gradients", "one", "other")),
        *((name, ctypes.c_void_p) for name in ("lambdas", "numbers", "trust", "parts", "ratios", "finite")),
        *((name, ctypes.c_double) for name in ("coupled", "shrink")),
        *((name, ctypes.c_int64) for name in ("count", "tensors", "form", "threads")),
        ("parallel", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
    )


COMPILED = load(LIBRARY, dict.fromkeys(("optimizer_step", "find_finite"), (ctypes.POINTER(_Step),)))
STEPS = "" if COMPILED is None else "f"  # types of weights that there are steps for


class Steps:
    """Optimizer steps on given threads."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.types = STEPS if threads.serve else ""

    def optimizer_step(
        self,
        form: OptimizerStep,
        decay: StepDecay,
        weights: Sequence[np.ndarray],
        gradients: Sequence[np.ndarray],
        states: Sequence[Sequence[np.ndarray]],
    ) -> None:
        """See `trainers.kernels.cuda.tensors`; for weights of the types in `types`."""
        given = {
            "gradients": _addresses(gradients),
            **{name: _addresses(each) for name, each in zip(("one", "other"), states, strict=False)},
            "lambdas": np.array(decay.lambdas, "d"),
            "numbers": np.array(form.numbers, "d"),
            "trust": None if form.trust is None else np.array(form.trust.numbers, "d"),
            "ratios": np.empty(len(weights)),
        }
        numbers = {"coupled": decay.coupled, "shrink": decay.shrink, "form": _FORMS.index(form.kernels)}
        self._call("optimizer_step", weights, given, numbers)

    def finite(self, arrays: Sequence[np.ndarray]) -> list[bool]:
        """Whether each of these contiguous arrays holds only finite numbers."""
        if COMPILED is None or not self._threads.serve or any(array.dtype != np.float32 for array in arrays):
            return [bool(np.isfinite(array).all()) for array in arrays]
        chunks, firsts = _cut(tuple(array.size for array in arrays))
        flags = np.empty(len(chunks), np.uint8)
        self._call("find_finite", arrays, {"finite": flags}, {})
        return np.logical_and.reduceat(flags, firsts[:-1]).tolist()

    def _call(self, name: str, tensors: Sequence[np.ndarray], given: dict[str, Any], numbers: dict[str, float]) -> None:
        chunks, firsts = _cut(tuple(tensor.size for tensor in tensors))
        given |= {
            "chunks": chunks,
            "firsts": firsts,
            "weights": _addresses(tensors),
            "parts": np.empty((len(chunks), 2)),
        }
        step = _Step(
            **{key: place(array) for key, array in given.items()},
            **numbers,
            count=len(chunks),
            tensors=len(tensors),
            threads=self._threads.on(sum(tensor.size for tensor in tensors)),
            parallel=self._threads.parallel,
        )
        getattr(COMPILED, name)(step)


@lru_cache(maxsize=8)
def _cut(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(tensor, first value, end) of each chunk; first chunk of each tensor, and at the end the number of chunks."""
    chunks = [
        (number, start, min(start + _CHUNK, size))
        for number, size in enumerate(sizes)
        for start in range(0, size, _CHUNK)
    ]
    firsts = np.cumsum([0, *(-(-size // _CHUNK) for size in sizes)])
    return np.array(chunks, np.int64), firsts.astype(np.int64)


def _addresses(tensors: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([place(tensor) for tensor in tensors], np.uintp)
