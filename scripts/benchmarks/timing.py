"""Shared by the benchmarks: options, turns, loaded micro-batches, MPI ranks, tables in Markdown, files of figures."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainers.runs.mpi_ranks import find_mpiexec, limit_threads

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser with a module's docstring as help, and the option --json, which all benchmarks have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures to this file")
    return parser


def write_json(path: Path | None, figures: Any) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def in_turns(names: Sequence[str], number: int) -> list[str]:
    """The names in the order of turn `number`: another one is first each time.

    >>> [in_turns("abc", number) for number in (0, 1, 5)]
    [['a', 'b', 'c'], ['b', 'c', 'a'], ['c', 'a', 'b']]
    """
    first = number % len(names)
    return [*names[first:], *names[:first]]


def medians_of_turns(
    calls: Mapping[str, Callable[[], float]], *, rounds: int, turns: int = 1
) -> dict[str, list[float]]:
    """For each name the medians of what its call returns in the `turns` of a round; another one is first each turn."""
    names = [*calls]
    medians: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        values: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(turns):
            for name in in_turns(names, number * turns + turn):
                values[name].append(calls[name]())
        for name in names:
            medians[name].append(statistics.median(values[name]))
    return medians


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def middle_and_range(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and in brackets the smallest and the largest value.

    >>> middle_and_range([3.0, 1.0, 2.0])
    '2.00 (1.00 to 3.00)'
    """
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def head(cells: Sequence[str]) -> str:
    return f"{row(cells)}\n{'|---' * len(cells)}|"


class Replay:
    """An iterator for the updater that repeats the same loaded shares of updates."""

    def __init__(self, shares: list[Any]) -> None:
        self._shares = shares
        self._turn = 0

    def next(self) -> Any:
        self._turn += 1
        return self.again()

    def again(self) -> Any:
        """The same share: an update that overflowed is done again."""
        share = self._shares[(self._turn - 1) % len(self._shares)]
        return replace(share, micro_batches=iter(share.micro_batches))


def load_shares(prepared: Any, rank: int, num_updates: int) -> list[Any]:
    """A rank's share of the first updates of a plan, loaded into memory."""
    from recipes.planning.stream import Stream
    from trainers.datasets.loader import StreamIterator
    from trainers.training.build import build

    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train, repeats=recipe.stream.repeats)
    load = build(recipe, dataset).load_train
    iterator = StreamIterator(plan=prepared.plan, rank=rank, stream=stream, load=load)
    shares = [iterator.next() for _ in range(min(num_updates, prepared.plan.timeline.num_updates))]
    return [replace(share, micro_batches=list(share.micro_batches)) for share in shares]


def updater_of(prepared: Any, parts: Any, iterator: Any, world: Any) -> Any:
    """The `RecipeUpdater` of a prepared run, with the norm groups and the exchange of its plan."""
    from trainers.communicators.tree_sum import TreeSum
    from trainers.models.batch_norm import NormGroups
    from trainers.training.build import build_exchange
    from trainers.training.updater import RecipeUpdater

    plan = prepared.plan
    groups = NormGroups(prepared.opened.recipe.evaluation, TreeSum(world.Dup()) if plan.exact else None)
    groups.install(parts.model)
    return RecipeUpdater(
        {"main": iterator},
        parts.optimizer,
        loss=parts.loss,
        plan=plan,
        exchange=build_exchange(plan.cluster.exchange, parts, world, exact=plan.exact),
        mpi=world,
        norm_groups=groups,
    )


def on_ranks(script: str, ranks: int, words: Sequence[object]) -> Any:
    """Start a script on MPI ranks with these options and --json; returns the figures that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [find_mpiexec(), "-n", ranks, sys.executable, script, *words, "--json", file]
        subprocess.run(list(map(str, command)), check=True)
        return json.loads(file.read_text(encoding="utf-8"))


def as_rank(measure: Callable[[Any], Any], file: Path | None, *, threads: int | None = None) -> None:
    """Call `measure(world)` on all ranks that were launched together; rank 0 writes the figures.

    Args:
        threads: of BLAS on each rank; None: cores divided by ranks.
    """
    limit_threads(threads=threads)  # before NumPy is imported
    import trainers.compat  # noqa: F401  isort: skip
    from mpi4py import MPI

    from trainers.runs.errors import abort_on_exception

    abort_on_exception(MPI.COMM_WORLD.rank)
    figures = measure(MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        write_json(file, figures)
