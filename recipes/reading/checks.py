"""What contradicts between the parts of a recipe that was read: sizes of images, exchange of gradients, schedules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lr_schedules import Constant, CosineRestarts, Product
from lr_schedules.units import Schedule
from recipes.planning.looked_at import knots, looked_at
from recipes.planning.rates import learning_rate_at, momentum_key, optimizer_at
from recipes.reading.read import Path, Reading
from recipes.schema import Dataset, Recipe
from recipes.schema.image_size import IMAGE_SIZE, evaluated_size, image_sizes, keys_of_image_size, late_sizes
from recipes.schema.vocabulary import Unbuilt, metric_name

_MOVED = ("momentum", "weight_decay")  # keys of `schedules`
_MOST_RESTARTS = 100_000  # of a schedule in a run


def check_image_size(reading: Reading, recipe: Recipe) -> None:
    """Notes contradictions between `image_size`, the augmentations and a model that takes images of one size.

    `trainers.training.build` checks what the data and the model itself decide.
    """
    augmentation, end = recipe.augmentation, recipe.augmentation.end
    users = _users(augmentation.train, ("augmentation", "train"))
    if recipe.image_size is None:
        late = () if end is None else _users(end.train or (), ("augmentation", "end", "train"))
        for path in (*users, *late):
            what, way_out = "means the recipe's `image_size`, which is not there", "add `image_size: 224`"
            reading.refuse(path, what, way_out)
    elif not users:
        way_out = "write `size: image_size` into an entry of `augmentation.train`, or remove `image_size`"
        reading.refuse((IMAGE_SIZE,), "is used by no augmentation", way_out)
    for path in _users(augmentation.eval, ("augmentation", "eval")):
        what = "is the size of training images, which is not that of evaluation"
        reading.refuse(path, what, "write the number of pixels")
    if end is not None and (end.train is None or recipe.image_size is not None):
        late = late_sizes(recipe)
        for size, before in zip(late, image_sizes(recipe, known=True)[-len(late) :], strict=True):
            if None not in (size, before) and size != before:
                what = f"makes images of {size} pixels, where `augmentation.train` makes {before}"
                reading.refuse(("augmentation", "end"), what, "write `end.train` with that size")
                break
    trained_at, scored_at = {*image_sizes(recipe, known=True)}, evaluated_size(recipe, known=True)
    if getattr(recipe.model, "takes_one_size", False) and None not in trained_at | {scored_at} and len(trained_at) == 1:
        (side,) = trained_at
        if side != scored_at:
            what, way_out = other_size_in_evaluation(type(recipe.model).__name__, side, scored_at)
            reading.refuse(("augmentation", "eval"), what, way_out)


def other_size_in_evaluation(model: str, trained_at: int, scored_at: int) -> tuple[str, str]:
    """What is wrong with images of another size in evaluation, for a model that takes one size; and the way out."""
    sides = f"trained on {trained_at}x{trained_at} and scored on {scored_at}x{scored_at}"
    way_out = "give both augmentations one size, or choose a model that ends in a global average"
    return f"{model} takes images of one size, and would be {sides}", way_out


def _users(entries: Sequence[object], path: Path) -> list[Path]:
    """The places of augmentations' values that stand for the recipe's `image_size`."""
    return [(*path, index, key) for index, entry in enumerate(entries) for key in keys_of_image_size(entry)]


def check_updater(reading: Reading, recipe: Recipe) -> None:
    """Ways of exchanging gradients exclude each other, and optimizers that need the whole gradient."""
    updater, optimizer, path = recipe.updater, recipe.optimizer, ("updater", "power_sgd_rank")
    kind = type(optimizer).__name__
    if recipe.weight_average is not None and hasattr(optimizer, "evaluated"):
        what = f"{kind} has an average of its own, which is evaluated"
        reading.refuse(("weight_average",), what, "remove this, or choose another optimizer")
    if updater.local_steps is not None:
        path = ("updater", "local_steps")
        if not getattr(optimizer, "elementwise", not hasattr(optimizer, "update")):
            what = f"{kind} computes a layer's step from all of its gradient, which no worker has"
            reading.refuse(path, what, "choose an optimizer such as MomentumSGD, or remove this")
        if updater.power_sgd_rank is not None:
            what = "sends no gradients, which power_sgd_rank compresses"
            reading.refuse(path, what, "remove one of both")
        for key, has_it in (("weight_average", recipe.weight_average), ("optimizer", hasattr(optimizer, "evaluated"))):
            if has_it:
                what = "evaluates the mean over the workers, where this recipe evaluates another average"
                reading.refuse(path, what, f"remove it, or change `{key}`")
        batch, replicas = recipe.batch, updater.local_steps.replicas
        for start, size in zip(batch.global_.boundaries, batch.global_.sizes, strict=True):
            if size % (whole := replicas * (span := batch.norm_span(start))):
                what = f"a batch of {size} in norm groups of {span} cannot be shared evenly by {replicas} replicas"
                reading.refuse(path, what, f"take a multiple of {whole} samples, or smaller norm groups")
                break
    elif updater.power_sgd_rank is None:
        if updater.double_buffering and getattr(optimizer, "needs_group_gradients", False):
            way_out = "set it to false, or choose another optimizer"
            reading.refuse(("updater", "double_buffering"), f"{kind} sets its rate by the gradient it applies", way_out)
        return
    if updater.double_buffering:
        reading.refuse(path, "cannot be one update late", "remove it, or set `double_buffering: false`")
    if getattr(optimizer, "needs_group_gradients", False):
        reading.refuse(path, f"{kind} measures the gradients that this changes", "remove it, or take another optimizer")


def check_loss(reading: Reading, recipe: Recipe, dataset: Dataset) -> None:
    """A loss with `require_classes` is for as many classes as the data have."""
    if hasattr(recipe.loss, "require_classes"):
        try:
            recipe.loss.require_classes(dataset.num_classes)
        except ValueError as error:
            reading.refuse_error(error, type(recipe.loss), ("loss",))


def check_metrics(reading: Reading, recipe: Recipe, dataset: Dataset) -> None:
    """Metrics have names that no two share and no figure of kilobatch has, and may be for as many classes."""
    names = {"accuracy": None, "loss": None}
    for index, metric in enumerate(recipe.evaluation.metrics):
        if isinstance(metric, Unbuilt):  # own code, which only looking at a recipe does not open
            continue
        path, name = ("evaluation", "metrics", index), metric_name(metric)
        if not re.fullmatch("[a-z0-9_]{1,40}", name):
            reading.refuse(path, f"is called {name!r}", "call it by small letters, digits and _")
        elif name in names:
            what = f"is called {name}, and so is " + (
                f"`evaluation.metrics.{names[name]}`" if names[name] is not None else "a figure of every evaluation"
            )
            reading.refuse(path, what, "remove one, or give the class a `name`")
        names.setdefault(name, index)
        if hasattr(metric, "require_classes"):
            try:
                metric.require_classes(dataset.num_classes)
            except ValueError as error:
                reading.refuse_error(error, type(metric), path)
    if any(isinstance(metric, Unbuilt) for metric in recipe.evaluation.metrics):
        return
    goals = (recipe.stop_at and recipe.stop_at.metrics) or ()
    asked = {("evaluation", "best"): recipe.evaluation.best, **{("stop_at", "metrics", name): name for name in goals}}
    for path, name in asked.items():
        if name not in names:
            what, way_out = unknown_score(name, names)
            reading.refuse(path, what, way_out, at_key=path[0] == "stop_at")


def unknown_score(name: str, known: Iterable[str]) -> tuple[str, str]:
    """What is wrong with a score that an evaluation does not have, and the way out."""
    way_out = f"write one of {', '.join(known)}, or add a metric to `evaluation.metrics`"
    return f"{name!r} is no score of an evaluation", way_out


def check_extensions(reading: Reading, recipe: Recipe) -> None:
    """No two extensions write one file or folder of the run: the name in a component's `table`."""
    written: dict[str, int] = {}
    for index, component in enumerate(recipe.extensions):
        name = getattr(component, "table", None)
        if isinstance(name, str) and written.setdefault(name, index) != index:
            first, what = ("extensions", written[name]), f"writes {name}, and so does `extensions.{written[name]}`"
            reading.refuse_anew(("extensions", index), first, what, "give it another name, or remove it")


