"""From the parts a recipe names to the objects that train: the one file that knows all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np

from recipes.planning.planner import Model
from recipes.schema import Dataset, Recipe
from recipes.vocabulary import Unbuilt
from trainers.augmentations.pipeline import Pipeline
from trainers.keyed_draws import draw_initial_weights
from trainers.mixing import GroupMixing
from trainers.optimizers.weight_decay import decay_parameters
from trainers.stream_iterator import LoadImage


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a recipe becomes.

    Args:
        model: with its initial weights, on the CPU.
        optimizer: set up with the model.
        loss: (logits, targets) -> mean over the samples given.
        load_train, load_eval: (epoch, index) -> image as the model gets it, label.
        mixing: of training samples, None where the recipe does not mix.
        num_eval: samples of the evaluation set.
    """

    model: chainer.Chain
    optimizer: chainer.Optimizer
    loss: Callable[..., chainer.Variable]
    load_train: LoadImage
    load_eval: LoadImage
    mixing: GroupMixing | None
    num_eval: int


def build(recipe: Recipe, dataset: Dataset) -> Parts:
    """Build everything a recipe names.

    Raises:
        ValueError: the data are not what the data set's file says; the loss wants something of the model that it does
            not have.
    """
    model = build_model(recipe, dataset)
    draw_initial_weights(model, seed=recipe.seed)
    if hasattr(recipe.loss, "initialize"):
        recipe.loss.initialize(model)
    optimizer = recipe.optimizer.build()
    optimizer.setup(model)
    decay_parameters(optimizer, recipe.optimizer)
    loads = {}
    for split, parts, expected in (
        ("train", recipe.augmentation.train, dataset.num_train),
        ("eval", recipe.augmentation.eval, dataset.num_eval),
    ):
        samples = dataset.reader.open(dataset.root, split)
        if len(samples) != expected:
            raise ValueError(
                f"data set {dataset.name}: {len(samples)} samples in {split}, its file says {expected}; "
                f"correct num_{split} there, or give the right folder with --data"
            )
        pipeline = Pipeline(parts=parts, dataset=dataset, seed=recipe.seed)
        loads[split] = functools.partial(_load, samples, pipeline)
    return Parts(
        model=model,
        optimizer=optimizer,
        loss=recipe.loss.build(),
        load_train=loads["train"],
        load_eval=loads["eval"],
        mixing=_mixing(recipe, dataset),
        num_eval=dataset.num_eval,
    )


def build_model(recipe: Recipe, dataset: Dataset) -> chainer.Chain:
    """The recipe's model for a data set, its weights not yet drawn from the recipe's seed."""
    return recipe.model.build(num_classes=dataset.num_classes, channels=dataset.channels, image_size=image_size(recipe))


def image_size(recipe: Recipe) -> int | None:
    """Side of the images that the model is trained on in pixels, where the augmentation fixes one."""
    sizes = [part.size for part in recipe.augmentation.train if isinstance(getattr(part, "size", None), int)]
    return sizes[-1] if sizes else None


def model_sizes(recipe: Recipe, dataset: Dataset) -> Model | None:
    """Numbers that the plan's memory needs, from the model itself; None where the model is not built yet."""
    if isinstance(recipe.model, Unbuilt):
        return None
    model = build_model(recipe, dataset)
    return Model(
        num_parameters=sum(parameter.size for parameter in model.params()),
        num_state_values=getattr(recipe.optimizer, "num_state_values", 0),
    )


def _mixing(recipe: Recipe, dataset: Dataset) -> GroupMixing | None:
    mixes = recipe.augmentation.mix
    return GroupMixing(mixes=mixes, seed=recipe.seed, num_classes=dataset.num_classes) if mixes else None


def _load(samples: Any, pipeline: Pipeline, epoch: int, index: int) -> tuple[np.ndarray, int]:
    image_HWC, label = samples[index]
    return pipeline(image_HWC, epoch=epoch, index=index), label
