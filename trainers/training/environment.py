"""The environment of a run, for `environment.json`."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import socket
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import trainers
from recipes.errors import listed
from trainers import kernels
from trainers.augmentations import decoders
from trainers.datasets.fingerprints import sha256_of_parts
from trainers.runs.cores import core_quota, usable_cores, within_quotas
from trainers.runs.mpi_ranks import started_by_srun
from trainers.runs.run_folder import environment_of

_CHOOSE_KERNELS = ("OPENBLAS_CORETYPE", "MKL_CBWR", "NPY_DISABLE_CPU_FEATURES")  # override the choice by CPU features
_ON_GPUS = ("cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "ml-dtypes")
_OF_CUDNN = (
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "nvidia-cublas-cu12",
    "nvidia-cublas",  # since CUDA 13
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-nvrtc",
)
_OF_IMAGES = ("pillow", "simplejpeg", "opencv-python-headless")
# Rooms and files whose code decides what a run computes, and in which order.
_NUMERICAL = (
    "lr_schedules",
    *(f"recipes/planning/{file}.py" for file in ("division", "random_bits", "rates", "stream", "timeline")),
    *(f"recipes/schema/{file}.py" for file in ("batch_and_rate", "image_size", "positions")),
    *(f"trainers/{room}" for room in ("augmentations", "communicators", "compat", "datasets", "gradients")),
    *(f"trainers/{room}" for room in ("kernels", "losses.py", "models", "optimizers", "training")),
)
_PACKAGES = (
    "kilobatch",
    "chainer",
    "chainercv",
    "numpy",
    "mpi4py",
    "mpich",
    *_ON_GPUS,
    *_OF_IMAGES,
    "safetensors",
)


def environment(
    *,
    ranks: list[dict[str, Any]],
    threads: int,
    loader: str,
    fingerprint: str,
    exact: bool,
    ids: dict[str, str | None],
) -> dict[str, Any]:
    """Versions, machine, ranks and data of a run, as plain data.

    Args:
        ranks: `this_rank` of each rank.
        threads: BLAS and OpenMP threads of a rank.
        loader: the loader workers of rank 0, in words.
        fingerprint: of the data.
        exact: whether the run is in exact mode.
        ids: of `recipes.reading.identity.identity_ids`.
    """
    from mpi4py import MPI

    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **numerical_environment(),
        "exact": exact,
        "platform": platform.platform(),
        "cores": usable_cores(),
        "mpi": MPI.Get_library_version().split("\n")[0].strip("\0 "),
        "threads_per_rank": threads,
        "loader": loader,
        "ranks": ranks,
        **({"slurm": job} if (job := slurm_job()) else {}),
        "git": _git(),
        "data_fingerprint": fingerprint,
        "ids": ids,
    }


def slurm_job(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Job, step and nodes of Slurm, and the task of a job array; nothing outside a job.

    >>> slurm_job({"SLURM_JOB_ID": "28", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "node[1-2]"})
    {'job': '28', 'step': '0', 'nodes': 'node[1-2]'}
    """
    names = {
        "job": "JOB_ID",
        "step": "STEP_ID",
        "array": "ARRAY_JOB_ID",
        "task": "ARRAY_TASK_ID",
        "nodes": "JOB_NODELIST",
    }
    found = {key: text for key, name in names.items() if (text := variables.get(f"SLURM_{name}"))}
    return found if "job" in found else {}


def numerical_environment() -> dict[str, Any]:
    """What the bits of a run depend on besides recipe and data: equal values promise bit-identical runs on CPUs."""
    import chainer

    kernels.settle()
    return {
        "cpu": _cpu("model name") or platform.processor(),
        "cpu_model": "-".join(map(_cpu, ("vendor_id", "cpu family", "model", "stepping"))),
        "versions": {"python": platform.python_version(), **_versions()},
        "libc": " ".join(platform.libc_ver()),
        "kernels": {"operators": kernels.in_use(), **kernels.details()}
        | {name: os.environ[name] for name in _CHOOSE_KERNELS if os.environ.get(name)},
        "decoder": decoders.in_use(),
        "dtype": np.dtype(chainer.get_dtype()).name,
    }


