"""What contradicts between the parts of a recipe that was read: sizes of images, exchange of gradients, rates."""

from __future__ import annotations

from collections.abc import Sequence

from recipes.planning.rates import learning_rate_at
from recipes.reading.read import Path, Reading
from recipes.schema import Recipe
from recipes.schema.image_size import IMAGE_SIZE, image_sizes, keys_of_image_size, late_sizes

_LOOKED = 200  # positions of an optimizer's slow start at which the rate is looked at


def check_image_size(reading: Reading, recipe: Recipe) -> None:
    """Notes contradictions between `image_size` and the augmentations; `trainers.training.build` checks the model's."""
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
        for size, before in zip(late, image_sizes(recipe)[-len(late) :], strict=True):
            if None not in (size, before) and size != before:
                what = f"makes images of {size} pixels, where `augmentation.train` makes {before}"
                reading.refuse(("augmentation", "end"), what, "write `end.train` with that size")
                break


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
        if not getattr(optimizer, "elementwise", True):
            what = f"{kind} scales a layer's step by norms of the whole gradient, which no worker has"
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


def check_rate(reading: Reading, recipe: Recipe) -> None:
    """An optimizer that divides by the rate while it starts slowly needs one above 0 until then."""
    optimizer, kind = recipe.optimizer, type(recipe.optimizer).__name__
    if not hasattr(optimizer, "divides_by_rate"):
        return
    until = max(0.0, min(optimizer.slow_until, recipe.epochs))
    for epoch in (until * number / _LOOKED for number in range(_LOOKED)):
        if optimizer.divides_by_rate(epoch) and learning_rate_at(recipe, epoch) == 0:
            what = f"is 0 at epoch {epoch:g}, and {kind} divides by it until epoch {optimizer.slow_until:g}"
            reading.refuse(("learning_rate",), what, "it is a warmup of its own: remove `warmup`, or begin above 0")
            break
