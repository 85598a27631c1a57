"""From the parts a recipe names to the objects that train: the one file that knows all of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import chainer
import numpy as np

from recipes.errors import InputRefused, RecipeError, listed
from recipes.planning.cluster import GradientExchange
from recipes.planning.division import divide
from recipes.planning.memory import Model
from recipes.reading.read import Reading
from recipes.schema import Dataset, Init, Recipe, Updater
from recipes.schema.image_size import evaluated_size, image_sizes
from trainers.augmentations.mixing import GroupMixing
from trainers.augmentations.pipeline import Finish, Pipeline
from trainers.communicators import Auto, Direct
from trainers.communicators.gpu import Gpu
from trainers.communicators.host_staging import connect_on_gpu
from trainers.communicators.wire import WIRES, FullWire
from trainers.datasets.augmented import AugmentedSamples, augmented_samples
from trainers.datasets.bad_images import SkippedImage, SkippingSamples
from trainers.datasets.device_feed import DeviceFeed
from trainers.datasets.own_data import OwnSamples, WrongSample
from trainers.datasets.samples import SamplesInMemory, UnreadableImage, evenly, innermost
from trainers.gradients.exchange import ExactExchange, Exchange
from trainers.gradients.flat_gradients import BackwardOrder, FlatGradients, backward_order
from trainers.gradients.local_steps import LocalExchange
from trainers.gradients.mixed_precision import HALVES, computing, forward_in, images_dtype
from trainers.gradients.power_sgd import PowerExchange
from trainers.losses import loss_function
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import KeyedDropout, draw_initial_weights
from trainers.models.own_models import AsInitialized, not_as_meant, require_numbers, require_one_path
from trainers.optimizers.hyperparameters import patterns_of_layers, set_rate_factors, words_without_parameters
from trainers.optimizers.weight_decay import decay_parameters
from trainers.runs.errors import UnfitImage, one_line
from trainers.runs.identity import is_of_the_user

AnyExchange = Exchange | ExactExchange | PowerExchange | LocalExchange
_LOOKED = 2000  # samples whose size is looked at before a run
_MOST_LAYERS = 16  # in a message; VGG16 has so many


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The objects built from a recipe.

    Args:
        model: with its initial weights, on the CPU.
        optimizer: set up with the model.
        loss: (logits, targets) -> mean over the samples given.
        load_train, load_eval: (epoch, index, image_size=None) -> image as the model gets it, label.
        load_late: training samples after the end of augmentation, likewise; None where it does not end.
        load_pixels: as `load_train`, but gives `Pixels`, which `finish` makes an image of.
        finish: pixels -> image.
        mixing: of training samples, None where the recipe does not mix.
        num_eval: samples of the evaluation set.
        skipped: of each split whose bad images are skipped, those that were so far, by their index.
        order: in which backward finishes the parameters, of `ordered`; None: not known yet.
    """

    model: chainer.Chain
    optimizer: chainer.Optimizer
    loss: Callable[..., chainer.Variable]
    load_train: AugmentedSamples
    load_eval: AugmentedSamples
    load_late: AugmentedSamples | None
    load_pixels: AugmentedSamples
    finish: Finish
    mixing: GroupMixing | None
    num_eval: int
    skipped: tuple[Mapping[int, SkippedImage], ...]
    order: BackwardOrder | None = None


