"""Memory of a worker: the most it has held, and what it gives back after it ran out."""

from __future__ import annotations

import gc
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

_OWN = Path("/proc/self")
_RESET_PEAK = "5"  # Linux: of the resident set


def forget_peak() -> None:
    """The peak begins anew: a process may do several runs."""
    with suppress(OSError):  # not Linux, or not allowed: the peak is that of the process
        (_OWN / "clear_refs").write_text(_RESET_PEAK)


def peak_memory(device: Any) -> dict[str, int]:
    """Bytes that this process has held at most, by kind: its resident set, on a GPU what CuPy's pool has taken there.

    Memory that ranks share counts in the resident set of each of them that has touched it.

    Args:
        device: Chainer's, of this worker.
    """
    found = {"resident_bytes": _peak_resident_bytes()}
    if device.name != "@numpy":
        found["gpu_pool_bytes"] = int(device.xp.get_default_memory_pool().total_bytes())  # which only grows
    return found


def release(device: Any) -> None:
    """Give back what nobody holds any longer."""
    gc.collect()
    if device.name != "@numpy":
        device.xp.get_default_memory_pool().free_all_blocks()


def _peak_resident_bytes() -> int:
    with suppress(OSError):
        for line in (_OWN / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return 1024 * int(value.split()[0])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
