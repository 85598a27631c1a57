"""What equal bits on any number of ranks cost: an update in exact mode against one with `--fast`.

    .venv/bin/python scripts/benchmarks/exact.py
    .venv/bin/python scripts/benchmarks/exact.py --cases digits --ranks 2 --rounds 9 --updates 8 --json F

    KILOBATCH_KERNELS=torch KILOBATCH_THREADS=2 .venv/bin/python scripts/benchmarks/exact.py --ranks 1

Two updaters train the same model from the same weights on the same samples at the same rates, on one thread a rank
unless KILOBATCH_THREADS has more:

    fast        sums by the communicator that `Auto` chooses, beside backward; a team may share a norm group
    exact       the default of `kilobatch train`: the bits do not depend on the number of ranks

Images are loaded before. The two take turns update by update in the same processes. A round is `--updates` turns; its
figure is the median time of an update over its turns, and its ratio that of two medians of the same round. The table
has the median over the rounds and, in brackets, the smallest and the largest.

The script starts itself under mpiexec for each number of ranks. Wall times mean something on an otherwise idle machine
only. `--clock cpu` counts rank 0's processor time instead; on several ranks it contains MPI's busy waiting.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import timing
from timing import CLOCKS, Replay, head, medians_of_turns, middle_and_range, ratios, row

from trainers.runs.mpi_ranks import launched_ranks

_IMAGES = (
    "dataset=synthetic",
    "learning_rate.warmup=null",
    "epochs=1",
    "augmentation={train: [{kind: RandomCrop, size: 32, padding: 4}, {kind: Normalize, with: synthetic}], "
    "eval: [{kind: Resize, shorter: 32}, {kind: CenterCrop, size: 32}, {kind: Normalize, with: synthetic}]}",
)
CASES = {
    "digits": ("digits/large_batch", ()),
    "images": ("digits/large_batch", (*_IMAGES, "batch={global: 256, norm_span: 32}")),
    "images_192": ("digits/large_batch", (*_IMAGES, "batch={global: 192, norm_span: 32}")),  # six norm groups
    "resnet18": ("digits/large_batch", (*_IMAGES, "batch={global: 128, norm_span: 32}", "model={kind: ResNet18}")),
}
MODES = ("fast", "exact")


def updater(
    mode: str, case: str, world: Any, updates: int, size: int | None
) -> tuple[Callable[[], None], dict[str, int]]:
    """A function that does one update, and the sizes of its forwards."""
    from trainers.launch.request import TrainRequest, prepare
    from trainers.training.build import build

    recipe, overrides = CASES[case]
    request = TrainRequest(recipe=recipe, overrides=overrides, exact=mode == "exact", micro_batch_size=size)
    prepared = prepare(request, workers=world.size)
    parts = build(prepared.opened.recipe, prepared.opened.dataset)
    shares = timing.load_shares(prepared, world.rank, updates)
    updater = timing.updater_of(prepared, parts, Replay(shares), world)
    division = prepared.plan.segments[0].division
    sizes = {"micro_batches": division.num_micro_batches(0), "micro_batch_size": division.largest}
    return updater.update, sizes


def measure(case: str, world: Any, *, rounds: int, updates: int, clock: str, size: int | None) -> dict[str, Any]:
    """Times of one case on the ranks that were launched; all of them call this together."""
    import chainer

    now, made = CLOCKS[clock], {mode: updater(mode, case, world, updates, size) for mode in MODES}

    def seconds_of(update: Callable[[], None]) -> float:
        world.Barrier()
        began = now()
        update()
        world.Barrier()
        return now() - began

    with chainer.using_config("train", True):
        for update, _ in made.values():
            update()
            update()
        calls = {mode: partial(seconds_of, update) for mode, (update, _) in made.items()}
        medians = medians_of_turns(calls, rounds=rounds, turns=updates)
    return {
        "case": case,
        "ranks": world.size,
        "clock": clock,
        "sizes": {mode: sizes for mode, (_, sizes) in made.items()},
        "seconds": medians,
        "exact_over_fast": ratios(medians["exact"], medians["fast"]),
    }


def table_line(figures: dict[str, Any]) -> str:
    times = [f"{1000 * statistics.median(figures['seconds'][mode]):.1f}" for mode in MODES]
    work = [f"{sizes['micro_batches']} x {sizes['micro_batch_size']}" for sizes in figures["sizes"].values()]
    return row([figures["case"], figures["ranks"], *work, *times, middle_and_range(figures["exact_over_fast"])])


def main() -> None:
    """Measure every case on every number of ranks, or run as one of the ranks."""
    parser = timing.parser_of(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["digits", "images"], help="what to train")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="numbers of ranks, one after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=6, help="turns of a round")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--micro-batch-size", type=int, help="samples of a forward at most; left out: `auto`")
    options = parser.parse_args()

    def measure_cases(world: Any) -> list[dict[str, Any]]:
        return [
            measure(
                case,
                world,
                rounds=options.rounds,
                updates=options.updates,
                clock=options.clock,
                size=options.micro_batch_size,
            )
            for case in options.cases
        ]

    if launched_ranks() is not None:
        return timing.as_rank(measure_cases, options.json, threads=1)
    print(head(["case", "ranks", *(f"{mode} forwards" for mode in MODES), *(f"{mode} ms" for mode in MODES), "ratio"]))
    results = []
    for case in options.cases:
        for ranks in options.ranks:
            results += timing.on_ranks(__file__, ranks, [*sys.argv[1:], "--cases", case])
            print(table_line(results[-1]), flush=True)
    timing.write_json(options.json, results)


if __name__ == "__main__":
    main()
