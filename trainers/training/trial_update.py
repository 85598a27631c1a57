"""A trial before ranks start: it shows what a loss or an optimizer of one's own would fail at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args

import chainer
import numpy as np

from recipes.errors import InputRefused, listed
from recipes.planning.rates import full_rate_at, optimizer_at
from recipes.schema import Dataset, Recipe
from trainers.losses import loss_function
from trainers.models.keyed_random import KeyedDropout
from trainers.optimizers.component_rule import ComponentRule
from trainers.optimizers.hyperparameters import Hyperparameters, set_hyperparameters, set_rate_factors
from trainers.optimizers.weight_decay import Decay, decay_form, decay_parameters, says_who_decays
from trainers.runs.errors import one_line, own_place
from trainers.runs.identity import is_of_the_user
from trainers.training.build import drawn_model
from trainers.training.trial_repeat import differing, keeping_fields

_MOST_SAMPLES = 256  # of a larger norm group only so many are tried
_ROUNDING = 1e-3  # of a sum, in 16 bits
_COUPLED = 1e-4  # of a loss, more than rounding makes in float32
_LEAST_STEPS = 2  # the second finds the state that the first left
_MOST_STEPS = 16  # some optimizers gather several gradients before they move a weight
_MOST_WEIGHTS = 2_000_000  # of a larger model no more steps are taken than it needs to move: 16 of them take a second
_LEAST_RATE = 0.01  # a step of less might change no float32


def require_update(recipe: Recipe, dataset: Dataset, *, on_gpu: bool = False) -> list[str]:
    """Compute a loss of drawn logits and its gradient, and take steps with drawn gradients, to learn now if that works.

    Args:
        on_gpu: the run will train there. The steps of an optimizer are not tried: they may need a GPU.
    Returns:
        Warnings: the loss fails on the samples of this trial, has other values for the same ones, is twice as large if
            each is there twice, or is no mean over samples though an update has several norm groups; the optimizer
            changes its state and moves no weight, fails at a later step, or takes other steps from the same weights.
    Raises:
        InputRefused: the loss cannot be built, is not called with logits and targets, changes its own fields, is no
            Variable of one number or a sum, or no gradient comes from it; the optimizer fails, is none of Chainer's,
            does not say where its rate is or who applies its weight decay, moves neither weights nor state, or keeps a
            state that could not be resumed.
    """
    model, random, warnings = drawn_model(recipe, dataset), np.random.default_rng(0), []
    with np.errstate(all="ignore"), chainer.using_config("train", False):
        if is_of_the_user(recipe.loss):
            size, classes = max(2, min(recipe.batch.norm_span.sizes[0], _MOST_SAMPLES)), dataset.num_classes
            labels = np.arange(size, dtype=np.int32) % min(classes, size // 2)  # each of them several times
            mixtures = (labels[:, np.newaxis] == np.arange(classes)).astype(np.float32)
            logits = random.standard_normal((size, classes)).astype(chainer.get_dtype())
            for targets in (labels, mixtures) if recipe.augmentation.mix else (labels,):
                with keeping_fields(_loss_named(recipe), recipe.loss), chainer.using_config("train", True):
                    warnings += _compute_gradients(recipe, model, logits, targets)
        if is_of_the_user(recipe.optimizer):
            what = f"the optimizer, {type(recipe.optimizer).__name__},"
            with keeping_fields(what, recipe.optimizer):
                warnings += _take_steps(recipe, model, random, on_gpu=on_gpu)
                if not on_gpu and differing(lambda: _small_weights(recipe)):
                    failing = "takes other steps with the same weights and gradients, so no run can be repeated"
                    warnings.append(f"{what} {failing}; draw no numbers, and keep nothing but in `state`")
    return warnings


def _compute_gradients(recipe: Recipe, model: chainer.Chain, values: np.ndarray, targets: np.ndarray) -> list[str]:
    what = _loss_named(recipe)
    function = _with_masks(model, _of_two(what, _tried(what, "build()", lambda: loss_function(recipe.loss))))
    logits = chainer.Parameter(values)
    model.cleargrads()
    logits.cleargrad()
    try:
        loss = function(logits, targets)
        if isinstance(loss, chainer.Variable) and loss.shape == ():
            loss.backward()
    except Exception as error:  # perhaps only on these samples
        at = f"a trial with logits {logits.shape} and targets {targets.shape}"
        return [f"{what} fails at {at}: {one_line(error)} ({own_place(error)}); the ranks may meet the same"]
    if not isinstance(loss, chainer.Variable) or loss.shape != ():
        shape = f" of shape {loss.shape}" if hasattr(loss, "shape") else ""
        raise InputRefused(
            f"{what} returns a {type(loss).__name__}{shape}; let it return the mean over the samples, a "
            "chainer.Variable of shape ()"
        )
    if all(parameter.grad is None for parameter in (logits, *model.params())):
        raise InputRefused(f"{what} gives the model no gradient; compute it by functions of Chainer, without `.array`")
    if other := differing(lambda: _loss_of(function, values, targets)):
        drawn = (
            f"{what} is {other[0]:.6g} and {other[1]:.6g} for the same logits and targets, so no run can be repeated"
        )
        return [f"{drawn}; draw by `F.dropout` alone, whose masks are keyed, and keep nothing between calls"]
    whole, twice = float(loss.array), _loss_of(function, np.concatenate([values] * 2), np.concatenate([targets] * 2))
    if whole == 0 or not 1.9 <= twice / whole <= 2.1:
        return _coupled(recipe, function, values, targets)
    middle = len(targets) // 2
    added = sum(_loss_of(function, values[half], targets[half]) for half in np.s_[:middle, middle:])
    if abs(whole - added) <= _ROUNDING * abs(whole):
        raise InputRefused(
            f"{what} returns the sum over the samples, {whole:.4g} of {len(targets)} samples; return their "
            "mean, such as the sum / len(targets)"
        )
    grown = f"{whole:.4g} of {len(targets)} samples and {twice:.4g} of them twice"
    return [f"{what} grows with the number of samples, {grown}; is that meant? A mean over the samples does not"]


def _coupled(recipe: Recipe, function: Callable[..., Any], values: np.ndarray, targets: np.ndarray) -> list[str]:
    """A warning where an update has several norm groups, and the loss of some samples is not the mean of its parts."""
    span = recipe.batch.norm_span.sizes
    if recipe.batch.global_.sizes == span:  # then it sees the whole batch
        return []
    values, size = values.astype(np.float32), len(targets)  # in 16 bits parts are rounded otherwise
    whole = _loss_of(function, values, targets)
    classes = targets if targets.ndim == 1 else targets.argmax(axis=1)
    for order in (np.argsort(classes, kind="stable"), np.arange(size)):
        parts = np.array_split(order, 2)
        losses = [_loss_of(function, values[part], targets[part], part) for part in parts]
        mean = np.average(losses, weights=[*map(len, parts)])
        if abs(whole - mean) > _COUPLED * max(map(abs, (whole, *losses))):
            or_rounds = ", or is computed in 16 bits" if abs(whole - mean) <= 2 * _ROUNDING * abs(whole) else ""
            what = f"couples samples{or_rounds}: of {size} it is {whole:.4g}"
            what += f", and {mean:.4g} in the mean of their halves"
            groups = f"It is computed in each norm group of {listed(map(str, span))} samples, not over the batch"
            way_out = "return a mean over samples, with weighted classes as in `SoftmaxCrossEntropy.class_weights`"
            kept = "or write `batch.norm_span` for the samples that belong together"
            return [f"{_loss_named(recipe)} {what}. {groups}; {way_out}, {kept}"]
    return []


def _loss_named(recipe: Recipe) -> str:
    return f"the loss, {type(recipe.loss).__name__},"


def _of_two(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        inspect.signature(function).bind("logits", "targets")
    except TypeError as error:
        raise InputRefused(f"{what} is called with two arguments, logits and targets: {error}") from error
    except ValueError:  # it is written in C, and has no signature
        pass
    return function


def _with_masks(model: chainer.Chain, function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss in whose calls `F.dropout` draws as in a run."""

    def masked(logits: Any, targets: np.ndarray, indices: np.ndarray | None = None) -> Any:
        indices = np.arange(len(targets)) if indices is None else indices
        with KeyedDropout(model, seed=0, epochs=0 * indices, indices=indices):
            return function(logits, targets)

    return masked