def build(recipe: Recipe, dataset: Dataset) -> Parts:
    """Build everything a recipe names.

    Raises:
        ValueError: the data are not what the data set's file says; the model lacks something that the loss needs.
    """
    train, evaluated = (augmented_samples(recipe, dataset, split) for split in ("train", "eval"))
    for load, expected in ((train, dataset.num_train), (evaluated, dataset.num_eval)):
        if len(load.samples) != expected:
            raise ValueError(
                f"data set {dataset.name}: {len(load.samples)} samples in {load.split}, its file says {expected}; "
                f"correct num_{load.split} there, or give the right folder with --data"
            )
    sizes = (load(0, 0, image_size=image_sizes(recipe)[-1])[0].shape[1:] for load in (train, evaluated))
    model = drawn_model(recipe, dataset, sides=[height if height == width else None for height, width in sizes])
    optimizer = recipe.optimizer.build()
    optimizer.setup(model)
    decay_parameters(optimizer, recipe.optimizer)
    set_rate_factors(optimizer, recipe.learning_rate.factors, loaded=_loaded(model, recipe.init))
    return Parts(
        model=model,
        optimizer=optimizer,
        loss=loss_function(recipe.loss),
        load_train=train,
        load_eval=evaluated,
        load_late=_late(recipe, dataset, train),
        load_pixels=replace(train, pixels=True),
        finish=train.pipeline.finish,
        mixing=_mixing(recipe, dataset),
        num_eval=dataset.num_eval,
        skipped=tuple(load.samples.skipped for load in (train, evaluated) if isinstance(load.samples, SkippingSamples)),
    )


def ordered(parts: Parts) -> Parts:
    """The same, with the order in which backward finishes the parameters of the model, where it is now.

    A GPU builds and times cuDNN's plans for that one image, and never uses them again: ask before the model goes there.
    """
    image, _ = parts.load_eval(0, 0)
    images_NCHW = parts.model.device.send(image[np.newaxis].astype(chainer.get_dtype(), copy=False))
    return replace(parts, order=backward_order(parts.model, images_NCHW))


def _late(recipe: Recipe, dataset: Dataset, train: AugmentedSamples) -> AugmentedSamples | None:
    """Training samples as they are after the end of augmentation, of the same open data set."""
    if recipe.augmentation.end is None:
        return None
    has_end = train.pipeline.finish.normalize is not None
    pipeline = Pipeline(parts=recipe.augmentation.late, dataset=dataset, seed=recipe.seed, has_end=has_end)
    if pipeline.finish != train.pipeline.finish:
        what = "ends in another `Normalize` than augmentation.train, or scales pixels in another way"
        raise InputRefused(f"augmentation.end: {what}; let both lists end in the same `Normalize`")
    late = replace(train, pipeline=pipeline, split="late")
    before, after = (load(0, 0, image_size=image_sizes(recipe)[-1])[0].shape for load in (train, late))
    if before != after:
        raise InputRefused(
            f"augmentation.end: makes images of {after} where augmentation.train makes {before}; give both one size"
        )
    return late


Sides = Sequence[int | None]  # of the images that a model is trained on, and of those that it is scored on


def build_model(recipe: Recipe, dataset: Dataset, *, sides: Sides | None = None) -> chainer.Chain:
    """The recipe's model for a data set, its weights not yet drawn from the recipe's seed.

    Args:
        sides: in pixels, as loaded images have them; None: those that the augmentations say, where no data are at hand.
    Raises:
        InputRefused: the recipe's image size changes, and the model does not take one of the sizes; the model takes one
            size only, and evaluation gives it another.
    """
    sizes, scored_at = image_sizes(recipe), evaluated_size(recipe)
    if sides is not None:
        sizes[-1], scored_at = sides[0] or sizes[-1], sides[1] or scored_at
    model = recipe.model.build(num_classes=dataset.num_classes, channels=dataset.channels, image_size=sizes[-1])
    if len(set(sizes)) > 1:
        _require_sizes(model, recipe.model, channels=dataset.channels, sizes=sorted(set(sizes)))
    _require_evaluated_size(model, recipe, scored_at)
    return model


def drawn_model(recipe: Recipe, dataset: Dataset, *, sides: Sides | None = None) -> chainer.Chain:
    """The recipe's model with its weights drawn from the recipe's seed; arguments and errors as of `build_model`."""
    return _with_weights(build_model(recipe, dataset, sides=sides), recipe, dataset)


