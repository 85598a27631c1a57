"""Send on one socket and receive on another one at the same time: compiled (`sockets.c`), or in Python."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import time
from collections.abc import Callable

import numpy as np

from trainers.communicators.passes import LIBRARY

_POLL_SECONDS = 0.1
_WAITS, _OUT_FAILED = 1, 2
_CLOSED = "it closed the connection"


class Broken(Exception):
    """A connection that failed.

    Args:
        out: whether it is the one that sends.
        why: the error.
    """

    def __init__(self, why: object, *, out: bool) -> None:
        super().__init__(str(why))
        self.out = out


class _Passing(ctypes.Structure):
    """As in `sockets.c`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("out", "into", "window", "low", "error")),
        ("sent", ctypes.c_void_p),
        ("received", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_sent", "num_received", "num_first")),
        ("first", ctypes.c_double),
        ("last", ctypes.c_double),
    ]


def _loaded() -> Callable[..., int] | None:
    """None where nothing was compiled, or an older version."""
    try:
        run = LIBRARY.pass_on
    except AttributeError:
        return None
    run.argtypes, run.restype = (ctypes.POINTER(_Passing),), ctypes.c_int
    return run


COMPILED = _loaded()


def pass_on(
    out: socket.socket, into: socket.socket, sent: np.ndarray, received: np.ndarray, window: int
) -> tuple[int, float]:
    """Send all of `sent` on `out` while filling `received` from `into`, non-blocking sockets; sleeps meanwhile.

    The compiled version runs without the GIL.

    Args:
        window: bytes of `received` that are worth waking up for.
    Returns:
        bytes received after the first call of `recv` that gave some, and the seconds that they took.
    Raises:
        Broken: one of them has failed or was closed.
    """
    if COMPILED is None:
        return _pass_on(out, into, _bytes_of(sent), _bytes_of(received), window)
    state = _Passing(
        out=out.fileno(),
        into=into.fileno(),
        window=window,
        sent=sent.ctypes.data,
        received=received.ctypes.data,
        num_sent=sent.nbytes,
        num_received=received.nbytes,
    )
    while (ended := COMPILED(state)) == _WAITS:
        pass  # Python handles signals here
    if ended:
        raise Broken(os.strerror(state.error) if state.error else _CLOSED, out=ended == _OUT_FAILED)
    return received.nbytes - state.num_first, state.last - state.first


def _pass_on(
    out: socket.socket, into: socket.socket, sent: memoryview, room: memoryview, window: int
) -> tuple[int, float]:
    num_received, first, began, ended = len(room), 0, 0.0, 0.0
    while True:
        missing = len(room)
        sent, room = _sent(out, sent), _received(into, room)
        if len(room) < missing:
            ended = time.perf_counter()
            if not first:
                began, first = ended, num_received - len(room)
        if not sent and not room:
            return num_received - first, ended - began
        poll = select.poll()
        if sent:
            poll.register(out, select.POLLOUT)
        if room:
            into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(len(room), window))
            poll.register(into, select.POLLIN)
        poll.poll(1000 * _POLL_SECONDS)


def _sent(out: socket.socket, sent: memoryview) -> memoryview:
    """Send what the socket takes; returns the rest."""
    try:
        return sent[out.send(sent) :] if sent else sent
    except BlockingIOError:
        return sent
    except OSError as error:
        raise Broken(error, out=True) from error


def _received(into: socket.socket, room: memoryview) -> memoryview:
    """Receive what has arrived; returns the room that is left."""
    try:
        count = into.recv_into(room) if room else 0
    except BlockingIOError:
        return room
    except OSError as error:
        raise Broken(error, out=False) from error
    if room and not count:
        raise Broken(_CLOSED, out=False)
    return room[count:]


def _bytes_of(array: np.ndarray) -> memoryview:
    return memoryview(array.view(np.uint8))
