"""Time that kilobatch's updater adds to a bare Chainer loop at the same work.

    .venv/bin/python scripts/bench_updater.py
    .venv/bin/python scripts/bench_updater.py --cases digits --ranks 2 --rounds 9 --updates 20 --json F

Four loops train the same model from the same weights on the same loaded micro-batches at the same rates:

    updater     RecipeUpdater.update
    noise       the same with `--noise-scale`: what is between it and `updater` is the price of the gradients' norms
    bare        forward, backward, ChainerMN's naive all-reduce, optimizer, in ten lines; norm groups as in the updater,
                whose running statistics move once an update
    plain norm  the bare loop with Chainer's own batch normalisation over each micro-batch: other numbers, not the same
                work; what is between it and `bare` is the price of norm groups

Images are loaded before, so that no loop waits for input. The loops take turns update by update in the same processes,
the first of the four another one each time. A round is `--updates` turns; its figure is the median time of an update
over its turns, and its ratio that of two medians of the same round. The table has the median over the rounds and, in
brackets, the smallest and the largest. Before the first round the updater and the bare loop are compared: weights that
differ after one update would mean that they do not do the same work.

The script starts itself under mpiexec for each number of ranks and divides the cores between them as `kilobatch train`
does. Wall times mean something on an otherwise idle machine only: look at `uptime` first. `--clock cpu` counts rank 0's
processor time instead, which other processes hardly change; on several ranks it contains MPI's busy waiting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainers.launch import find_mpiexec, launched_ranks, limit_threads

CASES = {
    "digits": ("digits/large_batch", ()),
    "resnet50": (
        "goyal2017",
        (
            "dataset=synthetic",
            "batch={global: 16, norm_span: 8}",
            "learning_rate.warmup=null",
            "augmentation={train: [{kind: Resize, shorter: 64}], eval: [{kind: Resize, shorter: 64}]}",
        ),
    ),
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
LOOPS = ("updater", "noise", "bare", "plain norm")
RATIOS = (("updater", "bare"), ("noise", "updater"), ("bare", "plain_norm"))
SAME_WEIGHTS = 1e-5  # after one update in float32; gradients are divided in another order


class Replay:
    """An iterator for the updater that gives the same loaded shares again and again."""

    def __init__(self, shares: list[Any]) -> None:
        self._shares = shares
        self._turn = 0

    def next(self) -> Any:
        """The next share; its micro-batches are loaded."""
        from dataclasses import replace

        share = self._shares[self._turn % len(self._shares)]
        self._turn += 1
        return replace(share, micro_batches=iter(share.micro_batches))


def load_shares(prepared: Any, rank: int, num_updates: int) -> list[Any]:
    """This rank's share of the first updates of a plan, loaded into memory."""
    from dataclasses import replace

    from recipes.planning.stream import Stream
    from trainers.build import build
    from trainers.stream_iterator import StreamIterator

    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train, repeats=recipe.stream.repeats)
    load = build(recipe, dataset).load_train
    iterator = StreamIterator(plan=prepared.plan, rank=rank, stream=stream, load=load)
    shares = [iterator.next() for _ in range(min(num_updates, prepared.plan.timeline.num_updates))]
    return [replace(share, micro_batches=list(share.micro_batches)) for share in shares]


def loops_of(prepared: Any, shares: list[Any], communicator: Any) -> dict[str, tuple[Any, Callable[[], None]]]:
    """Each loop's model and the function that does one update of it."""
    from recipes.planning.cluster import GradientExchange
    from trainers.build import build, build_exchange
    from trainers.norm_groups import NormGroups
    from trainers.updater import RecipeUpdater

    recipe, plan = prepared.opened.recipe, prepared.plan
    loops = {}
    for name in LOOPS:
        parts = build(recipe, prepared.opened.dataset)
        groups = NormGroups(recipe.evaluation)
        if name != "plain norm":
            groups.install(parts.model)
        rate_attribute = recipe.optimizer.rate_attribute
        if name in ("updater", "noise"):
            update = RecipeUpdater(
                {"main": Replay(shares)},
                parts.optimizer,
                loss=parts.loss,
                plan=plan,
                exchange=build_exchange(GradientExchange(), parts, communicator.mpi_comm),
                mpi=communicator.mpi_comm,
                norm_groups=groups,
                measure_noise=name == "noise",
            ).update
        else:
            update = bare_loop(parts, groups, Replay(shares), plan, communicator, rate_attribute)
        loops[name] = (parts.model, update)
    return loops


def bare_loop(
    parts: Any, groups: Any, iterator: Replay, plan: Any, communicator: Any, rate_attribute: str
) -> Callable[[], None]:
    """One update as written by hand with Chainer and ChainerMN."""
    from recipes.rates import learning_rate_at

    model, optimizer = parts.model, parts.optimizer
    rates: dict[int, float] = {}

    def update() -> None:
        share = iterator.next()
        batch = share.segment.global_batch_size
        if share.update not in rates:  # known beforehand in a loop written by hand
            rates[share.update] = learning_rate_at(plan.recipe, plan.timeline.epoch_at(share.update))
        model.cleargrads()
        for micro_batch in share.micro_batches:
            groups.num_groups = micro_batch.part.num_groups
            loss = parts.loss(model(micro_batch.images_NCHW), micro_batch.targets)
            (loss * (micro_batch.part.size * communicator.size / batch)).backward()
        communicator.multi_node_mean_grad(model, zero_fill=True)
        groups.update_running_statistics(communicator.mpi_comm, batch)
        setattr(optimizer, rate_attribute, rates[share.update])
        optimizer.update()

    return update


