"""Equal bits on any number of ranks: where a run can hold them, and the machine and versions that they hold for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.cluster import Cluster
from trainers import kernels
from trainers.runs.errors import RunFailed
from trainers.runs.mpi_ranks import THREADS
from trainers.runs.run_folder import CHECKPOINTS, ENVIRONMENT, checkpoints_in, differences, environment_of
from trainers.training.environment import numerical_environment

_SUMS_LIKE_IT = (None, "Auto", "Direct")  # exact mode's own exchange has the two steps of Direct


class ExactRefused(InputRefused):
    """A setting under which `--exact` cannot keep its promise; says what to change."""


def why_not_exact(cluster: Cluster, environment: Mapping[str, str] = os.environ, *, asked: bool = False) -> str | None:
    """What of a cluster or an environment makes the bits of a run depend on the number of ranks, and a way out.

    None where nothing does: gradients summed by no communicator of its own order, float32 on the wire, a CPU, or GPUs
    where `--exact` was `asked` for, and one BLAS thread.
    """
    exchange = cluster.exchange
    kind = None if exchange.communicator is None else type(exchange.communicator).__name__
    if kind not in _SUMS_LIKE_IT:
        return (
            f"cluster {cluster.name} has gradients summed by {kind}, whose order depends on the ranks; "
            "leave exchange.communicator out of the cluster's file, or name Direct"
        )
    if exchange.wire != "float32":
        return (
            f"cluster {cluster.name} has {exchange.wire} on the wire, and what is rounded there depends on the ranks; "
            "leave exchange.wire out of the cluster's file"
        )
    if cluster.device != "cpu" and not asked:
        return "on GPUs --exact makes them equal, more slowly"
    for name in THREADS:
        if (environment.get(name) or "1") != "1":
            return (
                f"{name} is {environment[name]}, and equal bits take one BLAS thread a rank; unset it, or set it to 1, "
                "and start more ranks instead"
            )
    return None


def require_same_machine(folder: Path) -> None:
    """Refuse to resume with `--exact` a run whose checkpoints may have other bits.

    Raises:
        ExactRefused: see `broken_since`.
    """
    if broken := broken_since(folder):
        raise ExactRefused(_refusal(folder, broken))


def _refusal(folder: Path, broken: str) -> str:
    return f"--exact cannot be held in {folder}: {broken}; resume without --exact, or start anew"


def broken_since(folder: Path) -> str | None:
    """Why a run that is resumed here has other bits than one trained here from its start; None if it has the same.

    It was trained with `--fast`, or where exact mode was not possible, or on another CPU model or with other versions,
    or its record of these is lost.
    """
    if not checkpoints_in(folder / CHECKPOINTS):
        return None  # nothing to resume from
    before = environment_of(folder)
    if not before:
        return f"{folder / ENVIRONMENT} is missing or damaged, so it is not known where and how it was trained"
    if not before.get("exact"):
        return "its weights so far depend on how it was divided"
    now = numerical_environment()
    changed = differences({key: before.get(key) for key in now}, now)
    return f"it was trained on another machine or by other versions: {'; '.join(changed)}" if changed else None


def hold_on_gpu(mpi: Any, resumed: Path | None) -> None:
    """Refuse GPUs that have not the same bits; all ranks call this together, each with its GPU as the current one.

    Bytes on the wire: those of `unlike_hosts`, and about 100 from rank 0 to each.

    Args:
        resumed: folder of the run, where one goes on.
    Raises:
        RunFailed: Chainer's own kernels compute, the GPUs differ, or see `broken_since`.
    """
    if kernels.in_use() == "chainer":
        raise RunFailed("--exact cannot be held by Chainer's kernels on GPUs; take --kernels cudnn")
    if why := unlike_hosts(mpi):
        raise RunFailed(f"--exact cannot be held: {why}, or leave --exact out")
    broken = broken_since(resumed) if resumed is not None and mpi.rank == 0 else None
    if broken := mpi.bcast(broken):
        raise RunFailed(_refusal(resumed, broken))


def unlike_hosts(mpi: Any) -> str | None:
    """How hosts differ that may compute other bits from the same numbers; None where they do not.

    All ranks call this together. Bytes on the wire: about 400 from each rank to each.
    """
    environments = mpi.allgather((os.uname().nodename, numerical_environment()))  # with the GPU, where one was taken
    first_host, first = environments[0]
    for host, other in environments:
        if changed := differences(first, other, where=(f"on {first_host}", f"on {host}")):
            return f"the hosts differ: {'; '.join(changed)}; choose equal hosts"
    return None
