"""What `--exact` refuses before anything starts, and the machine and versions that its promise holds for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.cluster import Cluster
from trainers.runs.errors import RunFailed
from trainers.runs.mpi_ranks import THREADS
from trainers.runs.run_folder import CHECKPOINTS, ENVIRONMENT, differences
from trainers.training.environment import numerical_environment

_SUMS_LIKE_IT = (None, "Auto", "Direct")  # exact mode's own exchange has the two steps of Direct


class ExactRefused(InputRefused):
    """A setting under which exact mode cannot keep its promise; says what to change."""


def require_exact(cluster: Cluster, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a cluster or an environment under which the bits would depend on the workers.

    Raises:
        ExactRefused: a communicator with an order of summation of its own, a 16-bit wire, a GPU, more than one BLAS
            thread.
    """
    exchange = cluster.exchange
    kind = None if exchange.communicator is None else type(exchange.communicator).__name__
    if kind not in _SUMS_LIKE_IT:
        raise ExactRefused(
            f"--exact adds gradients up itself, in a tree over the norm groups, and cluster {cluster.name} has them "
            f"summed by {kind}, whose order depends on the workers; leave exchange.communicator out, or name Direct"
        )
    if exchange.wire != "float32":
        raise ExactRefused(
            f"--exact sends float32, and cluster {cluster.name} has {exchange.wire} on the wire: what is rounded there "
            "depends on who holds which groups; leave exchange.wire out"
        )
    if cluster.device != "cpu":
        raise ExactRefused(f"--exact is promised on CPUs only, and cluster {cluster.name} has device {cluster.device}")
    for name in THREADS:
        if (environment.get(name) or "1") != "1":
            raise ExactRefused(
                f"--exact computes with one BLAS thread a rank, and {name} is {environment[name]}; unset it, or set it "
                "to 1, and start more ranks instead"
            )


def require_same_machine(folder: Path) -> None:
    """Refuse to resume in exact mode a run whose checkpoints may have other bits.

    Raises:
        ExactRefused: the run in `folder` was not exact so far, or ran on another CPU model or on other versions.
    """
    if not any((folder / CHECKPOINTS).glob("update-*")):
        return  # nothing to resume from
    try:
        before = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = {}  # lost or damaged: nothing says that it was exact
    if not before.get("exact"):
        raise ExactRefused(
            f"the run in {folder} was not, or not last, trained with --exact: its weights depend on how it was "
            "divided; resume without --exact, or start anew in another --out"
        )
    now = numerical_environment()
    before.setdefault("kernels", {}).setdefault("operators", "chainer")  # runs from before there was a choice
    changed = differences({key: before.get(key) for key in now}, now)
    if changed:
        raise ExactRefused(
            f"--exact promises equal bits on one CPU model with one set of versions, and {folder} was trained with "
            f"others: {'; '.join(changed)}; resume there, with the same --kernels, or without --exact, or start anew "
            "in another --out"
        )


def require_one_machine(mpi: Any) -> None:
    """Refuse hosts that may compute other bits from the same numbers; all ranks call this together.

    Bytes on the wire: about 400 from each rank to each.

    Raises:
        RunFailed: on all ranks, where CPU model or versions of some host are not those of rank 0.
    """
    environments = mpi.allgather((os.uname().nodename, numerical_environment()))
    first_host, first = environments[0]
    for host, other in environments:
        if changed := differences(first, other, where=(f"on {first_host}", f"on {host}")):
            raise RunFailed(
                "--exact promises equal bits on one CPU model with one set of versions, and the hosts differ: "
                f"{'; '.join(changed)}; choose equal hosts, or leave --exact out"
            )