def require_trainable(recipe: Recipe, dataset: Dataset, *, on_gpu: bool = False, is_new: bool = True) -> list[str]:
    """Build a model of one's own as a run does, to learn now whether that works, not when ranks have started.

    Args:
        on_gpu: it will be trained there: 16 bits, which take minutes on a CPU for large models, are not tried.
        is_new: it will begin with its initial weights, not with those of a checkpoint.
    Returns:
        Warnings, see `trainers.models.own_models.not_as_meant`.
    Raises:
        InputRefused: its constructor, forward or backward fails, in evaluation or in training, or gives no logits or no
            gradient; it has no parameters, or one without a shape or with two paths, or a persistent value that is no
            number, or a normalisation over the batch that is not `BatchNormalization`; its constructor sets values that
            the seed draws again; the loss wants something that it does not have.
    """
    name = type(recipe.model).__name__
    try:
        with AsInitialized() as initialized:
            model = build_model(recipe, dataset)
    except InputRefused:
        raise
    except Exception as error:
        what = f"the model, {name}, cannot be built: {one_line(error)}"
        raise InputRefused(f"{what} ({own_place(error)}); correct it") from error
    if next(model.params(), None) is None:
        raise InputRefused(f"the model, {name}, has no parameters: make its layers within `with self.init_scope():`")
    if not callable(getattr(model, "forward", None)) and type(model).__call__ is chainer.Link.__call__:
        raise InputRefused(f"the model, {name}, has no method `forward(self, images_NCHW)`, which gives the logits")
    drawn = {*initialized.changed(model)} - _loaded(model, recipe.init) if is_new else ()
    if drawn:
        raise InputRefused(
            f"the model, {name}: its constructor sets values of {listed(sorted(drawn))}, which the recipe's seed would "
            "draw again; give the layer an initializer or array (`initialW=`, `initial_bias=`, `initial_gamma=`), make "
            "it `chainer.Parameter(array)`, or name a file of weights: `init: {weights: FILE.safetensors}`"
        )
    image_CHW, compute = example_image(recipe, dataset), recipe.precision.compute
    unreached = _require_gradients(model, name, image_CHW, dataset.num_classes)
    try:
        require_one_path(model)
        require_numbers(model)
        norm_groups = NormGroups(recipe.evaluation)
        norm_groups.install(_with_weights(model, recipe, dataset))
    except (TypeError, ValueError) as error:
        raise InputRefused(f"the model, {name}, cannot be trained: {error}") from error
    _require_gradients(model, name, image_CHW, dataset.num_classes, norm_groups=norm_groups)
    if compute in HALVES and not on_gpu:
        with computing(compute, model.device):
            _require_gradients(model, name, image_CHW, dataset.num_classes, compute=compute)
    factors = recipe.learning_rate.factors
    return not_as_meant(model, unreached=unreached, disabled=initialized.disabled, factors=factors)


def require_parameters(recipe: Recipe, dataset: Dataset, reading: Reading) -> None:
    """Build the model, to learn now whether it has what `learning_rate.factors`, `init` and `others` of Muon name.

    Raises:
        RecipeError: a pattern names no parameter, or of Muon no matrix; initial weights do not fit, see `begin_with`.
    """
    from trainers.models.weight_names import UnfitWeights, begin_with, pattern_here  # and ChainerCV

    model = drawn_model(recipe, dataset)
    way_out = f"write what it has, such as {listed(patterns_of_layers(model), most=_MOST_LAYERS)}, or take it out"
    for index, entry in enumerate(recipe.learning_rate.factors):
        for words in words_without_parameters(entry.parameters, model):
            what = f"{words} names no parameter of the model, {type(recipe.model).__name__}"
            what += f" (torchvision's name; here {here})" if (here := pattern_here(model, words)) else ""
            reading.refuse(("learning_rate", "factors", index, "parameters"), what, way_out)
    for index, pattern in enumerate(getattr(recipe.optimizer, "required_matrices", ())):
        if not any(fnmatchcase(path, pattern) and each.ndim >= 2 for path, each in model.namedparams()):
            what = f"{pattern} names no matrix of the model, {type(recipe.model).__name__}"
            reading.refuse(("optimizer", "others", index), what, way_out)
    if recipe.init is not None:
        try:
            begin_with(model, recipe.init)
        except UnfitWeights as error:
            reading.refuse(("init", error.key), error.what, error.way_out)
    if reading.problems:
        raise RecipeError(reading.problems)


