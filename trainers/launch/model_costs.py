"""What a recipe's model takes, without building it where that is known.

The library's own recipes have it in `model_costs.json`, by the model's component, classes and shape of the images.
What is measured is kept in the user's cache folder. Loads Chainer only to measure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.memory import Model, ModelCosts
from recipes.reading.open import OpenedRecipe
from recipes.schema.image_size import evaluated_size, image_sizes
from recipes.schema.vocabulary import Unbuilt
from recipes.sharing.cache import cache_folder, part_of
from trainers import kernels, models
from trainers.datasets.augmented import augmented_samples
from trainers.runs.identity import own_code

SHIPPED = Path(__file__).with_suffix(".json")
_MEASURING = ("models", "kernels", "gradients", "training/model_costs.py")  # of trainers: what decides the bytes

Shape = tuple[int, int, int]  # of an image: channels, height, width


def known_model(opened: OpenedRecipe, *, loads: bool = False) -> Model | None:
    """What the plan's memory needs of a recipe's model; None where it is not known without building it.

    Args:
        loads: load a sample where the recipe does not say how large images are; else it is then not known.
    """
    if isinstance(opened.recipe.model, Unbuilt) or _needs_check(opened):
        return None
    found = {size: _found(opened, shape) for size, shape in _shapes(opened, loads=loads).items()}
    if None in found.values():
        return None
    return _model(opened, next(iter(found.values())).num_parameters, found)


def model_of(opened: OpenedRecipe) -> Model | None:
    """The same, the model built and measured where that is needed; None where kilobatch lacks the model.

    Without an image, as where the data are missing, or where a forward fails, the activations stay unknown.

    Raises:
        InputRefused: this machine has no memory for the model, or it does not take the images.
    """
    if isinstance(opened.recipe.model, Unbuilt):
        return None
    if (known := known_model(opened, loads=True)) is not None:
        return known
    from trainers.training.build import counted_model

    model, counted = counted_model(opened.recipe, opened.dataset)
    costs = {}
    for size, shape in _shapes(opened, loads=True).items():
        found = None if shape is None else _found(opened, shape) or _measured(opened, model, shape)
        if found is not None:
            costs[size] = found
    return _model(opened, next((each.num_parameters for each in costs.values()), counted.num_parameters), costs)


def _model(opened: OpenedRecipe, num_parameters: int, costs: Mapping[int | None, ModelCosts]) -> Model:
    return Model.of(opened.recipe, num_parameters, costs, cpu_kernels=kernels.of_the_cpu(kernels.of_runs()))


def _needs_check(opened: OpenedRecipe) -> bool:
    """Whether the model, built for one size of images, is given another in evaluation, which `build_model` refuses."""
    one_size = getattr(opened.recipe.model, "takes_one_size", False)
    return one_size and {*image_sizes(opened.recipe)} != {evaluated_size(opened.recipe)}


def _measured(opened: OpenedRecipe, model: Any, shape: Shape) -> ModelCosts | None:
    from trainers.training.model_costs import measure

    try:
        costs = measure(model, shape, opened.recipe.evaluation)
    except Exception:  # of the user's own model: `train` says what is wrong with it
        return None
    if (place := _place(opened, shape)) is not None:
        with suppress(OSError), part_of(place) as part:
            part.write_text(json.dumps({"key": _key(opened, shape), **costs.as_tree()}), encoding="utf-8")
            part.replace(place)
    return costs


def _found(opened: OpenedRecipe, shape: Shape | None) -> ModelCosts | None:
    """What is known of the model with such images: from kilobatch itself, else from the cache."""
    if shape is None:
        return None
    key = _key(opened, shape)
    if _is_ours(opened) and key in _shipped():
        return ModelCosts.from_tree(_shipped()[key])
    place = _place(opened, shape)
    with suppress(OSError, ValueError, TypeError, KeyError):  # missing, or damaged: it is measured anew
        tree = json.loads(place.read_bytes()) if place else {}
        if tree["key"] == key:
            return ModelCosts.from_tree(tree)
    return None


def _shapes(opened: OpenedRecipe, *, loads: bool) -> dict[int | None, Shape | None]:
    """The shape of an image by a segment's image size; None where it is not known, as without data."""
    recipe, channels = opened.recipe, opened.dataset.channels
    steps = [None] if recipe.image_size is None else recipe.image_size.sizes
    sides = dict(zip(steps, image_sizes(recipe), strict=True))
    sample = _shape_of_a_sample(opened) if loads and None in sides.values() else None
    return {size: sample if side is None else (channels, side, side) for size, side in sides.items()}


def _shape_of_a_sample(opened: OpenedRecipe) -> Shape | None:
    """Of the first training sample, where it can be had."""
    with suppress(OSError, ValueError, LookupError, TypeError, InputRefused):
        return augmented_samples(opened.recipe, opened.dataset, "train")(0, 0)[0].shape
    return None


def _key(opened: OpenedRecipe, shape: Shape) -> str:
    """A model and its images in words."""
    return f"{opened.recipe.model!r}, {opened.dataset.num_classes} classes, images {'x'.join(map(str, shape))}"


def _is_ours(opened: OpenedRecipe) -> bool:
    return type(opened.recipe.model).__module__.startswith(f"{models.__name__}.")


@cache
def _shipped() -> Mapping[str, Any]:
    return json.loads(SHIPPED.read_bytes())


def _place(opened: OpenedRecipe, shape: Shape) -> Path | None:
    """The file in the cache, whose name changes with the code; None for a model of an installed package."""
    digest = hashlib.sha256(f"{_key(opened, shape)}\n{_code()}".encode())
    if not _is_ours(opened):
        if "." not in opened.tree["model"]["kind"]:
            return None  # of an installed package; a dotted name was opened with --allow-code
        own = own_code([opened.tree["model"]], opened.code_folders)
        if not own:
            return None
        for name, file in own.items():
            digest.update(name.encode() + file.read_bytes())
    return cache_folder() / "models" / f"{digest.hexdigest()}.json"


@cache
def _code() -> str:
    """A hash of what decides the bytes in kilobatch itself."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for name in _MEASURING:
        found = root / name
        for file in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            digest.update(file.read_bytes())
    return digest.hexdigest()
