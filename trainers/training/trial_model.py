"""A trial before ranks start: it shows whether a model can be trained, and has what its recipe names of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import chainer
import numpy as np
from chainer import links as L

from recipes.errors import InputRefused, RecipeError, listed
from recipes.planning.division import divide
from recipes.reading.read import Reading
from recipes.schema import Dataset, Evaluation, RateFactor, Recipe
from trainers.gradients.mixed_precision import HALVES, computing, forward_in
from trainers.losses import head_paths
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import KeyedDropout
from trainers.models.own_models import AsInitialized, require_numbers, require_one_path
from trainers.optimizers.hyperparameters import parameters_named, patterns_of_layers, words_without_parameters
from trainers.runs.errors import one_line, own_place
from trainers.runs.identity import is_of_the_user
from trainers.training.build import build_model, draw_weights, drawn_model, example_image, loaded_parameters
from trainers.training.trial_repeat import differing

_MOST_LAYERS = 16  # in a message; VGG16 has so many
_MOST_NAMED = 10  # parameters in a warning
_CHAINERS_DECAY = 0.9  # of a BatchNormalization that is made without one
_UNREPEATED = (
    "the model, {}, gives other logits of the same images when it is called again, so no run can be repeated; draw by "
    "`F.dropout` alone, whose masks are keyed, and keep nothing between calls but persistent values"
)
_PROBABILITIES = (
    "the model, {}, returns probabilities: what it gives of each image is never below 0 and sums to 1. The loss takes "
    "logits and applies its own softmax or sigmoid to them; leave `F.softmax` out of forward"
)

Loose = tuple[str, chainer.Link | chainer.Parameter]  # a path, and what is there


def require_trainable(recipe: Recipe, dataset: Dataset, *, on_gpu: bool = False, is_new: bool = True) -> list[str]:
    """Build a model of one's own as a run does, to learn now whether that works, not when ranks have started.

    Args:
        on_gpu: it will be trained there: 16 bits, which take minutes on a CPU for large models, are not tried.
        is_new: it will begin with its initial weights, not with those of a checkpoint.
    Returns:
        Warnings, see `not_as_meant` and `other_decays`; others are of a forward that gives other logits when it is
        called again, or probabilities.
    Raises:
        InputRefused: its constructor, forward or backward fails, in evaluation or in training, or gives no logits or no
            gradient; it has no parameters, or one without a shape or with two paths, or a persistent value that is no
            number, or a normalisation over the batch that is not `BatchNormalization`, or uses layers that it has not
            registered; its constructor sets values that the seed draws again; the loss wants something that it does not
            have.
    """
    name = type(recipe.model).__name__
    with AsInitialized() as initialized:
        model = build_model(recipe, dataset)
    if next(model.params(), None) is None:
        raise InputRefused(f"the model, {name}, has no parameters: make its layers within `with self.init_scope():`")
    calls_forward = type(model).__call__ is chainer.Link.__call__
    if not callable(getattr(model, "forward", None)) and calls_forward:
        raise InputRefused(f"the model, {name}, has no method `forward(self, images_NCHW)`, which gives the logits")
    try:
        inspect.signature(model.forward if calls_forward else model).bind("images_NCHW")
    except TypeError as error:
        raise InputRefused(f"the model, {name}: its forward is called with the images alone: {error}") from error
    drawn = {*initialized.changed(model)} - loaded_parameters(model, recipe.init) if is_new else ()
    if drawn:
        raise InputRefused(
            f"the model, {name}: its constructor sets values of {listed(sorted(drawn))}, which the recipe's seed would "
            "draw again; give the layer an initializer or array (`initialW=`, `initial_bias=`, `initial_gamma=`), make "
            "it `chainer.Parameter(array)`, or name a file of weights: `init: {weights: FILE.safetensors}`"
        )
    image_CHW, compute = example_image(recipe, dataset), recipe.precision.compute
    unreached, foreign, logits = _require_gradients(model, name, image_CHW, dataset.num_classes)
    if is_new and foreign:
        _, others, _ = _require_gradients(build_model(recipe, dataset), name, image_CHW, dataset.num_classes)
        _require_registered(model, name, foreign, others)
    try:
        require_one_path(model)
        require_numbers(model)
        norm_groups = NormGroups(recipe.evaluation)
        norm_groups.install(draw_weights(model, recipe, dataset))
    except (TypeError, ValueError) as error:
        raise InputRefused(f"the model, {name}, cannot be trained: {error}") from error
    _require_gradients(model, name, image_CHW, dataset.num_classes, norm_groups=norm_groups)
    warnings = [] if _repeats(model, image_CHW, norm_groups) else [_UNREPEATED.format(name)]
    if not is_of_the_user(recipe.loss) and are_probabilities(logits):
        warnings.append(_PROBABILITIES.format(name))
    if compute in HALVES and not on_gpu:
        with computing(compute, model.device):
            _require_gradients(model, name, image_CHW, dataset.num_classes, compute=compute)
    factors = recipe.learning_rate.factors
    warnings += not_as_meant(model, unreached=unreached, disabled=initialized.disabled, factors=factors)
    return warnings + other_decays(model, recipe.evaluation)


def _require_gradients(
    model: chainer.Chain,
    name: str,
    image_CHW: np.ndarray,
    num_classes: int,
    *,
    compute: str = "float32",
    norm_groups: NormGroups | None = None,
) -> tuple[list[str], list[chainer.Parameter], np.ndarray]:
    """Try two images; refused is a model that trains no parameter, or whose logits are not (2, num_classes).

    Args:
        norm_groups: of the model: forward is that of training, of one norm group; None: that of evaluation.
    Returns:
        the paths of the parameters that they give no gradient, used parameters that are not registered, and logits.
    """
    images_NCHW, size = np.stack([image_CHW] * 2), "x".join(map(str, image_CHW.shape))
    how = f" in {compute}" if compute in HALVES else "" if norm_groups is None else " in training"
    what, random = "forward", np.random.get_state()
    try:
        with chainer.using_config("train", False) if norm_groups is None else _training_of_two(model, norm_groups):
            logits = forward_in(model, compute)(images_NCHW)
        foreign = _foreign(model, logits)
        what = "backward"
        model.cleargrads()
        if isinstance(logits, chainer.Variable):
            chainer.functions.sum(logits).backward()
    except Exception as error:
        what = f"its {what}{how} fails on images of {size}, channels, height and width: {one_line(error)}"
        way_out = "correct it, or set precision.compute to float32" if compute in HALVES else "correct it"
        raise InputRefused(f"the model, {name}: {what} ({own_place(error)}); {way_out}") from error
    finally:
        if norm_groups is not None:  # a run in this process draws as if nothing had been tried
            np.random.set_state(random)
    if getattr(logits, "shape", None) != (2, num_classes):
        made = f"makes {logits.shape}" if hasattr(logits, "shape") else f"returns a {type(logits).__name__}"
        raise InputRefused(
            f"the model, {name}, {made} of two images of {size}{how}, and the logits of {num_classes} classes are "
            f"(2, {num_classes}); let its last layer have num_classes outputs"
        )
    unreached = [path for path, parameter in sorted(model.namedparams()) if parameter.grad is None]
    if len(unreached) == len(list(model.params())):
        raise InputRefused(f"the model, {name}: no gradient reaches its parameters; return the Variable, not its array")
    return unreached, foreign, logits.array


def are_probabilities(logits: np.ndarray) -> bool:
    """Whether each row of (samples, classes) is none below 0 and sums to 1, as a softmax does; not of one class."""
    return logits.shape[1] > 1 and bool((logits >= 0).all()) and np.allclose(logits.sum(axis=1), 1, atol=1e-4)


def _repeats(model: chainer.Chain, image_CHW: np.ndarray, norm_groups: NormGroups) -> bool:
    """Whether forward in training gives the same logits of two images each time, from the same statistics."""
    images_NCHW, random = np.stack([image_CHW] * 2), np.random.get_state()
    links = [link for _, link in model.namedlinks()]
    kept = [{name: copy.deepcopy(link.__dict__[name]) for name in link._persistent} for link in links]

    def logits() -> np.ndarray:
        for link, values in zip(links, kept, strict=True):
            link.__dict__.update(copy.deepcopy(values))
        with _training_of_two(model, norm_groups):
            return model(images_NCHW).array

    try:
        return differing(logits, times=3) is None
    finally:
        np.random.set_state(random)


def _foreign(model: chainer.Chain, logits: object) -> list[chainer.Parameter]:
    """The parameters by which logits were computed that the model has not registered, in the order of the graph."""
    found: dict[int, chainer.Parameter] = {}
    registered, seen = {id(parameter) for parameter in model.params()}, set()
    nodes = [getattr(logits, "creator_node", None)]
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        for each in node.inputs:
            variable = each.get_variable_or_none()
            if isinstance(variable, chainer.Parameter) and id(variable) not in registered:
                found[id(variable)] = variable
            nodes.append(each.creator_node)
    return list(found.values())


@contextmanager
def _training_of_two(model: chainer.Chain, norm_groups: NormGroups) -> Iterator[None]:
    """Forward within is that of training, of two samples in one norm group."""
    division = divide(global_batch_size=2, norm_span=2, workers=1, micro_batch_size=2)
    norm_groups.begin_update(division)
    norm_groups.begin_micro_batch(division.micro_batches(0)[0])
    indices = np.arange(2)
    with chainer.using_config("train", True), KeyedDropout(model, seed=0, epochs=0 * indices, indices=indices):
        yield


def _require_registered(
    model: chainer.Chain, name: str, used: Sequence[chainer.Parameter], others: Sequence[chainer.Parameter]
) -> None:
    """Refuse parameters that the model has used and not registered, where each build gives them other values.

    Args:
        used: the model's, in the order of its graph.
        others: those of the model, built again.
    """
    pairs = list(zip(used, others, strict=False))
    drawn = [one for one, other in pairs if not np.array_equal(one.array, other.array)]
    if not drawn and len(used) == len(others):
        return
    lost = {id(each) for each in drawn or used}
    paths = [
        path for path, each in _unregistered(model) if lost & {id(parameter) for parameter in _parameters_of(each)}
    ]
    named = listed(paths, most=_MOST_NAMED) if paths else "outside of its attributes and lists of them"
    raise InputRefused(
        f"the model, {name}, uses layers that it has not registered, {named}: they would be neither drawn by the seed, "
        "trained nor saved; make them within `with self.init_scope():`, several as `chainer.ChainList(*layers)`, not "
        "as a list"
    )


def _parameters_of(each: chainer.Link | chainer.Parameter) -> list[chainer.Parameter]:
    return list(each.params()) if isinstance(each, chainer.Link) else [each]


def _unregistered(model: chainer.Link) -> Iterator[Loose]:
    """The layers and parameters in attributes of the model's layers, or in lists there, that it has not registered."""
    registered, seen = {id(parameter) for parameter in model.params()}, set()

    def within(path: str, value: object) -> Iterator[Loose]:
        if isinstance(value, chainer.Link | chainer.Parameter):
            if any(id(each) not in registered for each in _parameters_of(value)):
                yield path, value
        elif isinstance(value, list | tuple | dict) and id(value) not in seen:
            seen.add(id(value))
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                yield from within(f"{path}/{key}", each)

    for path, link in sorted(model.namedlinks()):
        for name, value in vars(link).items():
            yield from within(f"{path.rstrip('/')}/{name}", value)


