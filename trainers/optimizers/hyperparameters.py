"""From a component to Chainer's optimizer: how it is built, and the hyperparameters that it gets before each step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from recipes.planning.rates import momentum_key
from recipes.schema import RateFactor
from trainers.optimizers.weight_decay import parameters_without_decay

if TYPE_CHECKING:
    import chainer


def build_from_formula(self: Any) -> chainer.Optimizer:
    """`build` of a component whose `update` is its formula, see `component_rule.py`."""
    from trainers.optimizers.component_rule import ComponentOptimizer

    return ComponentOptimizer(self)


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """What an optimizer's formula needs to know of an update.

    Args:
        update: its number, from 0.
        epoch: at its start.
        global_batch_size: samples in it.
        learning_rate: of this update, everything included.
        full_rate: the rate that warmup and schedule are factors of.
    """

    update: int
    epoch: float
    global_batch_size: int
    learning_rate: float
    full_rate: float


def set_hyperparameters(component: Any, optimizer: chainer.Optimizer, values: Hyperparameters) -> None:
    """Set the hyperparameters that an update rule reads, all to Python floats: a NumPy float64 would widen its arrays.

    Beside the rate, under the component's `rate_attribute`: `component`, whose momentum and weight decay are those of
    this update, `base_rate` (the rate), `relative_rate` (rate over full rate) and `epoch`. A parameter with a rate
    factor gets its own rate; its `base_rate` is that of all.
    """
    hyperparam, rate = optimizer.hyperparam, float(values.learning_rate)
    setattr(hyperparam, component.rate_attribute, rate)
    hyperparam.base_rate = rate
    hyperparam.component = component
    hyperparam.relative_rate = float(values.learning_rate / values.full_rate)
    hyperparam.epoch = float(values.epoch)
    momentum = momentum_key(component)
    if momentum in vars(hyperparam):  # of Chainer's own rules, which do not read `component`
        setattr(hyperparam, momentum, float(getattr(component, momentum)))
    for of_parameter, factor in getattr(hyperparam, "rate_factors", ()):
        setattr(of_parameter, component.rate_attribute, factor * rate)


def set_rate_factors(
    optimizer: chainer.Optimizer, factors: Sequence[RateFactor], *, loaded: Collection[str] = ()
) -> None:
    """Give parameters rates of their own, from the next `set_hyperparameters` on.

    Args:
        optimizer: set up with its model.
        factors: of the recipe; the first that names a parameter holds for it.
        loaded: paths of the arrays that the model began with. A batch normalisation whose parameters are all among them
            and all have the factor 0 also keeps its running statistics.
    Raises:
        ValueError: an entry names no parameter.
    """
    import chainer.links as L

    model, by_path = optimizer.target, {}
    for entry in factors:
        named = parameters_named(entry.parameters, model)
        if not named:
            raise ValueError(f"learning_rate.factors: {', '.join(entry.parameters)} names no parameter of the model")
        by_path = dict.fromkeys(named, float(entry.factor)) | by_path
    optimizer.hyperparam.rate_factors = [
        (parameter.update_rule.hyperparam, by_path[path]) for path, parameter in model.namedparams() if path in by_path
    ]
    for path, link in model.namedlinks():
        if isinstance(link, L.BatchNormalization):
            paths = [f"{path.rstrip('/')}{inner}" for inner, _ in link.namedparams()]
            link.is_frozen = bool(paths) and all(each in loaded and by_path.get(each) == 0 for each in paths)


def parameters_named(words: Sequence[str], model: chainer.Link) -> list[str]:
    """The paths of a model's parameters that `RateFactor.parameters` names: `norm`, `bias`, patterns of paths."""
    paths = parameters_without_decay(model, tuple(word for word in words if not word.startswith("/")))
    patterns = [word for word in words if word.startswith("/")]
    return [
        path for path, _ in model.namedparams() if path in paths or any(fnmatchcase(path, each) for each in patterns)
    ]


def words_without_parameters(words: Sequence[str], model: chainer.Link) -> list[str]:
    """What of `RateFactor.parameters` is refused: each pattern that names no parameter, or all where none names one."""
    if not parameters_named(words, model):
        return [", ".join(words)]
    return [word for word in words if word.startswith("/") and not parameters_named([word], model)]


def patterns_of_layers(model: chainer.Link) -> list[str]:
    """A pattern for each of a model's outermost layers, such as /conv1/*."""
    paths = (path.split("/")[1:] for path, _ in sorted(model.namedparams()))
    return [*dict.fromkeys(f"/{layer}/*" if inside else f"/{layer}" for layer, *inside in paths)]
