"""Failures of a run or a command: who ends, with which message and exit code. A message names rank, host and cause."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import sys
import termios
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from recipes.errors import InputRefused, RecipeError, printable
from recipes.extras import install
from trainers.runs.mpi_ranks import launched_by_us, launched_rank, launched_ranks

EXIT_INPUT, EXIT_FAILED, EXIT_STOPPED = 2, 3, 4
_EXTRAS = {"matplotlib": "plots", "onnx": "onnx"} | dict.fromkeys(("cmaes", "optuna", "sqlalchemy"), "search")
_EXIT_UNREAD = 1  # Click's exit code for a broken pipe
_ABORT_SECONDS = 5.0
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # on the disk, in a quota, below the limit of a file's size
_failure_log: Path | None = None  # see `log_failures`
_DRAIN_SECONDS = 2.0  # how long `print_and_drain` waits for the launcher to read the message
_FIRST_SECONDS = 1.0  # for rank 0 to report what all ranks have met, and to end them
_PMI_SECONDS = 1.0  # for a launcher to answer
_has_joined = False  # whether this process has joined the other ranks in MPI


class RunFailed(Exception):
    """A run cannot go on, for a reason that the user can act on; printed without a traceback. All ranks raise it."""


def print_warnings(warnings: Iterable[str]) -> list[str]:
    """A line of stderr for each; returns them."""
    printed = list(warnings)
    for warning in printed:
        print_error(f"kilobatch: warning: {warning}")
    return printed


class RankFailed(Exception):
    """One rank cannot go on, for a reason that the user can act on; printed without a traceback."""


class ServiceAway(InputRefused):
    """A service that a run can do without does not serve it; a new run is refused, a resumed one is not.

    Args:
        what: which, and why.
        way_out: of a new run.
    """

    def __init__(self, what: str, way_out: str) -> None:
        self.what = what
        super().__init__(f"{what}; {way_out}")


class UnfitImage(RankFailed, ValueError):
    """An image is too small for an augmentation, or has another size than the rest of its batch."""


class NotFinite(RunFailed):
    """A loss, a weight or a running statistic became infinite or NaN. All ranks raise it at the same update.

    Args:
        what: loss or weight.
        rank: the first rank that met it.
        parameter: path of the first parameter whose gradient (loss) or value (weight) is not finite, or "of the
            running statistics"; None if all are.
        compute: the recipe's `precision.compute`.
    """

    def __init__(
        self,
        *,
        what: str,
        rank: int,
        parameter: str | None,
        update: int,
        learning_rate: float,
        compute: str = "float32",
    ) -> None:
        self.rank, self.update = rank, update
        where = "all gradients are still finite"
        if parameter:
            where = f"first bad parameter {parameter}" if parameter.startswith("/") else f"one {parameter}"
        super().__init__(
            f"the {what} is not finite at update {update} on rank {rank} ({where}), learning rate {learning_rate:.6g}. "
            "Try a longer warmup (learning_rate.warmup.epochs), a lower learning_rate.reference, or a smaller batch; "
            "a corrupt image or label gives the same picture"
            + ("" if compute == "float32" else f", and so does what {compute} cannot hold: see precision.compute")
        )


class Overflow(RunFailed):
    """A gradient of float16 stayed infinite or NaN however small the loss scale. All ranks raise it together.

    Args:
        rank: the first rank that met it.
        parameter: path of the first parameter whose gradient is not finite there.
        loss_scale: the last one tried, after so many `halvings` in this update.
    """

    def __init__(self, *, rank: int, parameter: str | None, update: int, loss_scale: float, halvings: int) -> None:
        self.rank, self.update = rank, update
        super().__init__(
            f"the gradient of {parameter} is not finite at update {update} on rank {rank}, even at a loss scale of "
            f"{loss_scale:.12g}, after {halvings} halvings. Something in the model leaves the range of float16 "
            "(65,504): try a smaller precision.loss_scale, where the halvings begin, precision.compute: float32, "
            "a longer warmup or a lower learning_rate.reference"
        )


class OutOfMemory(RankFailed):
    """The smallest micro-batch that a worker can compute does not fit into its memory. Raised on the rank concerned.

    Args:
        samples: of that micro-batch.
        whole: whether it is a whole norm group, not a part of one that is spread over several workers.
    """

    def __init__(self, *, update: int, samples: int, whole: bool, error: Exception) -> None:
        least = f"{'a norm group' if whole else 'its part of a norm group'} of {samples} samples"
        spread = f"two or more workers share a norm group with --micro-batch-size {-(-samples // 2)} (not with --exact)"
        super().__init__(
            f"memory ran out at update {update} with {least} at a time, and fewer would change the statistics of "
            f"normalisation. Start fewer ranks on a machine, or take a device with more memory; {spread}; a smaller "
            f"batch.norm_span, image or model is another run. The error: {one_line(error)}"
        )


class EvaluationOutOfMemory(RankFailed):
    """A forward of the evaluation does not fit into a worker's memory. Raised on the rank concerned.

    Args:
        samples: of that forward, which cannot become smaller.
        exact: whether because its bits would change.
    """

    def __init__(self, *, samples: int, exact: bool, error: Exception) -> None:
        why, way_out = ", and fewer would change its bits", "Let it go on in smaller forwards with --fast, start fewer"
        super().__init__(
            f"memory ran out in a forward of the evaluation, with {samples} at a time{why if exact else ''}. "
            f"{way_out if exact else 'Start fewer'} ranks on a machine, or take a device with more memory. "
            f"The error: {one_line(error)}"
        )


def one_line(error: BaseException) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def own_place(error: Exception) -> str:
    """File and line of the user's own code in which an error was raised; else where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    here = [frame for frame in frames if Path(frame.filename).is_relative_to(Path.cwd())]  # where it was imported
    own = [frame for frame in here if "site-packages" not in frame.filename]  # of a `.venv` in this folder
    return f"{(own or frames)[-1].filename}:{(own or frames)[-1].lineno}"