def _loss_of(
    function: Callable[..., Any], logits: np.ndarray, targets: np.ndarray, indices: np.ndarray | None = None
) -> float:
    """A loss of other samples than those of the trial; NaN if it fails on so few or so many.

    Args:
        indices: by which masks are drawn; None: their places.
    """
    try:
        return float(function(chainer.Variable(logits), targets, indices).array)
    except Exception:
        return float("nan")


def _take_steps(recipe: Recipe, model: chainer.Chain, random: np.random.Generator, *, on_gpu: bool) -> list[str]:
    component, what = recipe.optimizer, f"the optimizer, {type(recipe.optimizer).__name__},"
    if not hasattr(component, "rate_attribute"):
        raise InputRefused(
            f'{what} has no `rate_attribute`; add `rate_attribute: ClassVar[str] = "lr"` to its class, the attribute '
            "of the optimizer's `hyperparam` that is the rate"
        )
    if getattr(component, "weight_decay", None) and not says_who_decays(component):
        raise InputRefused(
            f"{what} has a `weight_decay`, and kilobatch adds it to the gradient: if its own `update` applies it too, "
            "add `decays_itself: ClassVar[bool] = True` to its class, else the field `no_decay: tuple[str, ...] = ()`"
        )
    form, forms = decay_form(component), get_args(Decay)
    itself = getattr(component, "decays_itself", False)
    if getattr(component, "weight_decay", None) and not itself and form not in (None, *forms):
        way_out = "give one of these, or call what is no form of weight decay otherwise"
        raise InputRefused(f"{what} has `decay` {form!r}; its forms are {listed(forms)}; {way_out}")
    if on_gpu:
        return []
    optimizer = _tried(what, "build()", component.build)
    if not isinstance(optimizer, chainer.GradientMethod):
        raise InputRefused(f"{what} builds a {type(optimizer).__name__}; let build() return an optimizer of Chainer")

    def set_up() -> None:
        optimizer.setup(model)
        decay_parameters(optimizer, component)
        set_rate_factors(optimizer, recipe.learning_rate.factors)

    _tried(what, "its setup", set_up)
    rate = max(full_rate_at(recipe, 0.0), _LEAST_RATE)
    weights = {path: parameter.array.copy() for path, parameter in model.namedparams()}
    state: dict[str, np.ndarray] = {}
    has_changed = is_taken = False
    for update in range(_MOST_STEPS):
        batch = recipe.batch.global_.sizes[0]
        values = Hyperparameters(update=update, epoch=0.0, global_batch_size=batch, learning_rate=rate, full_rate=rate)
        set_hyperparameters(optimizer_at(recipe, 0.0), optimizer, values)
        for _, parameter in sorted(model.namedparams()):
            parameter.grad = random.standard_normal(parameter.shape).astype(parameter.dtype)
        try:
            _tried(what, f"step {update + 1}", optimizer.update)
        except InputRefused as error:  # perhaps only with these gradients
            if is_taken:
                return [str(error)]
            raise
        has_moved = any(not np.array_equal(parameter.array, weights[path]) for path, parameter in model.namedparams())
        if is_taken or (has_moved and update + 1 >= _LEAST_STEPS):
            _require_resumable(what, model)
            is_taken = True
            if model.count_params() > _MOST_WEIGHTS:
                return []
            continue
        before, state = state, _state_of(model)
        has_changed |= any(
            not np.array_equal(value, before.get(name, np.zeros_like(value))) for name, value in state.items()
        )
    if is_taken:
        return []
    failing = f"{what} moves no weight in {_MOST_STEPS} steps"
    if has_changed:
        return [f"{failing}, only its state; is that meant? `w = w - ...` leaves the weights, `w -= ...` moves them"]
    raise InputRefused(f"{failing}; change the array `w` in place, as in `w -= ...`, not by `w = w - ...`")