def _require_gradients(
    model: chainer.Chain,
    name: str,
    image_CHW: np.ndarray,
    num_classes: int,
    *,
    compute: str = "float32",
    norm_groups: NormGroups | None = None,
) -> list[str]:
    """Paths of the parameters that two images give no gradient; refused is a model that trains none, or whose logits
    are not (2, num_classes).

    Args:
        norm_groups: of the model: forward is that of training, of one norm group; None: that of evaluation.
    """
    images_NCHW, size = np.stack([image_CHW] * 2), "x".join(map(str, image_CHW.shape))
    how = f" in {compute}" if compute in HALVES else "" if norm_groups is None else " in training"
    what, random = "forward", np.random.get_state()
    try:
        with chainer.using_config("train", False) if norm_groups is None else _training_of_two(model, norm_groups):
            logits = forward_in(model, compute)(images_NCHW)
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
        raise InputRefused(
            f"the model, {name}, makes {getattr(logits, 'shape', type(logits).__name__)} of two images of {size}{how}, "
            f"and the logits of {num_classes} classes are (2, {num_classes}); let its last layer have num_classes "
            "outputs"
        )
    unreached = [path for path, parameter in sorted(model.namedparams()) if parameter.grad is None]
    if len(unreached) == len(list(model.params())):
        raise InputRefused(f"the model, {name}: no gradient reaches its parameters; return the Variable, not its array")
    return unreached


@contextmanager
def _training_of_two(model: chainer.Chain, norm_groups: NormGroups) -> Iterator[None]:
    """Forward within is that of training, of two samples in one norm group."""
    division = divide(global_batch_size=2, norm_span=2, workers=1, micro_batch_size=2)
    norm_groups.begin_update(division)
    norm_groups.begin_micro_batch(division.micro_batches(0)[0])
    indices = np.arange(2)
    with chainer.using_config("train", True), KeyedDropout(model, seed=0, epochs=0 * indices, indices=indices):
        yield


def _loaded(model: chainer.Chain, init: Init | None) -> set[str]:
    if init is None:
        return set()
    from trainers.models.weight_names import loaded_paths  # and ChainerCV

    return loaded_paths(model, init)


