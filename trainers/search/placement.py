"""Where the groups of ranks run: slots of hosts divided into groups, and the launcher's words that start each there."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from recipes.errors import refused
from trainers.runs import mpi_ranks
from trainers.runs.mpi_ranks import LaunchError, Ranks

# srun reads these as options. With those of the allocation a step takes all its GPUs, and the next group waits.
_OF_ALLOCATION = ("SLURM_GPUS", "SLURM_MEM_PER_", "SLURM_NTASKS_PER_", "SLURM_TRES_PER_TASK", "SLURM_DISTRIBUTION")
_ALLOCATION = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE")
_SHELL_OF_SALLOC = "4294967290"  # SLURM_INTERACTIVE_STEP of slurm.h: a step that holds nothing
_QUEUE_SECONDS = 45  # that a step may wait for its nodes before srun gives up and says why; a `Group` waits longer


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the ranks of one group run.

    Args:
        hosts: of each rank; ranks of one host follow each other.
        local_ranks: number of each rank among those of all groups on its host.
        launcher: the words before a command that start it once for each rank.
    """

    hosts: tuple[str, ...]
    local_ranks: tuple[int, ...]
    launcher: tuple[str, ...]

    def start(self, messages: Path, log: Path) -> Ranks:
        """Start the ranks; they read their requests in `messages`, and print to `log`."""
        words = ["search-ranks", str(messages), ",".join(map(str, self.local_ranks))]
        environment = mpi_ranks.users_environment()  # without our thread limits: each rank sets its own
        if self.launcher[0] != "srun" and "-hosts" not in self.launcher:
            environment = mpi_ranks.LOCAL_LAUNCH | environment
        if self.launcher[0] == "srun":
            environment = {name: value for name, value in environment.items() if not name.startswith(_OF_ALLOCATION)}
        return mpi_ranks.start_ranks(
            len(self.hosts), words, log=log, outlive_us=False, launcher=self.launcher, environment=environment
        )


