"""Threads that share large array operations, as many as BLAS has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

from trainers.kernels.cpu.compiled import LIBRARY, Threads, address
from trainers.runs.cores import threads_from, usable_cores

_VARIABLES = ("KILOBATCH_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


_single = False  # see `one_thread`


def num_threads() -> int:
    """The number of threads that the environment gives BLAS, else of the cores of this process."""
    return 1 if _single else _of_environment()


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it our kernels use one thread, and so no memory that depends on the machine."""
    global _single
    before, _single = _single, True
    try:
        yield
    finally:
        _single = before


@cache
def _of_environment() -> int:
    numbers = (threads_from(os.environ.get(name, "")) for name in _VARIABLES)
    return next(filter(None, numbers), usable_cores())


def shared(task: Callable[[int, int], None], count: int, *, worth: bool) -> None:
    """Call task(start, stop) on parts of range(count), on several threads at once where `worth`.

    Results must not depend on where the parts are cut, so that the number of threads changes no bit.
    """
    threads = min(num_threads(), count) if worth else 1
    if threads < 2:
        task(0, count)
        return
    cuts = [count * number // threads for number in range(threads + 1)]
    others = [_pool().submit(task, start, stop) for start, stop in zip(cuts[1:-1], cuts[2:], strict=True)]
    task(cuts[0], cuts[1])
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads() - 1, thread_name_prefix="kernels")


THREADS = Threads(num_threads, address(LIBRARY, "run_parallel"), worth=1 << 16)  # of compiled passes