def own_place(error: Exception) -> str:
    """File and line of the user's own code in which an error was raised; else where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    here = [frame for frame in frames if Path(frame.filename).is_relative_to(Path.cwd())]  # where it was imported
    own = [frame for frame in here if "site-packages" not in frame.filename]  # of a `.venv` in this folder
    return f"{(own or frames)[-1].filename}:{(own or frames)[-1].lineno}"


def example_image(recipe: Recipe, dataset: Dataset) -> np.ndarray:
    """The first training sample as the model gets it: CHW, of CHAINER_DTYPE."""
    load = augmented_samples(recipe, dataset, "train")
    image_CHW, _ = load(0, 0, image_size=image_sizes(recipe)[-1])
    return image_CHW.astype(chainer.get_dtype(), copy=False)


def require_images(recipe: Recipe, dataset: Dataset) -> None:
    """Load some samples as training and evaluation do.

    Of files, those with the least and the most height, width and ratio of both: other images lie between them.

    Raises:
        InputRefused: a sample or an augmentation fails, or images come out in several sizes or with other channels.
    """
    keys = {"train": "augmentation.train", "eval": "augmentation.eval"}
    keys |= {} if recipe.augmentation.end is None else {"late": "augmentation.end"}
    for split, key in keys.items():
        load = augmented_samples(recipe, dataset, split)
        samples, parts = load.samples, getattr(recipe.augmentation, split)
        own = list(filter(is_of_the_user, parts))
        own_data = isinstance(innermost(samples), OwnSamples)
        if not own and isinstance(innermost(samples), SamplesInMemory):
            _require_channels(samples[0][0].shape[-1], dataset, f"sample 0 of {split}")
        for size in dict.fromkeys(image_sizes(recipe) if split != "eval" else image_sizes(recipe)[-1:]):
            shapes: dict[tuple[int, ...], int] = {}
            for index in _extremes(samples):
                try:
                    image_CHW, _ = load(0, index, image_size=size)
                except (UnfitImage, UnreadableImage, WrongSample) as error:
                    raise InputRefused(f"{error}") from error
                except Exception as error:
                    if own_data and not own:
                        what = f"{one_line(error)} ({own_place(error)})"
                        raise InputRefused(f"sample {index} of {split} cannot be loaded: {what}") from error
                    raise InputRefused(
                        f"{key} cannot be applied to sample {index}: {one_line(error)} ({own_place(error)}); an "
                        "augmentation is called with (image_HWC, draws) and returns an image, uint8 or float32"
                    ) from error
                _require_channels(len(image_CHW), dataset, f"sample {index} of {split}")
                shapes.setdefault(image_CHW.shape, index)
            if len(shapes) > 1:
                (one, first), (other, second) = list(shapes.items())[:2]
                called = getattr(samples, "name_of", "sample {}".format)
                named = [called(first), called(second)]
                raise InputRefused(
                    f"{key} makes {'x'.join(map(str, one))} of {named[0]}, {'x'.join(map(str, other))} of {named[1]}: "
                    "they cannot be computed together; bring all images to one size: Resize and CenterCrop, or "
                    "RandomResizedCrop"
                )


def _require_channels(given: int, dataset: Dataset, which: str) -> None:
    if given != dataset.channels:
        what = f"{given} channels, and the file of data set {dataset.name} says {dataset.channels}"
        raise InputRefused(f"{which} has {what}; correct `channels` there")


def _extremes(samples: Any) -> list[int]:
    """Some samples: the first ones, and those of extreme sizes among evenly spaced ones."""
    chosen = [0, len(samples) - 1]
    if hasattr(samples, "size_of"):
        sizes = {index: samples.size_of(index) for index in evenly(len(samples), _LOOKED)}
        for measure in (lambda i: sizes[i][0], lambda i: sizes[i][1], lambda i: sizes[i][0] / sizes[i][1]):
            chosen += [min(sizes, key=measure), max(sizes, key=measure)]
    return sorted(set(chosen))


def _with_weights(model: chainer.Chain, recipe: Recipe, dataset: Dataset) -> chainer.Chain:
    """Draw initial weights by the recipe's seed; before, lazy layers get their shapes from a forward of one image."""
    waits = any(parameter.array is None for parameter in model.params())
    if waits or any(getattr(link, "avg_mean", 0) is None for link in model.links()):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            model(example_image(recipe, dataset)[np.newaxis])
    draw_initial_weights(model, seed=recipe.seed)
    if hasattr(recipe.loss, "initialize"):
        recipe.loss.initialize(model)
    return model


def _require_sizes(model: chainer.Chain, component: object, *, channels: int, sizes: Sequence[int]) -> None:
    """Refuse now, not in the middle of the run, a model that fails on one of the sizes."""
    for size in sizes:
        image_NCHW = np.zeros((1, channels, size, size), dtype=chainer.get_dtype())
        try:
            with chainer.using_config("train", False), chainer.no_backprop_mode():
                model(image_NCHW)
        except (chainer.utils.type_check.InvalidType, ValueError, IndexError) as error:
            raise InputRefused(
                f"image_size moves, and {type(component).__name__} does not take images of {size}x{size}; write one "
                "number, or choose a model that ends in a global average"
            ) from error


