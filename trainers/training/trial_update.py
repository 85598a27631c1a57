"""An update of two images before ranks start: it shows what a loss or an optimizer of one's own would fail at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chainer
import numpy as np

from recipes.errors import InputRefused
from recipes.planning.rates import full_rate_at, optimizer_at
from recipes.schema import Dataset, Recipe
from trainers.optimizers.hyperparameters import Hyperparameters, set_hyperparameters, set_rate_factors
from trainers.optimizers.weight_decay import decay_parameters
from trainers.runs.errors import one_line
from trainers.runs.identity import is_of_the_user
from trainers.training.build import drawn_model, example_image, own_place

_STEPS = 2  # the second finds the state that the first left
_LEAST_RATE = 0.01  # a step of less might change no float32


def require_update(recipe: Recipe, dataset: Dataset) -> None:
    """Compute a loss and its gradients, and take steps with them, to learn now whether that works.

    Raises:
        InputRefused: the loss fails, or is no Variable of one number, or reaches no parameter; the optimizer fails, is
            none of Chainer's, does not say where its rate is, or moves no weight.
    """
    model = drawn_model(recipe, dataset)
    images_NCHW = np.stack([example_image(recipe, dataset)] * 2)
    labels = np.arange(2, dtype=np.int32) % dataset.num_classes
    mixtures = np.eye(dataset.num_classes, dtype=np.float32)[labels]
    with np.errstate(all="ignore"), chainer.using_config("train", False):
        for targets in (labels, mixtures) if recipe.augmentation.mix else (labels,):
            model.cleargrads()
            _compute_gradients(recipe, model, images_NCHW, targets)
        if is_of_the_user(recipe.optimizer):
            _take_steps(recipe, model)


def _compute_gradients(recipe: Recipe, model: chainer.Chain, images_NCHW: np.ndarray, targets: np.ndarray) -> None:
    what = f"the loss, {type(recipe.loss).__name__},"
    logits = model(images_NCHW)
    loss = _tried(
        what, f"logits {logits.shape} and targets {targets.shape}", lambda: recipe.loss.build()(logits, targets)
    )
    if not isinstance(loss, chainer.Variable) or loss.shape != ():
        shape = f" of shape {loss.shape}" if hasattr(loss, "shape") else ""
        raise InputRefused(
            f"{what} returns a {type(loss).__name__}{shape}; let it return the mean over the samples, a "
            "chainer.Variable of shape ()"
        )
    _tried(what, "backward", loss.backward)
    if all(parameter.grad is None for parameter in model.params()):
        raise InputRefused(f"{what} gives the model no gradient; compute it by functions of Chainer, without `.array`")


def _take_steps(recipe: Recipe, model: chainer.Chain) -> None:
    component, what = recipe.optimizer, f"the optimizer, {type(recipe.optimizer).__name__},"
    if not hasattr(component, "rate_attribute"):
        raise InputRefused(
            f'{what} has no `rate_attribute`; add `rate_attribute: ClassVar[str] = "lr"` to its class, the attribute '
            "of the optimizer's `hyperparam` that is the rate"
        )
    optimizer = _tried(what, "build()", component.build)
    if not isinstance(optimizer, chainer.GradientMethod):
        raise InputRefused(f"{what} builds a {type(optimizer).__name__}; let build() return an optimizer of Chainer")
    before = {path: parameter.array.copy() for path, parameter in model.namedparams()}

    def set_up() -> None:
        optimizer.setup(model)
        decay_parameters(optimizer, component)
        set_rate_factors(optimizer, recipe.learning_rate.factors)

    _tried(what, "its setup", set_up)
    rate = max(full_rate_at(recipe, 0.0), _LEAST_RATE)
    for update in range(_STEPS):
        batch = recipe.batch.global_.sizes[0]
        values = Hyperparameters(update=update, epoch=0.0, global_batch_size=batch, learning_rate=rate, full_rate=rate)
        set_hyperparameters(optimizer_at(recipe, 0.0), optimizer, values)
        _tried(what, f"step {update + 1}", optimizer.update)
    if all(np.array_equal(parameter.array, before[path]) for path, parameter in model.namedparams()):
        way_out = "change the array `w` in place, as in `w -= ...`, not by `w = w - ...`"
        raise InputRefused(f"{what} moves no weight in {_STEPS} steps; {way_out}")


def _tried(what: str, at: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise InputRefused(f"{what} fails at {at}: {one_line(error)} ({own_place(error)}); correct it") from error
