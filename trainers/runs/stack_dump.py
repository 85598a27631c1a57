"""The Python stack of this process's main thread, and whether that thread waits for other ranks.

A rank that waits for others is not at fault when a run hangs. Code that blocks until other ranks act marks this with
`waiting_for_ranks`. A direct call of mpi4py needs no mark.
"""

from __future__ import annotations

import ast
import linecache
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType

_FRAMES = 8  # innermost ones that are reported
_waits_for: dict[int, threading.Thread | None] = {}  # by thread: the thread that it waits for; None: other ranks


@dataclass(frozen=True, kw_only=True)
class StackDump:
    """What the main thread does."""

    waits: bool  # for other ranks
    stack: tuple[str, ...]  # its frames in words, the innermost one last


@contextmanager
def waiting_for_ranks(thread: threading.Thread | None = None) -> Iterator[None]:
    """Within, this thread blocks until other ranks act.

    Args:
        thread: it waits for this thread instead, and for other ranks while that one does.
    """
    own = threading.get_ident()
    before = _waits_for.get(own, own)
    _waits_for[own] = thread
    try:
        yield
    finally:
        if before == own:
            del _waits_for[own]
        else:
            _waits_for[own] = before


def dump_stack() -> StackDump:
    """The stack of the main thread now."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    return StackDump(waits=_waits(main, frames), stack=_described(frames[main]))


def _waits(thread: int, frames: dict[int, FrameType]) -> bool:
    if thread in _waits_for:
        other = _waits_for[thread]
        return other is None or _waits(other.ident, frames)
    return thread in frames and _called(frames[thread]) in _mpi_calls()


def _described(frame: FrameType | None) -> tuple[str, ...]:
    lines: list[str] = []
    while frame is not None and len(lines) < _FRAMES:
        code = frame.f_code
        text = linecache.getline(code.co_filename, frame.f_lineno).strip()
        lines.insert(0, f"{code.co_filename}:{frame.f_lineno} in {code.co_name}: {text}")
        frame = frame.f_back
    return tuple(lines)


@cache
def _mpi_calls() -> frozenset[str]:
    from mpi4py import MPI

    return frozenset(name for kind in (MPI.Comm, MPI.Intracomm, MPI.Win, MPI.Request) for name in vars(kind))


def _called(frame: FrameType) -> str | None:
    """Name of the method that a frame is calling, from the call's position in its source; None if it is not known.

    Methods written in C, such as those of mpi4py, have no Python frame of their own.
    """
    first, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return None
    lines[-1] = lines[-1][:end]  # columns count bytes
    lines[0] = lines[0][begin:]
    try:
        call = ast.parse(textwrap.dedent(b"".join(lines).decode()).strip(), mode="eval").body
    except SyntaxError:
        return None
    return call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