def not_as_meant(
    model: chainer.Link, *, unreached: Sequence[str], disabled: Sequence[chainer.Link], factors: Sequence[RateFactor]
) -> list[str]:
    """Warnings of what a run would train, or not, otherwise than the model may mean.

    Args:
        unreached: paths of the parameters that no gradient reaches.
        disabled: links whose `disable_update` the constructor called, when no parameter had an update rule yet.
        factors: of the recipe; 0 freezes parameters.
    """
    still = (each.parameters for each in factors if each.factor == 0)
    frozen = {path for words in still for path in parameters_named(words, model)}
    warnings = []
    if unreached:
        named, way_out = listed(unreached, most=_MOST_NAMED), "In a forward `.array` cuts off what lies before it"
        warnings.append(f"no gradient reaches {named}: at most weight decay moves them; is that meant? {way_out}")
    free = [
        f"{path.rstrip('/')}/*"
        for path, link in sorted(model.namedlinks())
        if any(link is each for each in disabled)
        and any(f"{path.rstrip('/')}{inner}" not in frozen for inner, _ in link.namedparams())
    ]
    if free:
        way_out = f"`learning_rate: {{factors: [{{parameters: [{', '.join(free)}], factor: 0}}]}}` freezes them"
        warnings.append(f"disable_update() in a constructor changes nothing, so {listed(free)} are trained; {way_out}")
    loose = [path for path, _ in _unregistered(model)]
    if loose:
        named, way_out = (
            listed(loose, most=_MOST_NAMED),
            "make such a parameter or layer within `with self.init_scope():`",
        )
        warnings.append(f"{named} will be neither drawn by the seed, trained nor saved; {way_out}")
    return warnings


