"""How many cores this process may use: those it may run on, within the CPU quota of its control groups; threads."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def threads_from(text: str) -> int | None:
    """The number of threads that a variable such as OMP_NUM_THREADS gives; None where it gives none, or less than one.

    Of OpenMP's list, a number for each level of nested regions, it is the first.

    >>> threads_from("4,2"), threads_from(" 01"), threads_from("0"), threads_from("many")
    (4, 1, None, None)
    """
    first = text.partition(",")[0].strip()
    return int(first) or None if re.fullmatch("[0-9]{1,9}", first) else None


def usable_cores(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Cores that this process may run on, at most as many as its quota is worth, rounded up."""
    return within_quotas(os.sched_getaffinity(0), [core_quota(groups, own)])


def within_quotas(cores: Iterable[int], quotas: Iterable[float | None]) -> int:
    """The number of cores, at most as many as the smallest quota is worth, rounded up; no quota is None.

    >>> within_quotas({0, 1, 2, 3}, [1.5, None]), within_quotas({0, 1}, [8.0])
    (2, 2)
    """
    limits = [max(1, math.ceil(quota)) for quota in quotas if quota is not None]
    return min([len({*cores}), *limits])


def core_quota(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> float | None:
    """Cores' worth of time that the control groups of this process allow it, such as 1.5; None without a limit.

    A group's limit holds for those below it too. In a container its own group may be mounted as the root, while the
    path is that on the host: folders that are not there limit nothing.

    Args:
        groups: where control groups are mounted, version 2 or, with a folder a controller, 1.
        own: file with the groups of this process, see cgroups(7).
    """
    try:
        lines = own.read_text(errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = groups / controllers
        folder = top / path.lstrip("/")
        quotas += [_quota_of(each) for each in (folder, *folder.parents) if each.is_relative_to(top)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(folder: Path) -> float | None:
    with suppress(OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
        if (file := folder / "cpu.max").is_file():
            quota, period = file.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    return None