def measure(case: str, *, rounds: int, updates: int, clock: str) -> dict[str, Any]:
    """Times of one case on the ranks that were launched; all of them call this together."""
    threads = limit_threads()
    import chainer
    import chainermn
    import numpy as np
    from mpi4py import MPI

    from trainers.faults import abort_on_exception
    from trainers.request import TrainRequest, prepare

    world = MPI.COMM_WORLD
    abort_on_exception(world.rank)
    recipe, overrides = CASES[case]
    prepared = prepare(TrainRequest(recipe=recipe, overrides=overrides), workers=world.size)
    assert all(planned.division.team_size == 1 for planned in prepared.plan.segments), "the bare loop has no teams"
    shares = load_shares(prepared, world.rank, updates)
    loops = loops_of(prepared, shares, chainermn.create_communicator("naive", world))

    now = CLOCKS[clock]

    def seconds_of(update: Callable[[], None]) -> float:
        world.Barrier()
        began = now()
        update()
        world.Barrier()
        return now() - began

    with chainer.using_config("train", True):
        for _, update in loops.values():
            update()  # compiles, allocates, plans
        weights = [{path: p.array.copy() for path, p in loops[name][0].namedparams()} for name in ("updater", "bare")]
        difference = max(float(np.abs(weights[0][path] - weights[1][path]).max()) for path in weights[0])
        if difference > SAME_WEIGHTS:
            raise RuntimeError(f"updater and bare loop differ by {difference} in a weight after one update")
        medians = []
        for number in range(rounds):
            times: dict[str, list[float]] = {name: [] for name in LOOPS}
            for turn in range(updates):
                first = (number + turn) % len(LOOPS)
                for name in LOOPS[first:] + LOOPS[:first]:
                    times[name].append(seconds_of(loops[name][1]))
            medians.append({name: statistics.median(values) for name, values in times.items()})
    return {
        "case": case,
        "command": " ".join(["kilobatch train", recipe, *(f"--set '{o}'" for o in overrides)]),
        "ranks": world.size,
        "threads_per_rank": threads,
        "clock": clock,
        "micro_batches": len(shares[0].micro_batches),
        "micro_batch_size": shares[0].micro_batches[0].part.size,
        "global_batch_size": shares[0].segment.global_batch_size,
        "updates_per_round": updates,
        "weight_difference": difference,
        "seconds": {name: [round_[name] for round_ in medians] for name in LOOPS},
        "updater_over_bare": [round_["updater"] / round_["bare"] for round_ in medians],
        "noise_over_updater": [round_["noise"] / round_["updater"] for round_ in medians],
        "bare_over_plain_norm": [round_["bare"] / round_["plain norm"] for round_ in medians],
    }


def measure_on_ranks(case: str, ranks: int, *, rounds: int, updates: int, clock: str) -> dict[str, Any]:
    """Start this script on MPI ranks for one case and read what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [find_mpiexec(), "-n", str(ranks), sys.executable, __file__, "--cases", case, "--json", str(file)]
        command += ["--rounds", str(rounds), "--updates", str(updates), "--clock", clock]
        subprocess.run(command, check=True)
        return json.loads(file.read_text(encoding="utf-8"))[0]


def table_line(found: dict[str, Any]) -> str:
    """A line of the table in Markdown."""
    times = [f"{1000 * statistics.median(found['seconds'][name]):.1f}" for name in LOOPS]
    ratios = [_percent(found[f"{one}_over_{other}"]) for one, other in RATIOS]
    work = f"{found['micro_batches']} x {found['micro_batch_size']}"
    return "| " + " | ".join([found["case"], str(found["ranks"]), work, *times, *ratios]) + " |"


def _percent(ratios: list[float]) -> str:
    middle, least, most = (100 * (value - 1) for value in (statistics.median(ratios), min(ratios), max(ratios)))
    return f"{middle:+.2f} % ({least:+.2f} to {most:+.2f})"


def main() -> None:
    """Measure every case on every number of ranks, or run as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="what to train; all by default")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="numbers of ranks, one after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=6, help="turns of a round")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures here, seconds by round")
    options = parser.parse_args()
    how = {"rounds": options.rounds, "updates": options.updates, "clock": options.clock}
    if launched_ranks() is not None:
        results = [measure(case, **how) for case in options.cases]
        from mpi4py import MPI

        leads = MPI.COMM_WORLD.rank == 0
    else:
        leads = True
        print(
            "| case | ranks | micro-batches | updater ms | noise ms | bare ms | plain norm ms "
            "| updater adds | noise adds | groups add |"
        )
        print("|---" * 10 + "|", flush=True)
        results = []
        for case in options.cases:
            for ranks in options.ranks:
                results.append(measure_on_ranks(case, ranks, **how))
                print(table_line(results[-1]), flush=True)
    if leads and options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
