"""Rules on the batch, its ramp, and the length of a run in updates and epochs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recipes.lint.case import Case, Fault
from recipes.planning.looked_at import looked_at
from recipes.planning.rates import LARGEST_SHARE, learning_rate_at, momentum_at
from recipes.planning.timeline import timeline_of
from recipes.schema.positions import written_in_updates

_LARGEST_MOMENTUM = 0.9
_FEWEST = 100  # updates of a run


def batch_over_tenth(case: Case) -> Iterator[Fault]:
    """A batch of more than about a tenth of the training set.

    If a batch is a good part of all samples, the noise of the gradient falls faster than the rule assumes, and an epoch
    has only a few updates.

    Way out: a smaller batch, or more data.
    Source: Smith et al. 2017, arXiv 1711.00489, noise scale rate (N / B - 1), B at most about N / 10; their largest is
        5,120 of 50,000, which is the bound here.
    Fires:
        dataset: digits
        batch: {global: 154, norm_span: 11}
        augmentation: {train: [], eval: []}
        evaluation: {norm_momentum: {keep: 0.8}}
        learning_rate: {per: 32, reference: 0.05}
    Quiet:
        dataset: digits
        batch: {global: 153, norm_span: 9}
        augmentation: {train: [], eval: []}
        evaluation: {norm_momentum: {keep: 0.8}}
        learning_rate: {per: 32, reference: 0.05}
    """
    num_train = case.opened.dataset.num_train
    if case.largest_batch > LARGEST_SHARE * num_train:
        yield Fault(
            keys=("batch.global", "dataset"),
            what=f"{case.largest_batch:,} of {num_train:,} training samples in one update",
            way_out=f"write at most {_batch_within(int(LARGEST_SHARE * num_train), case):,}",
        )


def _batch_within(most: int, case: Case) -> int:
    """The largest multiple of the largest `norm_span` up to `most`, or `most` if there is none."""
    return most - most % max(case.recipe.batch.norm_span.sizes) or most


def few_updates(case: Case) -> Iterator[Fault]:
    """A run of fewer than 100 updates that begins without trained weights.

    So few steps do not train a network, however they are scaled. At a fixed number of epochs a larger batch makes
    fewer of them. A recipe with `init` may need no more.

    Way out: a smaller batch, or more epochs.
    Source: Fashion-MNIST, 5 epochs, a small ResNet: batch 4,096 makes 74 updates and reaches 68.7 % with linear scaling
        and warmup, batch 128 makes 2,345 and reaches 90.6 % (measured); the fewest of the library on ImageNet: 1,341.
    Fires:
        dataset: digits
        epochs: 2
        batch: {global: 64, norm_span: 32}
        augmentation: {train: [], eval: []}
        evaluation: {norm_momentum: {keep: 0.8}}
        learning_rate: {per: 32, reference: 0.05, schedule: {kind: Cosine}, warmup: null}
    Quiet:
        dataset: digits
        epochs: 5
        batch: {global: 64, norm_span: 32}
        augmentation: {train: [], eval: []}
        evaluation: {norm_momentum: {keep: 0.8}}
        learning_rate: {per: 32, reference: 0.05, schedule: {kind: Cosine}, warmup: null}
    """
    updates = timeline_of(case.recipe, case.opened.dataset).num_updates
    if updates < _FEWEST and case.recipe.init is None:
        fits = _batch_within(int(case.recipe.epochs * case.opened.dataset.num_train / _FEWEST), case)
        yield Fault(
            keys=("batch.global", "epochs", "dataset"),
            what=f"{updates} updates in all",
            way_out=f"write a batch of at most {fits:,}, or more epochs" if fits else "write more epochs",
        )


def updates_while_ramping(case: Case) -> Iterator[Fault]:
    """A position or a duration in updates while the batch ramps.

    The number of samples in 500 updates depends on the ramp, so a change of the ramp also changes the schedule.

    Way out: epochs (`30ep`) or samples (`1.5Msp`).
    Source: arithmetic; a position in samples or epochs does not depend on the batch.
    Fires:
        batch: {global: [{from: 0, size: 4096}, {from: 30, size: 8192}]}
        evaluation: {norm_momentum: {per: 8192}}
        learning_rate: {warmup: {epochs: 1000up}}
    Quiet:
        learning_rate: {warmup: {epochs: 1000up}}
    """
    if not case.ramps:
        return
    for path, text in written_in_updates(case.written):
        what = f"{text} while the batch moves"
        yield Fault(keys=(path, "batch.global"), what=what, way_out="write epochs or samples")


def double_buffering(case: Case) -> Iterator[Fault]:
    """Gradients one update late, with a batch that ramps up or a momentum above 0.9.

    A late gradient belongs to older weights. The longer the steps, the further the weights have moved: under a linear
    rule a growing batch lengthens the steps, and momentum multiplies them by 1 / (1 - m).

    Way out: `double_buffering: false`, or a constant batch and a momentum of at most 0.9.
    Source: Suzuki 2018, ChainerMN 1.3: with a ramp, double buffering and float16 on the wire top-1 75.8 % against
        76.4 %; how momentum multiplies a step: Smith et al. 2017, arXiv 1711.00489.
    Fires:
        optimizer: {momentum: 0.91}
        updater: {double_buffering: true}
    Quiet:
        updater: {double_buffering: true}
    """
    if not case.recipe.updater.double_buffering:
        return
    sizes = case.recipe.batch.global_.sizes
    momentum = momentum_at(case.recipe, 0.0) or 0.0
    if any(after > before for before, after in zip(sizes, sizes[1:], strict=False)):
        what = f"gradients one update late while the batch grows from {sizes[0]:,} to {case.largest_batch:,}"
        yield Fault(keys=("updater.double_buffering", "batch.global"), what=what, way_out="keep the batch constant")
    if momentum > _LARGEST_MOMENTUM:
        what = f"gradients one update late with momentum {momentum:g}"
        keys = ("updater.double_buffering", "optimizer.momentum", "schedules.momentum")
        yield Fault(keys=keys, what=what, way_out="write momentum 0.9")


def idle_after_end(case: Case) -> Iterator[Fault]:
    """A weight average or local steps that begin at the end of the run or later, local steps whose first average would
    come after it, or a schedule read only once.

    They do nothing: the average stays equal to the weights, every update averages the weights of the replicas, or none
    does, and the rate stays what it was in the first update, which does no harm to a constant schedule without a
    warmup. A recipe that extends another and shortens the run inherits such positions.

    Way out: a position within the run, such as `0.5run`, fewer updates, or remove the key; `every: update`.
    Source: arithmetic; a run has no update at or after its end.
    Fires:
        weight_average: {keep: 0.9, per: 8192, start: 90}
    Quiet:
        weight_average: {keep: 0.9, per: 8192, start: 89}
    """
    recipe = case.recipe
    average, local = recipe.weight_average, recipe.updater.local_steps
    positions = {
        "learning_rate.every": (recipe.learning_rate.every, "the schedule is read once"),
        "weight_average.start": (getattr(average, "start", 0.0), "the average always equals the weights"),
        "updater.local_steps.from": (getattr(local, "from_", 0.0), "the weights are averaged after every update"),
    }
    less = f"write less, such as {0.5 * recipe.epochs:.3g}, or remove it"
    for key, (position, effect) in positions.items():
        if position == "update" or position < recipe.epochs:
            continue
        if key != "learning_rate.every" or _moves_within(case):
            yield Fault(
                keys=(key, "epochs"),
                what=f"{key} is {position:g} in a run of {recipe.epochs:g} epochs: {effect}",
                way_out="write `every: update`" if key == "learning_rate.every" else less,
            )
    if local is not None and local.from_ < recipe.epochs:
        timeline = timeline_of(recipe, case.opened.dataset)
        alone, updates = timeline.first_update_at(local.from_), timeline.num_updates
        if alone // local.every == updates // local.every and updates - alone > 1:
            what = f"no multiple of {local.every:,} after update {alone:,} of {updates:,}: none averages weights later"
            yield Fault(
                keys=("updater.local_steps.every", "epochs"),
                what=what,
                way_out=f"write at most {updates - alone:,}, or remove local_steps",
            )


def _moves_within(case: Case) -> bool:
    """Whether a rate that is read in every update would differ anywhere from that of the recipe."""
    recipe = case.recipe
    read = replace(recipe, learning_rate=replace(recipe.learning_rate, every="update"))
    epochs = looked_at(read, case.opened.dataset)
    return any(learning_rate_at(read, epoch) != learning_rate_at(recipe, epoch) for epoch in epochs)
