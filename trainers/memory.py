"""Memory of a worker: the most it has held, what it keeps for later, and what it gives back after it ran out."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

_SAYINGS = (  # of CUDA and cuBLAS through CuPy, whose pool raises MemoryError, and of PyTorch's operators
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)
_OWN = Path("/proc/self")
_RESET_PEAK = "5"  # Linux: of the resident set
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt
_pools: list[Any] = []  # of CuPy's memory, beside its default one


def ran_out(error: BaseException) -> bool:
    """Whether an exception says that memory could not be had.

    >>> ran_out(MemoryError()), ran_out(RuntimeError("shapes differ"))
    (True, False)
    """
    said_so = isinstance(error, RuntimeError) and any(saying in str(error) for saying in _SAYINGS)
    return isinstance(error, MemoryError) or said_so


def keep_what_is_freed() -> None:
    """From now on the C library keeps the memory of freed arrays for the next ones, also that of large arrays.

    As it is, each array above 32 MiB, and each where the heap ends, comes as new pages, which cost a fault and zeros
    to write: in every update the same. What is kept counts as resident; `give_back` ends that. Only glibc has it.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)  # none


def give_back() -> None:
    """Nothing freed is kept any longer."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> None:
    """The peak begins anew: a process may do several runs."""
    give_back()
    with suppress(OSError):  # not Linux, or not allowed: the peak is that of the process
        (_OWN / "clear_refs").write_text(_RESET_PEAK)


def count_also(pool: Any) -> None:
    """What this pool of CuPy's takes belongs to the process's memory, too."""
    _pools.append(pool)


def peak_memory(device: Any) -> dict[str, int]:
    """Bytes that this process has held at most, by kind: its resident set, on a GPU what CuPy's pools have taken there.

    Memory that ranks share counts in the resident set of each of them that has touched it.

    Args:
        device: Chainer's, of this worker.
    """
    found = {"resident_bytes": _peak_resident_bytes()}
    if device.name != "@numpy":
        pools = (device.xp.get_default_memory_pool(), *_pools)  # which only grow, but for CUDA graphs
        found["gpu_pool_bytes"] = sum(int(pool.total_bytes()) for pool in pools)
    return found


def installed_bytes() -> int | None:
    """Memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def release(device: Any) -> None:
    """Give back what nobody holds any longer."""
    gc.collect()
    give_back()
    if device.name != "@numpy":
        device.xp.get_default_memory_pool().free_all_blocks()


def _peak_resident_bytes() -> int:
    with suppress(OSError):
        for line in (_OWN / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return 1024 * int(value.split()[0])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