def check_schedules(reading: Reading, recipe: Recipe, dataset: Dataset) -> None:
    """Rate, momentum and weight decay must be numbers in their range at each update."""
    schedules = {("learning_rate", "schedule"): recipe.learning_rate.schedule}
    schedules |= {("schedules", key): getattr(recipe.schedules, key) for key in _MOVED}
    restarting = [path for path, schedule in schedules.items() if _restarts(schedule, recipe.epochs) > _MOST_RESTARTS]
    for path in restarting:
        what = f"begins anew more than {_MOST_RESTARTS:,} times in a run of {recipe.epochs:g} epochs"
        reading.refuse(path, what, "write a longer `first`")
    if restarting:
        return
    epochs = looked_at(recipe, dataset)
    _check_rate(reading, recipe, epochs)
    if not isinstance(recipe.optimizer, Unbuilt):
        _check_moved(reading, recipe, epochs)


def _restarts(schedule: Schedule | None, epochs: float) -> int:
    if isinstance(schedule, Product):
        return max(_restarts(factor, epochs) for factor in schedule.factors)
    return schedule.restarts(epochs) if isinstance(schedule, CosineRestarts) else 0


def _check_rate(reading: Reading, recipe: Recipe, epochs: Sequence[float]) -> None:
    """The rate is finite, never below 0, and above it at some time.

    An optimizer that divides by it needs it above 0 until it has started slowly.
    """
    optimizer, kind, path = recipe.optimizer, type(recipe.optimizer).__name__, ("learning_rate",)
    rates = {}
    for epoch in (*epochs, recipe.epochs):
        try:
            rates[epoch] = _rate_or_inf(recipe, epoch)
        except Exception as error:  # of a schedule or a warmup of the user's own
            what, key = f"fails at epoch {epoch:g}: {_in_words(error)}", _failing_key(recipe, epoch)
            reading.refuse((*path, key), what, "mend its class, or choose another kind")
            return
        if not math.isfinite(rates[epoch]):
            way_out = "make `reference` or the factors of its schedule smaller"
            reading.refuse(path, f"is not a finite number at epoch {epoch:g}", way_out)
            return
    for epoch in epochs[:: max(1, len(epochs) // 3)]:
        if (again := _rate_or_inf(recipe, epoch)) != rates[epoch]:
            what = f"is {rates[epoch]:g} at epoch {epoch:g}, and {again:g} when it is asked again"
            way_out = "let its schedule and warmup depend on the epoch alone: ranks and a resumed run ask them too"
            reading.refuse_anew(path, path, what, way_out)
            return
    warmup = recipe.learning_rate.warmup
    for key, part in (("schedule", recipe.learning_rate.schedule), ("warmup", warmup and warmup.shape)):
        given = next(
            (each for each in _given_by(part, epochs) if type(each).__name__ in ("bool", "bool_", "str")), None
        )
        if given is not None:
            reading.refuse_anew((*path, key), (*path, key), f"gives {given!r}, which is no number", "return a factor")
            return
    if (epoch := next((epoch for epoch in epochs if rates[epoch] < 0), None)) is not None:
        what = f"is {rates[epoch]:g} at epoch {epoch:g}, which trains uphill"
        reading.refuse(path, what, "let its schedule and warmup give factors of 0 or more")
        return
    if not any(rate > 0 for rate in rates.values()):
        # A run that is cut short may end before the rate rises.
        unread = replace(recipe, learning_rate=replace(recipe.learning_rate, every="update"))
        if not any(_rate_or_inf(unread, epoch) > 0 for epoch in (*epochs, recipe.epochs, *knots(unread))):
            reading.refuse(path, "is 0 from the first update to the last", "give its schedule a factor above 0")
            return
    if not hasattr(optimizer, "divides_by_rate"):
        return
    for epoch in epochs:
        if optimizer.divides_by_rate(epoch) and rates[epoch] == 0:
            what = f"is 0 at epoch {epoch:g}, and {kind} divides by it until epoch {optimizer.slow_until:g}"
            reading.refuse(path, what, "it is a warmup of its own: remove `warmup`, or begin above 0")
            break


def _given_by(part: Callable[[float], Any] | None, epochs: Iterable[float]) -> Iterator[Any]:
    """What a schedule or a warmup gives at each epoch at which it does not fail: a run may ask it at fewer."""
    for epoch in epochs if part is not None else ():
        with suppress(Exception):
            yield part(epoch)


def _failing_key(recipe: Recipe, epoch: float) -> str:
    """Which part of a rate fails at `epoch`: the warmup if it also fails with a schedule that cannot."""
    try:
        _rate_or_inf(replace(recipe, learning_rate=replace(recipe.learning_rate, schedule=Constant())), epoch)
    except Exception:
        return "warmup"
    return "schedule"


def _rate_or_inf(recipe: Recipe, epoch: float) -> float:
    try:
        return learning_rate_at(recipe, epoch)
    except OverflowError:
        return math.inf


def _in_words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _check_moved(reading: Reading, recipe: Recipe, epochs: Sequence[float]) -> None:
    """What a schedule moves must be there, and stay in its range over the run."""
    schedules, optimizer = recipe.schedules, recipe.optimizer
    kind = type(optimizer).__name__
    for key, name in zip(_MOVED, (momentum_key(optimizer), "weight_decay"), strict=True):
        if getattr(schedules, key) is None:
            continue
        if not getattr(optimizer, name or key, 0.0):
            what = f"{kind} has no {key}, or it is 0" if name else f"{kind} has no momentum"
            way_out = f"give `optimizer` a {key}" if name else "choose another `optimizer`"
            reading.refuse(("schedules", key), what, f"{way_out}, or remove this")
            continue
        for epoch in epochs:
            try:
                optimizer_at(recipe, epoch)
            except (OverflowError, ValueError) as error:
                what = f"at epoch {epoch:g}: {'not a finite number' if isinstance(error, OverflowError) else error}"
                reading.refuse(("schedules", key), what, f"it is a factor on `optimizer.{name}`: make it smaller")
                break
            except Exception as error:  # of a schedule of the user's own
                what = f"fails at epoch {epoch:g}: {_in_words(error)}"
                reading.refuse(("schedules", key), what, "mend its class, or choose another kind")
                break