def other_decays(model: chainer.Link, evaluation: Evaluation) -> list[str]:
    """A warning of normalisations whose `decay` was set to another value than the recipe's, which a run takes."""
    keep = evaluation.norm_momentum.keep
    decays = {path: each.decay for path, each in sorted(model.namedlinks()) if isinstance(each, L.BatchNormalization)}
    others = [path for path, decay in decays.items() if decay not in (_CHAINERS_DECAY, keep)]
    if not others or evaluation.norm_statistics == "last_batch":
        return []
    named = listed([f"{path} (decay={decays[path]:g})" for path in others], most=_MOST_NAMED)
    return [
        f"{named}: a run takes evaluation.norm_momentum.keep of the recipe instead, {keep:g}; if yours is meant, write "
        f"`evaluation: {{norm_momentum: {{keep: {decays[others[0]]:g}}}}}`; keep is 1 - PyTorch's momentum"
    ]


def require_parameters(recipe: Recipe, dataset: Dataset, reading: Reading) -> list[str]:
    """Build the model, to learn now whether it has what `learning_rate.factors`, `init` and `others` of Muon name.

    Returns:
        warnings: nothing is trained; see `warn_of_normalisation`.
    Raises:
        RecipeError: a pattern names no parameter, or of Muon no matrix; initial weights do not fit, see `begin_with`,
            or are for other classes, see `require_classes`.
    """
    from trainers.models.weight_file_facts import require_classes, warn_of_normalisation  # and ChainerCV
    from trainers.models.weight_names import UnfitWeights, begin_with, pattern_here

    model, warnings = drawn_model(recipe, dataset), []
    way_out = f"write what it has, such as {listed(patterns_of_layers(model), most=_MOST_LAYERS)}, or take it out"
    for index, entry in enumerate(recipe.learning_rate.factors):
        for words in words_without_parameters(entry.parameters, model):
            what = f"{words} names no parameter of the model, {type(recipe.model).__name__}"
            what += f" (torchvision's name; here {here})" if (here := pattern_here(model, words)) else ""
            reading.refuse(("learning_rate", "factors", index, "parameters"), what, way_out)
    if _are_all_still(model, recipe.learning_rate.factors):
        what, way = "is 0 for every parameter, so nothing is trained", "leave out of `parameters` what is to learn"
        warnings.append(str(reading.origin(("learning_rate", "factors")).problem("learning_rate.factors", what, way)))
    for index, pattern in enumerate(getattr(recipe.optimizer, "required_matrices", ())):
        if not any(fnmatchcase(path, pattern) and each.ndim >= 2 for path, each in model.namedparams()):
            what = f"{pattern} names no matrix of the model, {type(recipe.model).__name__}"
            reading.refuse(("optimizer", "others", index), what, way_out)
    if recipe.init is not None:
        try:
            facts = begin_with(model, recipe.init)
            head = head_paths(model, dataset.num_classes)
            require_classes(model, recipe.init, dataset, head=head, facts=facts)
            warnings += warn_of_normalisation(recipe, dataset, reading, facts)
        except UnfitWeights as error:
            reading.refuse(("init", error.key), error.what, error.way_out)
    if reading.problems:
        raise RecipeError(reading.problems)
    return warnings


def _are_all_still(model: chainer.Link, factors: Sequence[RateFactor]) -> bool:
    """Whether the first factor that names a parameter is 0 for each."""
    rest = {path for path, _ in model.namedparams()}
    for entry in factors:
        named = rest.intersection(parameters_named(entry.parameters, model))
        if named and entry.factor != 0:
            return False
        rest -= named
    return not rest