def _small_weights(recipe: Recipe) -> np.ndarray:
    """A small layer's weights after two steps of a new optimizer, always with the same gradients; NaN if it fails."""
    random, rate = np.random.default_rng(0), max(full_rate_at(recipe, 0.0), _LEAST_RATE)
    model = chainer.Chain()
    with model.init_scope():
        model.W = chainer.Parameter(random.standard_normal((4, 3)).astype(np.float32))
    batch = recipe.batch.global_.sizes[0]
    try:
        optimizer = recipe.optimizer.build()
        optimizer.setup(model)
        decay_parameters(optimizer, recipe.optimizer)
        for update in range(2):
            values = Hyperparameters(
                update=update, epoch=0.0, global_batch_size=batch, learning_rate=rate, full_rate=rate
            )
            set_hyperparameters(optimizer_at(recipe, 0.0), optimizer, values)
            model.W.grad = random.standard_normal((4, 3)).astype(np.float32)
            optimizer.update()
    except Exception:  # it may need what this layer lacks
        return np.full(1, np.nan)
    return model.W.array


def _require_resumable(what: str, model: chainer.Chain) -> None:
    """Refuse a state that is other than the one that a checkpoint is read into."""
    for path, parameter in sorted(model.namedparams()):
        if (rule := parameter.update_rule) is None:
            continue
        kept, rule._state = rule.state or {}, None
        rule._init_states(parameter)
        begun, rule._state = rule.state, kept
        way_out = "make it in `init_state` of its update rule"
        if isinstance(rule, ComponentRule):
            way_out = "name it in `states`, arrays like the weights that begin at 0, or in `numbers`, 0 at first"
        if more := sorted(kept.keys() - begun.keys()):
            raise InputRefused(f"{what} keeps {listed(more)} in `state`, and no checkpoint could be resumed; {way_out}")
        for name, value in kept.items():
            one, other = np.asarray(begun[name]), np.asarray(value)
            if one.shape != other.shape or (one.dtype != other.dtype and one.ndim > 0):
                raise InputRefused(
                    f"{what} makes {name} of {path} {other.dtype} {other.shape}, which is {one.dtype} {one.shape} at "
                    "first and after a resume; change it in place, as in `state[name] += ...`"
                )


def _state_of(model: chainer.Chain) -> dict[str, np.ndarray]:
    """A copy of what the rules of all parameters keep."""
    rules = ((path, parameter.update_rule) for path, parameter in model.namedparams())
    states = ((path, rule.state or {}) for path, rule in rules if rule is not None)
    return {f"{path}.{name}": np.array(value) for path, state in states for name, value in state.items()}


def _tried(what: str, at: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise InputRefused(f"{what} fails at {at}: {one_line(error)} ({own_place(error)}); correct it") from error
