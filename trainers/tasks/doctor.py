"""`kilobatch doctor`: what is installed here, what is broken, and how to repair it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.extras import install
from trainers import compat, kernels
from trainers.augmentations import decoders
from trainers.launch.vocabulary import vocabulary
from trainers.runs.cores import core_quota, threads_from, usable_cores
from trainers.runs.mpi_ranks import (
    LOCAL_LAUNCH,
    LaunchError,
    find_mpiexec,
    launched_rank,
    launched_ranks,
    started_by_srun,
    threads_per_rank,
)
from trainers.runs.rank_exits import SHARED_MEMORY_WAY_OUT, shared_memory_fault

_PACKAGES = ("kilobatch", "chainer", "chainermn", "chainercv", "numpy", "mpi4py", "mpich", "cupy", "optuna")
_SMALL_SHARED_MEMORY = 256 << 20
_REINSTALL = "install the versions of requirements.lock: ./scripts/setup in a checkout"
_PROBE = """
import json, socket, sys
from mpi4py import MPI
hosts = MPI.COMM_WORLD.allgather(socket.gethostname())
if MPI.COMM_WORLD.rank == 0 or sys.argv[1:] == ["each"]:
    print(json.dumps([hosts, MPI.Get_library_version(), MPI.Query_thread()]))
"""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A fault of the installation."""

    what: str
    way_out: str
    stops_cpu_training: bool = False  # else it costs speed or the use of the GPU


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What `examine` returns."""

    sections: dict[str, dict[str, Any]]  # title -> name -> value, in the order of display
    patches: list[compat.PatchReport]
    problems: list[Problem] = field(default_factory=list)  # those that stop training first

    @property
    def trains_on_cpu(self) -> bool:
        """Whether training on the CPU works."""
        return not any(problem.stops_cpu_training for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as data for JSON."""
        return {
            "trains_on_cpu": self.trains_on_cpu,
            **self.sections,
            "patches": [dataclasses.asdict(patch) for patch in self.patches],
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
        }


def examine(*, mpi_timeout_seconds: float = 60.0) -> Diagnosis:
    """Looks at this machine and environment: imports everything, starts two MPI ranks, trains one update.

    Args:
        mpi_timeout_seconds: for the two ranks to start and end.
    """
    problems: list[Problem] = []
    sections = {"mpi": _mpi(problems, mpi_timeout_seconds)}  # before an import here initialises MPI in this process
    imports = kernels.missing(kernels.of_the_cpu(kernels.asked())) is None  # else Chainer cannot be imported, see below
    sections = {"versions": _versions(problems, imports=imports), **sections, "gpu": _gpu(problems)}
    sections["machine"] = _machine(problems)
    sections["machine"]["kernels"] = _kernels(problems)
    sections["machine"]["decoder"] = _decoder(problems)
    if imports:
        _one_update(problems)
    problems.sort(key=lambda problem: not problem.stops_cpu_training)
    return Diagnosis(sections=sections, patches=compat.patches(), problems=problems)


def _versions(problems: list[Problem], *, imports: bool) -> dict[str, Any]:
    distributions = packages_distributions()  # cupy comes as cupy-cuda13x and the like, chainermn inside chainer
    facts: dict[str, Any] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            facts[name] = version(distributions.get(name, [name])[0])
        except PackageNotFoundError:
            facts[name] = None
    for name in ("chainer", "chainermn", "chainercv") if imports else ():
        try:
            importlib.import_module(name)
        except Exception as error:  # of any kind: it belongs in the report
            what = f"import {name} fails: {type(error).__name__}: {error}"
            problems.append(Problem(what=what, way_out=_REINSTALL, stops_cpu_training=True))
    return facts


def _one_update(problems: list[Problem]) -> None:
    """Trains a convolution by one update on the CPU."""
    try:
        import chainer
        import numpy

        model = chainer.Sequential(chainer.links.Convolution2D(1, 2, 3), chainer.links.BatchNormalization(2))
        optimizer = chainer.optimizers.MomentumSGD().setup(model)
        images = numpy.arange(32, dtype=numpy.float32).reshape(2, 1, 4, 4)
        optimizer.update(lambda: chainer.functions.sum(model(images) ** 3))
    except Exception as error:  # of any kind: it belongs in the report
        what = f"an update of a small network on the CPU fails: {type(error).__name__}: {error}"
        problems.append(Problem(what=what, way_out=_REINSTALL, stops_cpu_training=True))


