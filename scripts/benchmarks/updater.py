"""Time that kilobatch's updater adds to a bare Chainer loop at the same work.

    .venv/bin/python scripts/benchmarks/updater.py
    .venv/bin/python scripts/benchmarks/updater.py --cases digits --ranks 2 --rounds 9 --updates 20 --json F

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

import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import timing
from timing import CLOCKS, Replay, head, medians_of_turns, middle_and_range, ratios, row

from trainers.runs.mpi_ranks import launched_ranks

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
LOOPS = ("updater", "noise", "bare", "plain norm")
RATIOS = (("updater", "bare"), ("noise", "updater"), ("bare", "plain norm"))
SAME_WEIGHTS = 1e-5  # after one update in float32; gradients are divided in another order


def loops_of(prepared: Any, shares: list[Any], communicator: Any) -> dict[str, tuple[Any, Callable[[], None]]]:
    """Each loop's model and the function that does one update of it."""
    from recipes.planning.cluster import GradientExchange
    from trainers.models.batch_norm import NormGroups
    from trainers.training.build import build, build_exchange
    from trainers.training.updater import RecipeUpdater

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
    from recipes.planning.rates import learning_rate_at

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


def measure(case: str, world: Any, *, rounds: int, updates: int, clock: str) -> dict[str, Any]:
    """Times of one case on the ranks that were launched; all of them call this together."""
    import chainer
    import chainermn
    import numpy as np

    from trainers.launch.request import TrainRequest, prepare

    recipe, overrides = CASES[case]
    prepared = prepare(TrainRequest(recipe=recipe, overrides=overrides), workers=world.size)
    assert all(planned.division.team_size == 1 for planned in prepared.plan.segments), "the bare loop has no teams"
    shares = timing.load_shares(prepared, world.rank, updates)
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
        weights = [dict(loops[name][0].namedparams()) for name in ("updater", "bare")]
        difference = max(float(np.abs(weights[0][path].array - weights[1][path].array).max()) for path in weights[0])
        if difference > SAME_WEIGHTS:
            raise RuntimeError(f"updater and bare loop differ by {difference} in a weight after one update")
        calls = {name: partial(seconds_of, update) for name, (_, update) in loops.items()}
        medians = medians_of_turns(calls, rounds=rounds, turns=updates)
    return {
        "case": case,
        "command": " ".join(["kilobatch train", recipe, *(f"--set '{o}'" for o in overrides)]),
        "ranks": world.size,
        "threads_per_rank": int(os.environ["OMP_NUM_THREADS"]),
        "clock": clock,
        "micro_batches": len(shares[0].micro_batches),
        "micro_batch_size": shares[0].micro_batches[0].part.size,
        "global_batch_size": shares[0].segment.global_batch_size,
        "updates_per_round": updates,
        "weight_difference": difference,
        "seconds": medians,
        **{_over(one, other): ratios(medians[one], medians[other]) for one, other in RATIOS},
    }


def _over(one: str, other: str) -> str:
    return f"{one}_over_{other}".replace(" ", "_")


def table_line(figures: dict[str, Any]) -> str:
    times = [f"{1000 * statistics.median(figures['seconds'][name]):.1f}" for name in LOOPS]
    added = [[100 * (value - 1) for value in figures[_over(*pair)]] for pair in RATIOS]
    work = f"{figures['micro_batches']} x {figures['micro_batch_size']}"
    return row([figures["case"], figures["ranks"], work, *times, *(middle_and_range(each, "+.2f") for each in added)])


def main() -> None:
    """Measure every case on every number of ranks, or run as one of the ranks."""
    parser = timing.parser_of(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="what to train; all by default")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="numbers of ranks, one after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=6, help="turns of a round")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()

    def measure_cases(world: Any) -> list[dict[str, Any]]:
        return [
            measure(case, world, rounds=options.rounds, updates=options.updates, clock=options.clock)
            for case in options.cases
        ]

    if launched_ranks() is not None:
        return timing.as_rank(measure_cases, options.json)
    adds = [f"{name} adds, %" for name in ("updater", "noise", "groups")]
    print(head(["case", "ranks", "micro-batches", *(f"{name} ms" for name in LOOPS), *adds]), flush=True)
    results = []
    for case in options.cases:
        for ranks in options.ranks:
            results += timing.on_ranks(__file__, ranks, [*sys.argv[1:], "--cases", case])
            print(table_line(results[-1]), flush=True)
    timing.write_json(options.json, results)


if __name__ == "__main__":
    main()
