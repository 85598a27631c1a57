"""Leases: which process works on a trial, so that the trials of a dead search are found."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LEASE = "lease"  # the user attribute of a trial that holds one
LEASE_SECONDS = 120.0
RENEW_SECONDS = 30.0


def own_lease(now: float | None = None) -> dict[str, Any]:
    """A lease of this process, as plain data: host, pid, start of the process, end of the lease, and a unique name."""
    now = time.time() if now is None else now
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began": _began(os.getpid()),
        "until": now + LEASE_SECONDS,
        "grant": uuid.uuid4().hex,
    }


def renewed(lease: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """The same lease, extended."""
    return {**lease, "until": (time.time() if now is None else now) + LEASE_SECONDS}


def released(lease: Mapping[str, Any]) -> dict[str, Any]:
    """The same lease, given back: anybody may take the trial at once."""
    return {**lease, "until": 0.0, "pid": None}


def is_stale(lease: Mapping[str, Any] | None, now: float | None = None) -> bool:
    """Whether nobody works on a trial any more.

    On this host that is seen at once: its process is gone, or another process has its number. On another host it is
    known when the lease has expired.

    Args:
        lease: of the trial; None where there is none.
        now: seconds since 1970; the clock's by default.
    """
    if lease is None or lease["pid"] is None:
        return True
    if is_here(lease):
        return lease["pid"] == os.getpid() or is_gone(lease)
    return (time.time() if now is None else now) > lease["until"]


def is_here(lease: Mapping[str, Any]) -> bool:
    """Whether a lease is held on this host."""
    return lease["host"] == socket.gethostname()


def is_gone(lease: Mapping[str, Any]) -> bool:
    """Whether the process of a lease is known to be dead; never known on another host."""
    return is_here(lease) and _began(lease["pid"]) != lease["began"]


def is_mine(lease: Mapping[str, Any]) -> bool:
    """Whether a lease is this process's."""
    return is_here(lease) and lease["pid"] == os.getpid() and not is_gone(lease)


def _began(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; together with its number they identify it."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]  # a zombie works on nothing
