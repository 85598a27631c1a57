"""Checks of `updater` against the rest of a recipe: which ways of exchanging gradients it bears."""

from __future__ import annotations

from recipes.reading.read import Reading
from recipes.schema import Recipe


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
    elif updater.power_sgd_rank is None:
        if updater.double_buffering and getattr(optimizer, "needs_group_gradients", False):
            way_out = "set it to false, or choose another optimizer"
            reading.refuse(("updater", "double_buffering"), f"{kind} sets its rate by the gradient it applies", way_out)
        return
    if updater.double_buffering:
        reading.refuse(path, "cannot be one update late", "remove it, or set `double_buffering: false`")
    if getattr(optimizer, "needs_group_gradients", False):
        reading.refuse(path, f"{kind} measures the gradients that this changes", "remove it, or take another optimizer")