def _mpi(problems: list[Problem], timeout_seconds: float) -> dict[str, Any]:
    if (launched := launched_ranks()) is not None:
        return _mpi_of_launcher(problems, launched, timeout_seconds)
    facts: dict[str, Any] = {"mpiexec": None, "library": None, "thread_level": None, "ranks_started": 0}
    way_out = "pip install --force-reinstall mpi4py mpich, and use the mpiexec beside this environment's python"
    try:
        facts["mpiexec"] = find_mpiexec()
        command = [facts["mpiexec"], "-n", "2", sys.executable, "-m", "mpi4py", "-c", _PROBE]
        here = {**LOCAL_LAUNCH, **os.environ}
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=True, env=here)
        (hosts, library, level), _ = json.JSONDecoder().raw_decode(done.stdout)
        facts |= _facts_of(library, level) | {"ranks_started": len(hosts)}
        what = "mpiexec -n 2 started two processes of one rank each: it belongs to another MPI than mpi4py"
    except LaunchError as error:
        what = str(error)
    except subprocess.TimeoutExpired:
        what = f"mpiexec -n 2 did not end within {timeout_seconds:g} s"
    except (subprocess.CalledProcessError, OSError, ValueError) as error:
        output = _output_of(error)
        if getattr(error, "returncode", None) == signal.SIGBUS or shared_memory_fault(output):
            way_out = SHARED_MEMORY_WAY_OUT
        what = f"mpiexec -n 2 fails: {_last_line(output)}"
    _require_multiple(problems, facts["thread_level"])
    if facts["ranks_started"] != 2:
        problems.append(Problem(what=what, way_out=way_out, stops_cpu_training=True))
    return facts


def _mpi_of_launcher(problems: list[Problem], launched: int, timeout_seconds: float) -> dict[str, Any]:
    """Whether the ranks that a launcher started join: a process of its own takes the place of each in MPI."""
    rank, host = launched_rank(), socket.gethostname()
    facts: dict[str, Any] = {"rank": f"rank {rank} of {launched} on {host}", "library": None, "thread_level": None}
    connection = os.environ.get("PMI_FD", "")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mpi4py", "-c", _PROBE, "each"],
            stdout=subprocess.PIPE,  # not stderr: with an MPI that fails the launcher ends this process, too
            text=True,
            timeout=timeout_seconds,
            check=True,
            pass_fds=[int(connection)] if connection.isdigit() else [],
        )
        hosts, library, level = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        why = f"no answer within {timeout_seconds:g} s" if late else f"{_output_of(error)}; its message is on stderr"
        what, way_out = f"MPI does not join the launcher's ranks: {why}", "try `kilobatch doctor` without the launcher"
        problems.append(Problem(what=what, way_out=way_out, stops_cpu_training=True))
        return facts
    facts |= _facts_of(library, level) | {"ranks_joined": f"{len(hosts)} of {launched}"}
    _require_multiple(problems, facts["thread_level"])
    if len(hosts) != launched:
        from trainers.launch.join_ranks import way_to_join

        what = f"{launched} ranks were launched, but MPI joins {len(hosts)}"
        way_out = way_to_join(library) if started_by_srun() else "take the mpiexec of the MPI that mpi4py uses"
        problems.append(Problem(what=what, way_out=way_out, stops_cpu_training=True))
    else:
        facts["ranks_here"] = [number for number, its in enumerate(hosts) if its == host]
    return facts


def _facts_of(library: str, level: int) -> dict[str, Any]:
    name = " ".join(library.splitlines()[0].strip("\0").split())
    return {"library": name, "thread_level": ("single", "funneled", "serialized", "multiple")[level]}


def _require_multiple(problems: list[Problem], level: str | None) -> None:
    if level not in (None, "multiple"):
        what = f"MPI's thread level is {level}: several ranks cannot exchange gradients beside backward"
        other = "unset MPI4PY_RC_THREAD_LEVEL and MPI4PY_RC_THREADS, take an MPI with MPI_THREAD_MULTIPLE (pip install "
        other += "mpich), or train with --set cluster.exchange.overlap=false"
        problems.append(Problem(what=what, way_out=other))


def _output_of(error: Exception) -> str:
    """What a command that failed wrote, else how it ended."""
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    with_bus_error = ", as after a bus error" * (error.returncode == signal.SIGBUS)
    return error.stderr or f"it ended with {error.returncode}{with_bus_error}"


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def _gpu(problems: list[Problem]) -> dict[str, Any]:
    """What Chainer can do with the GPUs here; if a library is missing it silently falls back to the CPU."""
    facts: dict[str, Any] = {
        "gpus": _gpus_of_driver(),
        "usable": False,
        "reason": None,
        "cudnn": False,
        "nccl": None,
    }
    cuda = sys.modules.get("chainer.backends.cuda")
    if cuda is None:
        return facts
    if not cuda.available:
        facts["reason"] = _last_line(str(cuda._resolution_error))
        if facts["gpus"]:
            problems.append(Problem(what=f"a GPU that Chainer cannot use: {facts['reason']}", way_out=install("gpu")))
        return facts
    lacks = kernels.missing("cudnn", device="gpu")
    facts["cudnn"] = lacks is None
    if lacks is not None:
        problems.append(Problem(what=lacks[0], way_out=lacks[1]))
    try:
        facts["usable"] = cuda.cuda.runtime.getDeviceCount() > 0
    except cuda.cuda.runtime.CUDARuntimeError as error:
        facts["reason"] = str(error)
        way_out = "see whether nvidia-smi shows the GPU; until then train with --device cpu"
        problems.append(Problem(what=f"CuPy finds no GPU: {error}", way_out=way_out))
    if (lacking := vocabulary().communicators["Nccl"]().missing()) is not None:
        problems.append(Problem(what=f"GPUs exchange gradients through host memory: {lacking[0]}", way_out=lacking[1]))
    else:
        facts["nccl"] = importlib.import_module("cupy.cuda.nccl").get_version()
    return facts


