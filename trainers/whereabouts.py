"""Where this process is: the Python stack of its main thread, and whether it waits for other ranks there."""

from __future__ import annotations

import ast
import linecache
import sys
import textwrap
import threading
from dataclasses import dataclass
from functools import cache
from types import FrameType

EXCHANGE_THREAD = "exchange"  # the name of the thread that sends gradients while backward runs
_FRAMES = 8  # innermost ones that are reported
_COMMUNICATORS = "/trainers/communicators/"  # a thread with a frame in there waits for others


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where a process is.

    Args:
        waits: whether it waits for other ranks, in a call of MPI or in a communicator, and so is not at fault.
        stack: of its main thread, the innermost frame last.
    """

    waits: bool
    stack: tuple[str, ...]


def whereabouts() -> Whereabouts:
    """Where the main thread is. If it waits for the exchange thread, `waits` is that of the exchange thread."""
    frames = sys._current_frames()
    main = frames[threading.main_thread().ident]
    asked = main
    if main.f_code.co_filename == threading.__file__:
        named = (thread.ident for thread in threading.enumerate() if thread.name == EXCHANGE_THREAD)
        asked = next((frames[ident] for ident in named if ident in frames), main)  # a thread yet to start has no frame
    return Whereabouts(waits=_waits(asked), stack=tuple(map(_described, _outwards(main)[:_FRAMES][::-1])))


def _outwards(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _described(frame: FrameType) -> str:
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}: {line}"


def _waits(frame: FrameType) -> bool:
    inside = any(_COMMUNICATORS in outer.f_code.co_filename for outer in _outwards(frame))
    return inside or _called(frame) in _mpi_calls()


@cache
def _mpi_calls() -> frozenset[str]:
    from mpi4py import MPI

    return frozenset(name for kind in (MPI.Comm, MPI.Intracomm, MPI.Win, MPI.Request) for name in vars(kind))


def _called(frame: FrameType) -> str | None:
    """The method that a frame is calling, from the call's position in its source; None if it is not known.

    Functions written in C, as MPI's are, have no Python frame.
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