def abort_on_exception(rank: int) -> None:
    """Make an uncaught exception in this process end all ranks.

    Plain Python would leave the other ranks waiting in a collective call forever. The message names rank and host. A
    `RunFailed`, which all ranks raise together, is printed once; it and a `RankFailed` have no traceback.
    """
    global _has_joined
    _has_joined = True

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        from mpi4py import MPI

        where = f"rank {rank} on {socket.gethostname()}"
        if not isinstance(error, RunFailed):
            print_and_drain(f"{where} failed:\n{error_text(error)}")
        elif rank == 0:
            print_and_drain(f"kilobatch: {error}")
        if isinstance(error, RunFailed):
            MPI.COMM_WORLD.Barrier()  # all ranks raise it: rank 0 prints before any rank is killed
        abort_all_ranks()

    sys.excepthook = hook


def error_text(error: BaseException) -> str:
    """The text to print for an exception: with its traceback, unless the message alone is enough.

    The traceback begins where the rank begins to train, below the frames of the command line.
    """
    if isinstance(error, RankFailed | InputRefused):
        return f"{error}\n"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return f"a file cannot be written: {error}; make room where the run's folder lies\n"
    begun = trace = error.__traceback__
    while begun is not None and begun.tb_frame.f_code.co_name != "train_as_rank":
        begun = begun.tb_next
    return "".join(traceback.format_exception(type(error), error, begun or trace))


def log_failures(file: Path) -> None:
    """From now on `print_and_drain` appends to a file too: there is no parent process that copies stderr to it."""
    global _failure_log
    _failure_log = file


def print_and_drain(text: str) -> None:
    """Write to stderr and wait until a pipe is read: this process, and the launcher that relays it, may end next."""
    if _failure_log is not None:
        with suppress(OSError), open(_failure_log, "a", encoding="utf-8") as file:
            print(printable(text), file=file)
    print(printable(text), file=sys.stderr, flush=True)
    with suppress(OSError, ValueError):  # no file, no pipe
        pipe, until = sys.stderr.fileno(), time.monotonic() + _DRAIN_SECONDS
        while stat.S_ISFIFO(os.fstat(pipe).st_mode) and _unread(pipe) and time.monotonic() < until:
            time.sleep(0.001)


def _unread(pipe: int) -> bool:
    return any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))


def abort_all_ranks() -> None:
    """End all ranks with exit code 3, from any thread. Does not return."""
    from mpi4py import MPI

    remove_shared_memory()
    last_resort = threading.Timer(_ABORT_SECONDS, os._exit, (EXIT_FAILED,))  # if Abort hangs; mpiexec ends the others
    last_resort.daemon = True
    with suppress(RuntimeError, MemoryError):  # out of memory no thread may start
        last_resort.start()
    MPI.COMM_WORLD.Abort(EXIT_FAILED)
    os._exit(EXIT_FAILED)


