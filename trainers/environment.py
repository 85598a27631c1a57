"""What a run ran on, for `environment.json`."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("kilobatch", "chainer", "chainercv", "numpy", "mpi4py", "mpich", "cupy-cuda13x", "pillow", "safetensors")


def environment(*, ranks: list[dict[str, Any]], threads: int, fingerprint: str) -> dict[str, Any]:
    """Versions, machine, ranks and data of a run, as plain data.

    Args:
        ranks: rank and host of each.
        threads: BLAS and OpenMP threads of a rank.
        fingerprint: of the data.
    """
    from mpi4py import MPI

    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "mpi": MPI.Get_library_version().split("\n")[0].strip("\0 "),
        "threads_per_rank": threads,
        "ranks": ranks,
        "git": _git(),
        "data_fingerprint": fingerprint,
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git() -> str | None:
    """Commit of the working directory, with `+` where files differ from it; None outside a checkout."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
        status = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+" if status.stdout.strip() else "")
