"""MPI ranks: the environment of those that a launcher has started, and starting them here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from recipes.errors import InputRefused
from trainers.runs.cores import threads_from, usable_cores
from trainers.runs.rank_exits import EXIT_SOCKET, RankExits
from trainers.runs.storage_url import without_passwords

_SIZE_NAMES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_SIZE_NAMES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE")
_RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
KERNEL_THREADS = "KILOBATCH_THREADS"  # of our own kernels and of loading, whose bits do not depend on their number
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MOST_THREADS = 1024  # a number with more digits than was meant would end in "can't start new thread"
_NUMPYS_BLAS = "OPENBLAS_NUM_THREADS"
_OWN = "KILOBATCH_LAUNCHED"  # in the environment of ranks we started: the command line that was typed
_PARENT = "KILOBATCH_PARENT"  # there too: the process that started them, see `process_mark`
HYDRA = ("[mpiexec", "[proxy")  # how lines of MPICH's launcher begin that say where in its source it ended
_LEFT_SECONDS = 3.0  # that ranks may take to end after their mpiexec
_KILLS, _KILL_SECONDS = 4, 0.5  # how often, and how long mpiexec has to end each time

# A program that replaces itself by the command after it, which the kernel kills when its parent ends for any reason. A
# killed mpiexec takes its ranks with it. Linux only.
_END_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started these ranks has gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""

# For MPICH's mpiexec: without it, inside a job of Slurm or PBS, mpiexec would start the ranks on the job's hosts.
LOCAL_LAUNCH = {"HYDRA_RMK": "user"}

_limited: set[str] = set()  # those of THREADS that `limit_threads` has set, not the user


class LaunchError(InputRefused):
    """Ranks could not be started or joined; the message names what to install or to change."""


def launched_ranks(environment: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks a launcher started, if this process is one of them; else None.

    None too if the launcher does not set the number, and `in_slurm_shell`.
    """
    if not any(name in environment for name in _RANK_NAMES) or in_slurm_shell(environment):
        return None
    sizes = [environment[name] for name in _SIZE_NAMES if environment.get(name, "").isdigit()]
    return int(sizes[0]) if sizes else None