def _require_evaluated_size(model: chainer.Chain, recipe: Recipe, scored_at: int | None) -> None:
    """Refuse now a model made for one `image_size` that evaluation would give another."""
    built_for = getattr(model, "image_size", None)
    if None not in (built_for, scored_at) and built_for != scored_at:
        raise InputRefused(
            f"{type(recipe.model).__name__} takes images of one size, and would be trained on {built_for}x{built_for} "
            f"and scored on {scored_at}x{scored_at}; give both augmentations one size, or choose a "
            "model that ends in a global average"
        )


def build_exchange(
    settings: GradientExchange, parts: Parts, mpi: Any, *, recipe: Recipe | None = None, exact: bool = False
) -> AnyExchange:
    """The exchange of a model's gradients between all workers of `mpi`, who call this together.

    Args:
        settings: of the cluster; its wire is float32 where nothing is sent, as in shared memory.
        parts: the model, on the device where its gradients will be, and its data.
        mpi: communicator of all workers; the exchange has one of its own.
        recipe: its `updater` says what the exchange does to the mathematics; None: nothing.
        exact: exact mode, which uses only `bucket_bytes` of the settings.
    Raises:
        ValueError: the communicator does not fit these workers.
    """
    device = parts.model.device
    if device.xp is np:
        connection = (Direct() if exact else settings.communicator or Auto()).connect(mpi.Dup())
    else:
        connection = connect_on_gpu(Auto() if exact else settings.communicator or Auto(), mpi.Dup())
    order = parts.order or ordered(parts).order
    updater = Updater() if recipe is None else recipe.updater
    full = settings.wire == "float32" or connection.sends_nothing()
    wire = FullWire(next(parts.model.params()).dtype) if full else WIRES[settings.wire]()
    if updater.power_sgd_rank is not None:
        rank, seed = updater.power_sgd_rank, recipe.seed
        return PowerExchange(parts.model, order, connection, wire=wire, rank=rank, seed=seed)
    copies = 2 if updater.double_buffering else 1
    flat = FlatGradients(order, connection.allocate, copies=copies)
    if updater.local_steps is not None:
        return LocalExchange(flat, connection, parts.optimizer)
    bucket_bytes = settings.bucket_bytes_of(flat.values.nbytes, double_buffering=copies > 1)
    if exact:
        return ExactExchange(flat, connection, bucket_bytes=bucket_bytes)
    return Exchange(flat, connection, wire=wire, bucket_bytes=bucket_bytes, overlap=settings.overlap)


def build_feed(recipe: Recipe, parts: Parts, device: Any) -> DeviceFeed | None:
    """What copies training samples to a GPU; None where Chainer's `device` is the CPU."""
    if device.xp is np:
        return None
    return DeviceFeed(Gpu(), load=parts.load_pixels, finish=parts.finish, dtype=images_dtype(recipe.precision))


def counted_model(recipe: Recipe, dataset: Dataset) -> tuple[chainer.Chain, Model]:
    """The recipe's model, built, and what the plan's memory needs of it; lazy layers count nothing yet.

    Raises:
        InputRefused: this machine has no memory for it.
    """
    try:
        model = build_model(recipe, dataset)
    except MemoryError as error:
        what = f"the model, {type(recipe.model).__name__}, has no room in this machine's memory: {error}"
        raise InputRefused(f"{what}; make it smaller, or use a larger machine") from error
    return model, sizes_of(model, recipe)


def sizes_of(model: chainer.Chain, recipe: Recipe) -> Model:
    """What the plan's memory needs of a model that is built, but for activations."""
    numbers = sum(each.size for each in model.params() if each.array is not None)
    return Model.of(recipe, numbers)


def _mixing(recipe: Recipe, dataset: Dataset) -> GroupMixing | None:
    mixes = recipe.augmentation.mix
    return GroupMixing(mixes=mixes, seed=recipe.seed, num_classes=dataset.num_classes) if mixes else None
