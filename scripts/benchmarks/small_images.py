"""Whole updates on small images, from bytes to moved weights, beside a loop written for PyTorch alone.

    .venv/bin/python scripts/benchmarks/small_images.py
    .venv/bin/python scripts/benchmarks/small_images.py --batches 1024 --rounds 9 --json F

`fashion/simple_cnn`, a CNN with two convolutions, on Fashion-MNIST, one process and one thread:

    exact           an update of `kilobatch train` as it is typed, with its loading; the bits of any number of ranks
    fast            the same with `--fast`
    pytorch         indexes a uint8 tensor, normalises, forward, loss, backward, SGD's step: a short loop,
                    without a DataLoader, sample by sample work or anything written to disk
    channels_last   the same with channels last in memory

All begin with the same weights and take the same samples at the same rate; their losses of the first two updates
are compared. They take turns update by update. A round is `--updates` turns; its figure is the median time of an update
over its turns, and its ratio that of two medians of the same round. The table has samples a second by the median over
the rounds, and ratios above 1 where ours is faster, with the smallest and the largest.

Needs PyTorch, and the data: `kilobatch data get fashion_mnist`. Wall times mean something on an otherwise idle machine
only; `--clock cpu` counts processor time instead.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import timing
from timing import CLOCKS, head, medians_of_turns, middle_and_range, ratios, row

from trainers.runs.mpi_ranks import limit_threads

RECIPE = "fashion/simple_cnn"
OURS, THEIRS = ("exact", "fast"), ("pytorch", "channels_last")


def our_update(mode: str, batch: int) -> tuple[Callable[[], float], Any]:
    """A function that does one update and returns its loss, and what it was built of."""
    from mpi4py import MPI

    from recipes.planning.stream import Stream
    from trainers.datasets.loader import StreamIterator
    from trainers.launch.request import TrainRequest, prepare
    from trainers.training.build import build

    world, exact = MPI.COMM_SELF, mode == "exact"
    request = TrainRequest(recipe=RECIPE, overrides=(f"batch.global={batch}", "epochs=1000"), exact=exact)
    prepared = prepare(request, workers=1)
    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    parts = build(recipe, dataset)
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train)
    iterator = StreamIterator(plan=prepared.plan, rank=0, stream=stream, load=parts.load_train)
    updater = timing.updater_of(prepared, parts, iterator, world)

    def update() -> float:
        updater.update()
        return updater.record.loss

    return update, (parts, stream, recipe)


def their_update(mode: str, batch: int, built: Any) -> Callable[[], float]:
    """The same update by PyTorch alone, from the same weights and on the same samples."""
    import numpy as np
    import torch
    from torch import nn

    parts, stream, recipe = built
    order = torch.channels_last if mode == "channels_last" else torch.contiguous_format
    arrays = [torch.from_numpy(parameter.array.copy()) for _, parameter in sorted(parts.model.namedparams())]
    (W1, b1, W2, b2, W4, b4, W3, b3), samples = arrays, parts.load_train.samples  # conv1, conv2, fc, hidden
    layers = nn.Sequential(
        nn.Conv2d(1, len(b1), 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(len(b1), len(b2), 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(W3.shape[1], len(b3)),
        nn.ReLU(),
        nn.Linear(W4.shape[1], len(b4)),
    ).to(memory_format=order)
    for number, W, b in ((0, W1, b1), (3, W2, b2), (7, W3, b3), (9, W4, b4)):
        layers[number].weight.data.copy_(W)
        layers[number].bias.data.copy_(b)
    optimizer = torch.optim.SGD(layers.parameters(), lr=recipe.learning_rate.reference, momentum=0.9)
    indices = np.arange(len(samples))
    images = torch.from_numpy(np.stack([samples[index][0] for index in indices])).permute(0, 3, 1, 2)
    labels = torch.from_numpy(np.array([samples[index][1] for index in indices]))
    shift, scale = (float(each[0]) for each in parts.load_train.pipeline.finish.shift_and_scale(1))
    done = 0

    def update() -> float:
        nonlocal done
        chosen = torch.from_numpy(np.asarray(stream.samples(done * batch, batch)[1]))
        done += 1
        x = images[chosen].float().sub_(shift).div_(scale).contiguous(memory_format=order)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(layers(x), labels[chosen])
        loss.backward()
        optimizer.step()
        return loss.item()

    return update


def measure(batch: int, *, rounds: int, updates: int, clock: str) -> dict[str, Any]:
    """Times of one batch.

    Raises:
        SystemExit: the losses of the first two updates differ, so the loops do not do the same work.
    """
    import chainer
    import torch

    torch.set_num_threads(1)
    now, made = CLOCKS[clock], {mode: our_update(mode, batch) for mode in OURS}
    loops = {mode: update for mode, (update, _) in made.items()}
    loops |= {mode: their_update(mode, batch, made["exact"][1]) for mode in THEIRS}

    def seconds_of(update: Callable[[], float]) -> float:
        began = now()
        update()
        return now() - began

    with chainer.using_config("train", True):
        losses = {mode: [update(), update()] for mode, update in loops.items()}
        if any(abs(a - b) > 1e-3 * b for each in losses.values() for a, b in zip(each, losses["pytorch"], strict=True)):
            raise SystemExit(f"the loops do not do the same work: losses of the first two updates are {losses}")
        medians = medians_of_turns({m: partial(seconds_of, u) for m, u in loops.items()}, rounds=rounds, turns=updates)
    beside = {f"{ours}_over_{theirs}": ratios(medians[theirs], medians[ours]) for ours in OURS for theirs in THEIRS}
    return {"batch": batch, "clock": clock, "torch": torch.__version__, "seconds": medians, "times_as_fast": beside}


def table_line(figures: dict[str, Any]) -> str:
    batch, seconds = figures["batch"], figures["seconds"]
    rates = [f"{batch / statistics.median(seconds[mode]):,.0f}" for mode in (*OURS, *THEIRS)]
    return row([f"{batch:,}", *rates, *map(middle_and_range, figures["times_as_fast"].values())])


def main() -> None:
    """Measure every batch."""
    parser = timing.parser_of(__doc__)
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 1024, 4096], help="global batches")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=4, help="turns of a round")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    limit_threads(threads=1)  # before NumPy is imported
    import trainers.compat  # noqa: F401  isort: skip
    from trainers import kernels

    kernels.settle()
    ratio_names = [f"{ours} / {theirs}" for ours in OURS for theirs in THEIRS]
    print(head(["batch", *(f"{mode}, samples/s" for mode in (*OURS, *THEIRS)), *ratio_names]))
    results = []
    for batch in options.batches:
        results.append(measure(batch, rounds=options.rounds, updates=options.updates, clock=options.clock))
        print(table_line(results[-1]), flush=True)
    timing.write_json(options.json, results)


if __name__ == "__main__":
    main()