def waited_for() -> bool:
    """Whether the other ranks of a foreign launcher still wait for this one to join them."""
    return not (_has_joined or launched_by_us() or launched_ranks() in (None, 1))


def _abort_launch() -> None:
    """Ask the launcher by PMI to end all ranks, with exit code 2 under mpiexec; this one has not joined them.

    If a rank only exits, MPICH's mpiexec and srun let the others wait in MPI_Init. Nothing happens without PMI-1.
    """
    with suppress(OSError, ValueError), socket.socket(fileno=int(os.environ.get("PMI_FD", ""))) as launcher:
        launcher.settimeout(_PMI_SECONDS)
        launcher.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\n")
        launcher.recv(1024)
        launcher.sendall(b"cmd=abort exitcode=%d\n" % EXIT_INPUT)
        launcher.recv(1024)  # ends when the launcher ends this process


def remove_shared_memory() -> None:
    """Unlink the shared memory files of this job's ranks; the memory lives on while they have it mapped.

    MPICH unlinks them only in MPI_Finalize, which a killed rank does not reach: 2 MB would stay in /dev/shm. Call this
    once all ranks of the machine have left MPI_Init; segments of later windows have no name.
    """
    with suppress(OSError):  # not Linux, or another rank was first
        for line in Path("/proc/self/maps").read_text().splitlines():
            if (name := line.split()[-1]).startswith("/dev/shm/mpich_shm_"):
                Path(name).unlink(missing_ok=True)


def exit_on_error(error: Exception) -> None:
    """Exit with a message on stderr for an error that needs no traceback; return for one that does.

    Refused input: one line a problem, exit code 2; a package of an extra is not installed, or the working directory was
    removed: one line, exit code 2. Data cannot be read, or stdout cannot be written, such as on a full disk: one line,
    exit code 3. Broken pipe of stdout: no message, exit code 1. On a rank, `abort_on_exception` handles an error in
    printing, and data that cannot be read, and ends all ranks. A rank that refuses before it has joined the others
    names itself, and ends all.
    """
    if isinstance(error, InputRefused):
        if waited_for():
            time.sleep(_FIRST_SECONDS if launched_rank() else 0)
            who = f"rank {launched_rank()} on {socket.gethostname()}: " if launched_rank() else ""
            print_and_drain(str(error) if isinstance(error, RecipeError) and not who else f"kilobatch: {who}{error}")
            _abort_launch()
        elif launched_rank() == 0 or launched_by_us():  # the other ranks of a foreign launcher have met the same
            print_error(str(error) if isinstance(error, RecipeError) else f"kilobatch: {error}")
        sys.exit(EXIT_INPUT)
    if isinstance(error, RankFailed) and launched_ranks() is None:
        print_error(f"kilobatch: {error}")
        sys.exit(EXIT_FAILED)
    name = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if (extra := _EXTRAS.get(name)) is not None:
        print_error(f"kilobatch: this needs {name}, which is not installed; {install(extra)}")
        sys.exit(EXIT_INPUT)
    if isinstance(error, FileNotFoundError) and error.filename is None and _working_directory_is_gone():
        print_error("kilobatch: the working directory was removed; change into another one with cd")
        sys.exit(EXIT_INPUT)
    if not isinstance(error, OSError) or error.filename is not None or launched_ranks() is not None:
        return
    try:
        print(flush=True)  # fails if stdout was the cause; an unbuffered stdout does not remember its failure
    except BrokenPipeError:
        redirect_to_devnull(sys.stdout)
        sys.exit(_EXIT_UNREAD)
    except OSError as again:
        redirect_to_devnull(sys.stdout)
        print_error(
            f"kilobatch: what this command prints cannot be written: {again.strerror}; make room, or print elsewhere"
        )
        sys.exit(EXIT_FAILED)


def _working_directory_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def print_error(text: str, *, end: str = "\n") -> None:
    """Print on stderr, or nothing once its reader is gone: Ctrl-C ends a `2>&1 | tee log` before the run."""
    try:
        print(printable(text), end=end, file=sys.stderr, flush=True)
    except OSError:  # a pipe without a reader, a terminal that is gone, a full disk
        redirect_to_devnull(sys.stderr)


def redirect_to_devnull(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, with what is still in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