def in_slurm_shell(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether srun started one task here, perhaps a shell (`srun --pty bash`), that is no rank.

    A rank has the variables of `start_ranks`, or those that its launcher sets for MPI.
    """
    others = any(name.startswith(("PMI", "OMPI_", "HYDI_", _OWN)) for name in environment)
    return "SLURM_PROCID" in environment and environment.get("SLURM_STEP_NUM_TASKS") == "1" and not others


def started_by_srun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a task of a Slurm step, and no rank that mpiexec started in one."""
    others = any(name.startswith(("HYDI_", "OMPI_COMM_WORLD_")) for name in environment)
    return "SLURM_STEP_ID" in environment and not others


def idle_nodes(environment: Mapping[str, str] = os.environ) -> int:
    """How many more nodes a job of Slurm has than this one, where its script starts the ranks without srun.

    >>> idle_nodes({"SLURM_JOB_NUM_NODES": "2"}), idle_nodes({"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_ID": "0"})
    (1, 0)
    """
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    return int(nodes) - 1 if nodes.isdigit() and "SLURM_STEP_ID" not in environment else 0


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process's rank; 0 without a launcher."""
    return next((int(environment[name]) for name in _RANK_NAMES if environment.get(name, "").isdigit()), 0)


def launched_by_us(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `start_ranks` started this process."""
    return _OWN in environment


def parent_is_gone() -> bool:
    """Whether the process whose `start_ranks` started this one has ended.

    False for ranks of another launcher, and on other hosts, where it cannot be known.
    """
    process, _, rest = os.environ.get(_PARENT, "").partition(" ")
    here = rest.endswith(f" {socket.gethostname()}")
    return here and process_mark(int(process)) != f"{process} {rest}"


def process_mark(process: int) -> str:
    """PID and start time of a process, which together are never reused, and this host; empty if it has ended."""
    state, *rest = process_fields(process) or ["Z"]
    return "" if state == "Z" else f"{process} {rest[18]} {socket.gethostname()}"


def process_fields(process: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on, see proc(5); none if there is no such process of this machine."""
    try:  # the name before them is cut after 15 bytes, perhaps within a character
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def command_line() -> str:
    """The command that the user typed, also on the ranks that it started; without the password of a storage."""
    return os.environ.get(_OWN) or shlex.join(["kilobatch", *without_passwords(sys.argv[1:])])


def threads_per_rank(local_ranks: int) -> int:
    """`usable_cores` divided between the ranks on this machine, at least one."""
    return max(1, usable_cores() // local_ranks)


def ranks_that_share_cores(environment: Mapping[str, str] = os.environ, cores: int | None = None) -> int:
    """How many of a launcher's ranks share the cores that this process may run on; by default of its `cores`.

    One where Slurm has bound each rank to cores of its own. Where nodes have different numbers, it is the largest.

    >>> ranks_that_share_cores({"SLURM_TASKS_PER_NODE": "4(x2),1"}, cores=16)
    4
    >>> ranks_that_share_cores({"SLURM_TASKS_PER_NODE": "4(x2),1", "SLURM_CPUS_PER_TASK": "8"}, cores=8)
    1
    """
    bound = environment.get("SLURM_CPUS_PER_TASK") == str(cores or len(os.sched_getaffinity(0)))
    for name in _LOCAL_SIZE_NAMES:
        if numbers := re.findall(r"(?:^|,)(\d+)", environment.get(name, "")):
            return 1 if bound and name.startswith("SLURM_") else max(map(int, numbers))
    return launched_ranks(environment) or 1


def limit_threads(
    local_ranks: int | None = None, *, threads: int | None = None, kernels_share_cores: bool = False
) -> int:
    """Set the number of threads of BLAS and OpenMP in a rank, unless the user has.

    A user's OMP_NUM_THREADS holds for BLAS too, as both BLAS libraries do it, and for our own kernels. Must run before
    NumPy is imported. Too many threads are the usual cause of slow ranks.

    Args:
        local_ranks: ranks on this machine; None: from the launcher's environment.
        threads: of a rank; None: cores divided by ranks.
        kernels_share_cores: our own kernels have cores divided by ranks, whatever `threads` is, and NumPy's BLAS one
            thread: OpenBLAS's threads spin, and beside a busy process an update took twenty times as long.
    Returns:
        threads a rank, the larger number of both.
    Raises:
        LaunchError: the user has set a variable to something else than a number of threads, see `threads_from`.
    """
    for name in (*THREADS, KERNEL_THREADS):
        if text := os.environ.get(name, "").strip():
            given = threads_from(text)
            if given is None or given > _MOST_THREADS:
                what = f"{name}={text} is no number of threads from 1 to {_MOST_THREADS:,}"
                raise LaunchError(f"{what}; write 1, say, or unset it: the ranks of a run share the cores evenly")
            os.environ[name] = str(given)
    if local_ranks is None:
        local_ranks = ranks_that_share_cores()
    number, users = str(threads or threads_per_rank(local_ranks)), None
    if kernels_share_cores and not any(os.environ.get(name, "").isdigit() for name in THREADS):
        os.environ[_NUMPYS_BLAS] = "1"
        _limited.add(_NUMPYS_BLAS)
    for name in THREADS:
        if not os.environ.get(name, "").isdigit():  # unset, empty or no number
            os.environ[name] = number
            _limited.add(name)
        elif name == THREADS[0]:
            number = os.environ[name]
            users = number if name not in _limited else None
    if kernels_share_cores and not os.environ.get(KERNEL_THREADS, "").isdigit():
        os.environ[KERNEL_THREADS] = users or str(threads_per_rank(local_ranks))
        _limited.add(KERNEL_THREADS)
    return max(int(os.environ[THREADS[0]]), int(os.environ.get(KERNEL_THREADS) or 1))


def users_environment() -> dict[str, str]:
    """The environment without what `limit_threads` has set: other hosts may have another number of cores."""
    return {name: value for name, value in os.environ.items() if name not in _limited}


def find_mpiexec() -> str:
    """Path of the `mpiexec` beside this Python (of the mpich wheel), else on the PATH.

    Raises:
        LaunchError: there is none.
    """
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if mpiexec is None:
        raise LaunchError("no mpiexec here; install MPI into this environment: pip install mpich")
    return mpiexec


@dataclass
class Ranks:
    """Ranks that this process has started."""

    process: subprocess.Popen[bytes]  # their mpiexec
    num_ranks: int
    exits: RankExits  # records in which order they end
    _errors: list[str]
    _reader: threading.Thread

    def kill(self) -> None:
        """Kill all ranks, also one that hangs: on a SIGTERM, which mpiexec passes on, a rank only stops cleanly.

        Waits for mpiexec, two seconds at most: it forgets a signal that comes while it starts. Ranks whose launcher has
        died are found by their environment.
        """
        for process in self.processes().values():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for _ in range(_KILLS):
            for descendant in reversed(_descendants(self.process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(descendant, signal.SIGKILL)
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_KILL_SECONDS)
                return

    def processes(self) -> dict[int, int]:
        """Rank -> PID, of these ranks on this machine, also of those that their launcher has left behind."""
        processes: dict[int, int] = {}
        marks = {f"{_PARENT}={process_mark(os.getpid())}", f"{EXIT_SOCKET}={self.exits.name}"}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended, or is another user's
                words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                if marks <= set(words):
                    environment = dict(word.partition("=")[::2] for word in words)
                    if launched_ranks(environment) is not None and _is_rank(int(folder.name)):
                        processes.setdefault(launched_rank(environment), int(folder.name))
        return processes

    def left_behind(self) -> dict[int, int]:
        """`processes` that have not ended some seconds after mpiexec has."""
        until = time.monotonic() + _LEFT_SECONDS
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.05)
        return left

    def has_launcher(self) -> bool:
        """Whether mpiexec still has its proxy, the process of this machine that started the ranks; or has ended."""
        return self.poll() is not None or any(map(process_mark, _children(self.process.pid)))

    def poll(self) -> int | None:
        """The exit code of mpiexec; None while it runs."""
        return self.process.poll()

    def errors(self, since: int = 0) -> str:
        """The ranks' stderr without its first `since` lines; waits until they have ended."""
        self._reader.join()
        return "".join(self._errors[since:])

    def num_errors(self) -> int:
        """How many lines the ranks have written to stderr so far."""
        return len(self._errors)

    def first_exit(self) -> int | None:
        """The rank that ended first, once all have; None if that was not seen, as on another host."""
        return next((rank for rank, _ in self.exits.order()), None)


def start_ranks(
    num_ranks: int,
    arguments: list[str],
    *,
    log: Path,
    outlive_us: bool = True,
    launcher: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> Ranks:
    """Start `kilobatch ARGUMENTS` on ranks of this machine, or wherever another launcher starts them.

    They run in their own session: a Ctrl-C on the terminal reaches only this process, which requests their stop.

    Args:
        num_ranks: at least 1.
        arguments: of the command line.
        log: file for what the ranks print.
        outlive_us: whether the ranks go on if this process is killed.
        launcher: words before the command that start it once for each rank; by default mpiexec, on this machine.
        environment: of the ranks; by default the user's, with `threads` where it sets none.
        threads: of BLAS on a rank; by default a share of the cores.
    Raises:
        LaunchError: there is no mpiexec.
    """
    given = users_environment() if environment is None else environment
    limits = {}
    if environment is None and not given.get(THREADS[0]):
        limits = dict.fromkeys(THREADS, str(threads or threads_per_rank(num_ranks)))
        limits |= {_NUMPYS_BLAS: "1", KERNEL_THREADS: str(threads_per_rank(num_ranks))}
    marks = (*_SIZE_NAMES, *_RANK_NAMES)  # of `srun --pty bash`, say: they would make mpiexec a rank
    environment = {name: value for name, value in given.items() if name not in marks}
    environment |= {name: environment.get(name) or limit for name, limit in limits.items()}
    exits = RankExits(num_ranks)
    own = {_OWN: command_line(), _PARENT: process_mark(os.getpid()), "PYTHONUNBUFFERED": "1"}
    own |= {} if exits.name is None else {EXIT_SOCKET: exits.name}
    own |= LOCAL_LAUNCH if launcher is None and "HYDRA_RMK" not in os.environ else {}
    launcher = [find_mpiexec(), "-n", str(num_ranks)] if launcher is None else launcher
    command = [*launcher, sys.executable, "-P", "-m", "kilobatch", *arguments]
    command = command if outlive_us else killed_with_parent(command)
    with open(log, "ab") as file:
        process = subprocess.Popen(
            command,
            env={**environment, **own},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    assert process.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=_tee, args=(process.stderr, log, errors), daemon=True)
    reader.start()
    return Ranks(process=process, num_ranks=num_ranks, exits=exits, _errors=errors, _reader=reader)


def killed_with_parent(command: Sequence[str]) -> list[str]:
    """A command wrapped so that the kernel kills it when this process ends."""
    return [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(os.getpid()), *command]


def without_launcher(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a child that is not a rank, although this process is one."""
    of_launchers = ("PMI", "OMPI_", "HYDI_", "HYDRA_", "MPI_LOCAL")
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(of_launchers) and name not in (*_SIZE_NAMES, *_RANK_NAMES)
    }


def _is_rank(process: int) -> bool:
    """Whether a process runs Python: helpers of the MPI library may have a rank's environment too, and zombies none."""
    try:
        return b"kilobatch" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _children(parent: int) -> list[int]:
    """PIDs of the children of a process."""
    children: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):  # it has just ended
            children += map(int, task.read_text().split())
    return children


def _descendants(parent: int) -> list[int]:
    """PIDs of all descendants of a process, parents before their children."""
    processes = [parent]
    for process in processes:
        processes += _children(process)
    return processes[1:]


def _tee(stream: IO[bytes], log: Path, lines: list[str]) -> None:
    with stream, open(log, "ab", buffering=0) as file:
        for line in stream:
            lines.append(line.decode(errors="replace"))
            with suppress(OSError):  # such as a full disk: the line is still in `lines`, and reaches the user
                file.write(line)
