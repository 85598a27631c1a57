"""The hosts of each group's ranks, and the launcher command that starts them there."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from trainers.launch.request import refused
from trainers.runs.mpi_ranks import find_mpiexec


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The hosts of one group.

    Args:
        ranks: of the group.
        hosts: (host, number of the group's ranks there); empty: this machine.
        slurm: run as a step of the Slurm allocation that this process is in.
        most_on_a_host: the most ranks of all groups on any one of these hosts; None if unknown.
        ranks_before: ranks of earlier groups on the first of these hosts; 0 if unknown.
    """

    ranks: int
    hosts: tuple[tuple[str, int], ...] = ()
    slurm: bool = False
    most_on_a_host: int | None = None
    ranks_before: int = 0


def launcher_command(placement: Placement, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The launcher's words before a command that runs once for each rank.

    Under Slurm `--exact` limits a step to what it asks for, so that the groups run side by side. The cores of a rank
    come from the allocation's `--cpus-per-task`; `SLURM_MPI_TYPE` selects Slurm's MPI plugin.

    >>> launcher_command(Placement(ranks=2, slurm=True), {"SLURM_CPUS_PER_TASK": "8"})
    ['srun', '--ntasks=2', '--exact', '--kill-on-bad-exit=1', '--input=none', '--cpus-per-task=8']
    """
    if placement.slurm:
        words = ["srun", f"--ntasks={placement.ranks}", "--exact", "--kill-on-bad-exit=1", "--input=none"]
        cores = environment.get("SLURM_CPUS_PER_TASK")
        return words + ([f"--cpus-per-task={cores}"] if cores else [])
    words = [find_mpiexec()]
    if placement.hosts:
        words += ["-hosts", ",".join(f"{name}:{ranks}" for name, ranks in placement.hosts)]
    return [*words, "-n", str(placement.ranks)]


def placements(
    *, each: int, workers: int | None, hosts: str | None = None, environment: Mapping[str, str] = os.environ
) -> list[Placement]:
    """The placement of each group: consecutive slots of the hosts, in the order of `hosts`.

    Args:
        each: ranks of a group.
        workers: ranks of all groups; None: as many as the hosts or the allocation have, or else one group.
        hosts: such as `a,b,c:4`; None: the Slurm allocation that this process is in, or else this machine.
        environment: of this process.
    Raises:
        RecipeError: there are fewer ranks than a group needs, or the hosts do not add up to `workers`.
    """
    slurm = hosts is None and in_allocation(environment)
    named = [] if hosts is None else hosts_named(hosts, workers)
    tasks = environment.get("SLURM_NTASKS", "") if slurm else ""
    workers = workers or sum(ranks for _, ranks in named) or (int(tasks) if tasks.isdecimal() else each)
    if workers < each:
        raise refused("-n", f"{workers} ranks are fewer than the {each} of a trial", f"ask for {each} or more")
    slots = [name for name, ranks in named for _ in range(ranks)]
    groups = []
    for start in range(0, workers - each + 1, each):
        own = tuple(Counter(slots[start : start + each]).items())
        most = max((slots.count(name) for name, _ in own), default=None if slurm else workers)
        before = slots[:start].count(slots[start]) if slots else 0 if slurm else start
        groups.append(Placement(ranks=each, hosts=own, slurm=slurm, most_on_a_host=most, ranks_before=before))
    return groups


def in_allocation(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a Slurm allocation and finds `srun`."""
    return "SLURM_JOB_ID" in environment and shutil.which("srun", path=environment.get("PATH")) is not None


def hosts_named(text: str, workers: int | None) -> list[tuple[str, int]]:
    """Hosts and the ranks of each; hosts without a number share the remaining ranks evenly.

    >>> hosts_named("a,b,c:4", 8)
    [('a', 2), ('b', 2), ('c', 4)]

    Raises:
        RecipeError: a name or a number is missing, or they do not add up to `workers`.
    """
    way_out = "write --hosts a,b or a:4,b:4, with -n the ranks of all of them"
    parts = [part.strip().partition(":") for part in text.split(",")]
    if not all(name and (number.isdecimal() and int(number) > 0 if colon else True) for name, colon, number in parts):
        raise refused("--hosts", f"{text!r} is no list of hosts, each with a number of ranks or none", way_out)
    if len({name for name, _, _ in parts}) < len(parts):
        raise refused("--hosts", f"{text!r} names a host twice", way_out)
    given = sum(int(number) for _, _, number in parts if number)
    num_open = sum(1 for _, _, number in parts if not number)
    if num_open and workers is None:
        raise refused("--hosts", f"{text!r} does not say how many ranks run on each host", way_out)
    left = 0 if workers is None else workers - given
    if left % num_open or left < num_open if num_open else left:
        raise refused("--hosts", f"the hosts {text} do not add up to {workers} ranks", way_out)
    return [(name, int(number) if number else left // num_open) for name, _, number in parts]
