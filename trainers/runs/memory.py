"""Memory of a worker: its peak, what it caches, and what it frees after it ran out."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

_MESSAGES = (  # in RuntimeErrors of CUDA, cuBLAS, cuDNN and PyTorch's operators; CuPy's pool raises MemoryError
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",  # of the driver, which loads kernels
    "CUDA out of memory",  # PyTorch's pool, CuPy's too with the kernels `torch`
    "CUDA error: out of memory",  # PyTorch, beside its pool
    "_STATUS_ALLOC_FAILED",  # of cuBLAS and cuDNN
    "_ALLOCATION_FAILED",  # of cuDNN since 9: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, and of the host
    "DefaultCPUAllocator: can't allocate memory",
)
_ENDS = (  # of oneDNN's, in PyTorch's operators on CPUs; "could not create a primitive descriptor" is something else
    "could not create a primitive",
    "could not create a memory object",
)
_THRESHOLD = 700  # new objects, as in Python 3.11
_PROC = Path("/proc/self")
_RESET_PEAK = "5"  # resets the peak resident set size (VmHWM), see proc(5)
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt
_pools: list[Any] = []  # CuPy's memory pools beside the default one
_peak_pool_bytes = 0  # of all pools together, before blocks were freed


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory could not be allocated.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, RuntimeError):
        return str(error).endswith(_ENDS) or any(message in str(error) for message in _MESSAGES)
    return isinstance(error, MemoryError)


def keep_freed_memory() -> None:
    """From now on the C library keeps the memory of freed arrays for the next ones, also that of large arrays.

    By default glibc takes each array above 32 MiB, and each at the end of the heap, as new pages from the system, which
    cost page faults and zeroing in every update. What is kept counts as resident until `trim_heap`. Only for glibc.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)  # never trim


def trim_heap() -> None:
    """Return freed memory that the C library has kept to the system."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> None:
    """Reset the peak, and count no pool of earlier runs any more: a process may do several runs."""
    global _peak_pool_bytes
    _peak_pool_bytes = 0
    _pools.clear()
    trim_heap()
    with suppress(OSError):  # not Linux, or not allowed: the peak is that of the process
        (_PROC / "clear_refs").write_text(_RESET_PEAK)


def count_pool(pool: Any) -> None:
    """Count this CuPy pool in `peak_memory`, too, until the next `reset_peak`, and keep it until then."""
    _pools.append(pool)


def peak_memory(device: Any) -> dict[str, int]:
    """Peak memory of this process in bytes, by kind: its resident set, and on a GPU what CuPy's pools have allocated.

    Memory shared by ranks counts in the resident set of each rank that has touched it.
    """
    peak = {"resident_bytes": _peak_resident_bytes()}
    if device.name != "@numpy":
        peak["gpu_pool_bytes"] = max(_peak_pool_bytes, _pool_bytes(device.xp))
    return peak


def free_blocks(pool: Any, xp: Any) -> None:
    """Free the unused blocks of one of CuPy's pools: elsewhere they only grow, so all are measured before.

    Args:
        xp: the module cupy.
    """
    global _peak_pool_bytes
    _peak_pool_bytes = max(_peak_pool_bytes, _pool_bytes(xp))
    pool.free_all_blocks()


def _pool_bytes(xp: Any) -> int:
    """Bytes that all pools have taken of the GPU."""
    return sum(int(pool.total_bytes()) for pool in (xp.get_default_memory_pool(), *_pools))


def installed_bytes() -> int | None:
    """Memory of this machine; None where the system has no such figure."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def collect_new_garbage() -> None:
    """From now on collect garbage as Python does, which `kilobatch.main` puts off, and pass over what is there now.

    A pass over all modules takes 0.1 s, on one rank while all wait. `gc.unfreeze` ends that.
    """
    gc.set_threshold(_THRESHOLD)
    gc.freeze()


def release(device: Any) -> None:
    """Free what is no longer referenced, and the unused blocks of CuPy's default pool."""
    gc.collect()
    trim_heap()
    if device.name != "@numpy":
        free_blocks(device.xp.get_default_memory_pool(), device.xp)


def _peak_resident_bytes() -> int:
    with suppress(OSError):
        for line in (_PROC / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return 1024 * int(value.split()[0])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
