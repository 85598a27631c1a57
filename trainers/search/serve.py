"""The ranks of a group: they train one run after another, as the supervisor orders, in one MPI job."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from trainers.device import place_here, sit_at
from trainers.faults import EXIT_STOPPED, RunFailed
from trainers.launch import parent_is_gone
from trainers.request import TrainRequest
from trainers.search.mail import ANSWERS, ORDERS, Inbox, post
from trainers.stopping import ask_to_stop
from trainers.world import join_world, train_together

_POLL_SECONDS = 0.01


def serve(
    mpi: Any, talk: Path, *, threads: int, gone: Callable[[], bool] = parent_is_gone, stop: Path | None = None
) -> None:
    """Train what the orders in a folder say, until one says that there are no more, or the supervisor has gone.

    All ranks of `mpi` call this together. A run that ends on all of them together, also with an error, is answered, and
    the next run may follow. An exception on one rank alone is raised and ends all ranks: the others may wait for it.

    Bytes on the wire, beside those of the runs: a barrier a run, and the order, about 300 and its texts, from the first
    rank to all.

    Args:
        mpi: communicator of the group's ranks.
        talk: folder of the orders and answers.
        threads: of BLAS and OpenMP, for the log.
        gone: whether the supervisor is known to have ended; asked on the first rank.
        stop: file that asks the whole search to stop, made when a signal reaches a rank; None: signals are only noted.
    """
    orders = _Orders(talk, gone) if mpi.rank == 0 else None
    with _signals_ask(stop):
        while (order := _next(mpi, orders)) is not None:
            orphaned = parent_is_gone if orders is None else orders.abandoned
            answer = _trained(TrainRequest.from_tree(order), mpi, threads, orphaned)
            gc.collect()  # a run's objects are in reference cycles
            if mpi.rank == 0:
                post(talk / ANSWERS, answer)


def serve_as_group(talk: Path, *, ranks: int, threads: int, before: int) -> None:
    """Be one of the ranks of a group that has an MPI job of its own; see `serve`.

    Args:
        ranks: of the group.
        before: ranks of earlier groups on the machine of its first rank, whose GPUs are theirs.
    """
    world = join_world(ranks)
    place, is_first = place_here(world)
    sit_at(place + (before if is_first else 0))
    serve(world, talk, threads=threads)


def met(mpi: Any) -> None:
    """A barrier of all ranks of `mpi` that sleeps: it leaves the core to others, for hours if need be.

    Bytes on the wire: those of MPI_Ibarrier, which carries no data.
    """
    request = mpi.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_SECONDS / 4)


class _Orders:
    """The orders of the supervisor, as the first rank reads them."""

    def __init__(self, talk: Path, gone: Callable[[], bool]) -> None:
        self._inbox, self._gone = Inbox(talk / ORDERS), gone
        self._waiting: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any] | None:
        """The next run; None where there will be none."""
        while True:
            self._waiting += self._inbox.new()
            if self._waiting:
                return self._waiting.pop(0)["train"]
            if self.abandoned():
                return None
            time.sleep(_POLL_SECONDS)

    def abandoned(self) -> bool:
        """Whether the supervisor has ended."""
        self._waiting += self._inbox.new()
        return self._gone() or self._inbox.silent


def _next(mpi: Any, orders: _Orders | None) -> dict[str, Any] | None:
    order = None if orders is None else orders.next()
    met(mpi)
    return mpi.bcast(order, root=0)


def _trained(request: TrainRequest, mpi: Any, threads: int, orphaned: Callable[[], bool]) -> dict[str, Any]:
    """How the run ended, as the fields of an `Ending`."""
    try:
        code = train_together(request, mpi, threads=threads, served=True, orphaned=orphaned)
    except RunFailed as error:
        rank = getattr(error.__cause__ or error, "rank", None)
        return {"how": "failed", "reason": str(error), "rank": rank}
    except InputRefused as error:
        return {"how": "failed", "reason": str(error)}
    return {"how": "stopped" if code == EXIT_STOPPED else "success"}


@contextmanager
def _signals_ask(stop: Path | None) -> Iterator[None]:
    """Within, SIGINT and SIGTERM ask the search to stop and do not end a rank, for which the others would wait."""

    def note(number: int, frame: object) -> None:
        if stop is not None:
            ask_to_stop(stop, "signal")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
