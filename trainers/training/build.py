"""From the parts a recipe names to the objects that train: the one file that knows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import chainer
import numpy as np

from recipes.errors import InputRefused
from recipes.planning.cluster import GradientExchange
from recipes.planning.memory import Model
from recipes.reading.checks import other_size_in_evaluation
from recipes.schema import Dataset, Init, Recipe, Updater
from recipes.schema.image_size import evaluated_size, image_sizes
from trainers.augmentations.mixing import GroupMixing
from trainers.augmentations.pipeline import Finish
from trainers.communicators import Auto, Direct
from trainers.communicators.gpu import Gpu
from trainers.communicators.host_staging import connect_on_gpu
from trainers.communicators.wire import WIRES, FullWire
from trainers.datasets.augmented import AugmentedSamples, augmented_samples, late_samples
from trainers.datasets.bad_images import SkippedImage, SkippingSamples
from trainers.datasets.device_feed import DeviceFeed
from trainers.gradients.exchange import ExactExchange, Exchange
from trainers.gradients.flat_gradients import BackwardOrder, FlatGradients, backward_order
from trainers.gradients.local_steps import LocalExchange
from trainers.gradients.mixed_precision import images_dtype
from trainers.gradients.power_sgd import PowerExchange
from trainers.losses import loss_function
from trainers.models.keyed_random import draw_initial_weights
from trainers.optimizers.hyperparameters import set_rate_factors
from trainers.optimizers.weight_decay import decay_parameters
from trainers.runs.errors import one_line, own_place

AnyExchange = Exchange | ExactExchange | PowerExchange | LocalExchange


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
    model = drawn_model(recipe, dataset, sides=loaded_sides(recipe, train, evaluated))
    optimizer = recipe.optimizer.build()
    optimizer.setup(model)
    decay_parameters(optimizer, recipe.optimizer)
    set_rate_factors(optimizer, recipe.learning_rate.factors, loaded=loaded_parameters(model, recipe.init))
    return Parts(
        model=model,
        optimizer=optimizer,
        loss=loss_function(recipe.loss),
        load_train=train,
        load_eval=evaluated,
        load_late=None if recipe.augmentation.end is None else late_samples(recipe, dataset, train),
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


Sides = Sequence[int | None]  # of the images that a model is trained on, and of those that it is scored on


def loaded_sides(recipe: Recipe, train: AugmentedSamples, evaluated: AugmentedSamples) -> Sides:
    """The sides of the first sample of each split as the model gets it; None of one that is not square."""
    shapes = (load(0, 0, image_size=image_sizes(recipe)[-1])[0].shape for load in (train, evaluated))
    return [height if height == width else None for _, height, width in shapes]


def build_model(recipe: Recipe, dataset: Dataset, *, sides: Sides | None = None) -> chainer.Chain:
    """The recipe's model for a data set, its weights not yet drawn from the recipe's seed.

    Args:
        sides: in pixels, as loaded images have them; None: those that are known from the augmentations, else those of
            the first samples, where data are at hand.
    Raises:
        InputRefused: the recipe's image size changes, and the model does not take one of the sizes; the model takes one
            size only, and evaluation gives it another; its constructor fails.
    """
    sizes, scored_at = image_sizes(recipe), evaluated_size(recipe, known=True)
    is_known = image_sizes(recipe, known=True)[-1] is not None
    if sides is None and not is_known:
        sides = _sides_at_hand(recipe, dataset)
    if sides is not None:
        is_known = is_known or sides[0] is not None
        sizes[-1], scored_at = sides[0] or sizes[-1], sides[1] or scored_at
    try:
        model = recipe.model.build(num_classes=dataset.num_classes, channels=dataset.channels, image_size=sizes[-1])
    except (InputRefused, MemoryError):
        raise
    except Exception as error:
        what = f"the model, {type(recipe.model).__name__}, cannot be built: {one_line(error)} ({own_place(error)})"
        unknown = "; image_size is None: the data are not at hand, or their images are not square"
        raise InputRefused(f"{what}; correct it{unknown if sizes[-1] is None else ''}") from error
    if len(set(sizes)) > 1:
        _require_sizes(model, recipe.model, channels=dataset.channels, sizes=sorted(set(sizes)))
    if sides is None and scored_at is None and getattr(model, "image_size", None) is not None:
        _, scored_at = _sides_at_hand(recipe, dataset)
    if is_known:
        _require_evaluated_size(model, recipe, scored_at)
    return model


def _sides_at_hand(recipe: Recipe, dataset: Dataset) -> Sides:
    """`loaded_sides` of the data, where they are here."""
    with suppress(OSError, ValueError, LookupError, TypeError, InputRefused):  # no data, or bad ones: said elsewhere
        return loaded_sides(recipe, *(augmented_samples(recipe, dataset, split) for split in ("train", "eval")))
    return None, None


def drawn_model(recipe: Recipe, dataset: Dataset, *, sides: Sides | None = None) -> chainer.Chain:
    """The recipe's model with its weights drawn from the recipe's seed; arguments and errors as of `build_model`."""
    return draw_weights(build_model(recipe, dataset, sides=sides), recipe, dataset)


def loaded_parameters(model: chainer.Chain, init: Init | None) -> set[str]:
    """Paths of the parameters that a file of weights gives."""
    if init is None:
        return set()
    from trainers.models.weight_names import loaded_paths  # and ChainerCV

    return loaded_paths(model, init)


def example_image(recipe: Recipe, dataset: Dataset) -> np.ndarray:
    """The first training sample as the model gets it: CHW, of CHAINER_DTYPE."""
    load = augmented_samples(recipe, dataset, "train")
    image_CHW, _ = load(0, 0, image_size=image_sizes(recipe)[-1])
    return image_CHW.astype(chainer.get_dtype(), copy=False)


def draw_weights(model: chainer.Chain, recipe: Recipe, dataset: Dataset) -> chainer.Chain:
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
        what, way_out = other_size_in_evaluation(type(recipe.model).__name__, built_for, scored_at)
        raise InputRefused(f"{what}; {way_out}")


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
    bucket_bytes = settings.bucket_bytes_of(flat.values.nbytes, double_buffering=copies > 1, exact=exact)
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
        InputRefused: this machine has no memory for it; see `build_model` for others.
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