def changed_warnings(folder: Path) -> list[str]:
    """Warnings if the run in a folder was trained by other kernels, or on images of other decoders, as is recorded."""
    before, warnings = environment_of(folder), []
    was, now = before.get("kernels", {}).get("operators"), kernels.in_use()
    if was not in (None, now):
        what = f"{was} kernels trained this run so far, {now} kernels go on: the same sums, rounded otherwise"
        warnings.append(f"warning: {what}; --kernels {was} goes on as before")
    was, now = before.get("decoder"), decoders.in_use()
    if was not in (None, now):
        what = f"images were decoded by {was} so far, {now} goes on: pixels of a resize differ by rounding"
        warnings.append(f"warning: {what}; --decoder {was} goes on as before")
    return warnings


def this_rank(rank: int, device: dict[str, Any]) -> dict[str, Any]:
    """Host, device and kernels of a rank, as plain data.

    Args:
        rank: of this process.
        device: facts about its device, to be included.
    """
    by = kernels.described(kernels.in_use())
    return {"rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "kernels": by, **device}


def mixed_kernels_warning(ranks: list[dict[str, Any]]) -> list[str]:
    """A warning if the ranks do not all compute by the same kernels; else empty."""
    of_kernels: dict[str, list[dict[str, Any]]] = {}
    for rank in ranks:
        of_kernels.setdefault(rank["kernels"], []).append(rank)
    if len(of_kernels) == 1:
        return []
    named = "; ".join(f"{kind} on {_named(some)}" for kind, some in of_kernels.items())
    return [
        f"warning: the ranks use different kernels: {named}; these round differently, and at each update all ranks "
        f"wait for the slowest; `kilobatch doctor` on each host shows what is missing, or name one kind by --kernels"
    ]


def crowded_warnings(mpi: Any, threads: int) -> list[str]:
    """On rank 0 a warning for each host with fewer cores than its ranks compute on; all ranks call this together.

    Bytes on the wire: about 100 from each rank to rank 0.
    """
    cores_of: dict[str, list[tuple[set[int], float | None]]] = {}
    for host, *cores in mpi.gather((socket.gethostname(), os.sched_getaffinity(0), core_quota()), root=0) or ():
        cores_of.setdefault(host, []).append(tuple(cores))
    warnings = []
    for host, each in cores_of.items():
        cores = within_quotas(set().union(*(cores for cores, _ in each)), (quota for _, quota in each))
        if len(each) * threads > cores:
            of = f" of {threads} threads" if threads > 1 else ""
            fit = max(1, cores // threads)
            way_out = f"{fit} would fit: -n, or `mpiexec -n`"
            if started_by_srun():
                way_out = f"ask Slurm for more cores with --cpus-per-task, or for {fit} ranks: --ntasks-per-node={fit}"
            warnings.append(
                f"warning: {len(each)} ranks{of} share the {cores} cores of {host} and take turns on them; {way_out}"
            )
    return warnings


def _named(ranks: list[dict[str, Any]]) -> str:
    """The ranks and their hosts in words, at most five by name."""
    return listed(f"rank {rank['rank']} on {rank['host']}" for rank in ranks)


def _versions() -> dict[str, str]:
    versions = {}
    by_kernels = {"torch": ("torch",), "cudnn": _OF_CUDNN}
    for name in (*_PACKAGES, *by_kernels.get(kernels.in_use(), ())):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    if "kilobatch" in versions:  # commits between two versions round otherwise too
        versions["kilobatch"] += f"+{_digest_of_sources()[:12]}"
    return versions


@functools.cache
def _digest_of_sources() -> str:
    """SHA-256 of the files of kilobatch that decide the numbers of a run."""
    root = Path(trainers.__file__).parents[1]
    found = (file for name in _NUMERICAL for file in (root / name, *(root / name).rglob("*.*")))
    sources = {file.relative_to(root).as_posix(): file for file in found if file.suffix in (".py", ".c", ".cu", ".h")}
    return sha256_of_parts(part for name, file in sorted(sources.items()) for part in (name, file.read_bytes()))


def _cpu(name: str) -> str:
    """A field of the first processor in /proc/cpuinfo; empty if there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = (line.partition(":") for line in file)
            return next(value.strip() for key, _, value in lines if key.strip() == name)
    except (OSError, StopIteration):
        return ""


def _git() -> str | None:
    """Commit of the working directory, with `+` if tracked files differ from it; None outside a checkout."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
        status = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+" if status.stdout.strip() else "")