def placements(
    *, each: int, workers: int | None, hosts: str | None = None, environment: Mapping[str, str] = os.environ
) -> list[Placement]:
    """The placement of each group, see `place`.

    Args:
        each, workers: ranks of a group and of all; None: as many as the hosts or the allocation have, or one group.
        hosts: such as `a,b,c:4`; None: those of the Slurm allocation, if it can start steps here, else this machine.
    Raises:
        RecipeError: the ranks are fewer than a group needs, more than the allocation holds, or not those of `hosts`.
        LaunchError: there is no mpiexec, or Slurm does not describe the allocation, or it is heterogeneous.
    """
    options: list[str] = []
    if hosts is not None:
        slots = hosts_named(hosts, workers)
    elif _starts_steps(environment):
        slots, options = _slurm(workers, environment)
    else:
        slots = {socket.gethostname(): workers or each}
    workers = workers or sum(slots.values())
    if workers < each:
        raise refused("-n", f"{workers} ranks are fewer than the {each} of a trial", f"ask for {each} or more")
    groups, used = [], Counter[str]()
    for own in place(slots, each=each, groups=workers // each):
        counts = Counter(own)
        local_ranks = tuple(used[host] + number for host in counts for number in range(counts[host]))
        used += counts
        words = ["srun", f"--ntasks={each}", f"--nodes={len(counts)}", f"--nodelist={','.join(counts)}"]
        if options and len(counts) > 1:  # Slurm places ranks as we do if their nodes are listed once for each rank
            words[-1:] = [f"--nodelist={','.join(own)}", "--distribution=arbitrary"]
        elif not options:
            words = [mpi_ranks.find_mpiexec(), "-n", str(each)]
            words += ["-hosts", ",".join(f"{host}:{counts[host]}" for host in counts)] if hosts else []
        groups.append(Placement(hosts=own, local_ranks=local_ranks, launcher=(*words, *options)))
    return groups


def _starts_steps(environment: Mapping[str, str]) -> bool:
    """Whether srun can start steps: in an allocation, but not where one step, `srun --pty bash`, holds it all.

    A container may have SLURM_JOB_ID alone: then the ranks are started here.
    """
    in_step = mpi_ranks.in_slurm_shell(environment) and environment.get("SLURM_STEP_ID") != _SHELL_OF_SALLOC
    if in_step or not shutil.which("srun", path=environment.get("PATH")):
        return False
    if "SLURM_HET_SIZE" in environment and "SLURM_JOB_NODELIST" not in environment:
        raise LaunchError(
            "this allocation is heterogeneous (SLURM_HET_SIZE), and groups of ranks are placed on the nodes of one "
            "allocation; start all ranks on one component by srun --het-group=0 before the command, or name --hosts"
        )
    return all(name in environment for name in _ALLOCATION)


def require_ssh(hosts: Iterable[str], environment: Mapping[str, str] = os.environ) -> None:
    """Raise LaunchError where MPICH's mpiexec needs ssh for one of these hosts, and there is none."""
    if shutil.which("ssh", path=environment.get("PATH")) or "HYDRA_LAUNCHER" in environment:
        return
    if host := next((host for host in hosts if not _is_here(host)), None):
        raise LaunchError(f"--hosts: ranks on {host} are started over ssh, which is missing here; install OpenSSH")


def _is_here(host: str) -> bool:
    """Whether a host is this machine: a socket can be bound to its address."""
    try:
        socket.create_server((host, 0)).close()
    except OSError:
        return False
    return True


def place(slots: Mapping[str, int], *, each: int, groups: int) -> list[tuple[str, ...]]:
    """The host of each rank of each group: whole on the host with the fewest free slots that hold it, else on several.

    >>> place({"a": 4, "b": 4}, each=3, groups=2)
    [('a', 'a', 'a'), ('b', 'b', 'b')]
    """
    free, placed = dict(slots), []
    for _ in range(groups):
        hosts: tuple[str, ...] = ()
        while missing := each - len(hosts):
            holding = [host for host in free if free[host] >= missing]
            host = min(holding, key=free.__getitem__) if holding else max(free, key=free.__getitem__)
            taken = min(missing, free[host])
            hosts += (host,) * taken
            free[host] -= taken
        placed.append(hosts)
    return placed


def hosts_named(text: str, workers: int | None) -> dict[str, int]:
    """Hosts and the ranks of each; hosts without a number share the remaining ranks evenly, or RecipeError is raised.

    >>> hosts_named("a,b,c:4", 8)
    {'a': 2, 'b': 2, 'c': 4}
    """
    parts = [re.fullmatch(r"([^:\s]+)(?::([1-9]\d*))?", part.strip()) for part in text.split(",")]
    given = {part[1]: part[2] for part in parts if part}
    ranks = {host: int(number) for host, number in given.items() if number}
    shared = len(given) - len(ranks)
    left = (workers or 0) - sum(ranks.values()) if shared or workers else 0
    if len(given) < len(parts) or (left % shared or left < shared if shared else left):
        what = f"{text!r} does not name different hosts with {workers or 'a number of'} ranks in all"
        raise refused("--hosts", what, "write --hosts a,b or a:4,b:4, with -n the ranks of all of them")
    return {host: ranks.get(host) or left // shared for host in given}


def _slurm(workers: int | None, environment: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    """Slots of each node of an allocation, and options of a step beside its nodes.

    A slot is a GPU; without GPUs it is one of the allocation's tasks, or a core if there are more ranks than tasks.
    With `--exact` and `--mem=0` a step takes only what it asks for, and the groups run side by side.
    """

    def show(*words: str) -> str:
        shown = subprocess.run(["scontrol", "show", *words], capture_output=True, text=True, env=dict(environment))
        if shown.returncode:
            raise LaunchError(f"Slurm does not describe the allocation: {shown.stderr.strip()}")
        return shown.stdout

    def by_node(text: str) -> dict[str, int]:  # such as 4(x2),1
        runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        return dict(zip(nodes, (int(number) for number, times in runs for _ in range(int(times or 1))), strict=True))

    nodes = show("hostnames", environment["SLURM_JOB_NODELIST"]).split()
    cores, slots = by_node(environment["SLURM_JOB_CPUS_PER_NODE"]), by_node(environment["SLURM_TASKS_PER_NODE"])
    job = show("job", "--details", environment["SLURM_JOB_ID"])
    gpus = dict.fromkeys(nodes, 0)
    for names, resources in re.findall(r"^\s+Nodes=(\S+) .*\bGRES=(\S*)", job, re.MULTILINE):
        for number in re.findall(r"\bgpu(?::[^:(,]+)?:(\d+)", resources):  # gpu:4(IDX:0-3), gpu:a100:4(IDX:0-3)
            for node in show("hostnames", names).split():
                gpus[node] += int(number)
    if any(gpus.values()):
        slots = {node: min(cores[node], gpus[node]) for node in nodes}
    elif (workers or 0) > sum(slots.values()):
        slots = cores
    if workers is not None and workers > (held := sum(slots.values())):
        what = f"{workers} ranks are more than the {held} that the allocation has cores and GPUs for"
        raise refused("-n", what, f"ask for at most {held}, or request a larger allocation")
    options = ["--exact", f"--cpus-per-task={min(cores[node] // slots[node] for node in nodes if slots[node])}"]
    options += ["--mem=0"] + (["--gpus-per-task=1"] if any(gpus.values()) else [])
    return slots, [*options, f"--immediate={_QUEUE_SECONDS}", "--kill-on-bad-exit=1", "--input=none"]