def _kernels(problems: list[Problem]) -> str:
    """The kernels that compute on the CPU, in words."""
    asked = kernels.of_the_cpu(kernels.of_runs())
    if (lacks := kernels.missing(asked)) is None:
        return kernels.described(asked)
    problems.append(Problem(what=lacks[0], way_out=lacks[1], stops_cpu_training=True))
    return f"{asked}, which is not here"


def _decoder(problems: list[Problem]) -> str:
    """The decoder of images in use, and others that are here."""
    try:
        used = decoders.use(None)
    except InputRefused as error:
        what, _, way_out = str(error).partition("; ")
        problems.append(Problem(what=what, way_out=way_out, stops_cpu_training=True))
        return "none"
    others = [kind for kind in decoders.KINDS if kind != used and not decoders.missing(kind)]
    if used == "pillow" and (lacks := decoders.missing("turbo")):
        what = "images are decoded by Pillow, which takes longer"
        problems.append(Problem(what=what, way_out=f"pip install {' '.join(lacks)}", stops_cpu_training=False))
    return f"{used}; {', '.join(others)} with --decoder" if others else used


def _gpus_of_driver() -> list[str]:
    if (command := shutil.which("nvidia-smi")) is None:
        return []
    try:
        done = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in done.stdout.splitlines() if line.startswith("GPU ")]


def _machine(problems: list[Problem]) -> dict[str, Any]:
    cores = usable_cores()
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads and ((number := threads_from(threads)) is None or number > cores):
        what = f"OMP_NUM_THREADS={threads} on {cores} cores: too many threads make ranks slow"
        what = f"OMP_NUM_THREADS={threads} is no number of threads" if number is None else what
        problems.append(Problem(what=what, way_out="unset OMP_NUM_THREADS: the ranks of a run share the cores evenly"))
    return {
        "platform": platform.platform(),
        "cores": cores,
        "core_quota": core_quota(),
        "threads_per_rank": {
            f"{ranks} rank{'s' * (ranks > 1)}": threads_per_rank(ranks) for ranks in sorted({1, 2, cores})
        },
        "omp_num_threads": threads,
        **_shared_memory(problems, Path("/dev/shm")),
    }


def _shared_memory(problems: list[Problem], folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        return {"shared_memory_bytes": None, "shared_memory_files": 0}
    free, files = shutil.disk_usage(folder).free, len(list(folder.glob("mpich_shm_*")))
    if free < _SMALL_SHARED_MEMORY:
        what = f"only {free >> 20} MiB are free in {folder}, where the ranks of a machine exchange"
        way_out = "give the container more: docker run --shm-size=2g"
        if files:
            way_out += f"; when no rank is running, rm {folder}/mpich_shm_* ({files} files that killed ranks left)"
        problems.append(Problem(what=what, way_out=way_out))
    return {"shared_memory_bytes": free, "shared_memory_files": files}


def print_diagnosis(diagnosis: Diagnosis, *, as_json: bool = False) -> None:
    """Writes it to the terminal, for a person or as one JSON object; under a launcher one rank of each host does."""
    if launched_rank() not in diagnosis.sections["mpi"].get("ranks_here", [launched_rank()])[:1]:
        return
    if as_json:
        print(json.dumps(diagnosis.as_dict(), indent=2))
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    patches = Counter(state for _, state in {(patch.name, patch.state) for patch in diagnosis.patches})
    with console.capture() as shown:  # to be printed at once: ranks of other hosts print, too
        if rank := diagnosis.sections["mpi"].get("rank"):
            console.print(escape(rank))
        for title, values in {**diagnosis.sections, "patches (--json: names and symptoms)": patches}.items():
            console.print(f"[italic]{title}[/]")
            for name, value in values.items():
                console.print(f"{name.replace('_', ' '):<20} {escape(_in_words(name, value))}")
        for problem in diagnosis.problems:
            color = "red" if problem.stops_cpu_training else "yellow"
            console.print(f"[{color}]{escape(problem.what)}[/]\n    {escape(problem.way_out)}")
        console.print("Training on the CPU works." if diagnosis.trains_on_cpu else "Training does not work here yet.")
    print(shown.get(), end="", flush=True)


def _in_words(name: str, value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{number} for {ranks}" for ranks, number in value.items())
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
