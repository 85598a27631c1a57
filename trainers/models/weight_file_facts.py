"""What a file of weights says of its network, images and classes, and whether a recipe has the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chainer
import numpy as np
from safetensors import SafetensorError, safe_open

from recipes.errors import InputRefused, listed
from recipes.reading.read import Reading
from recipes.schema import Dataset, Init, Recipe
from recipes.schema.dataset import url_of
from trainers.augmentations import Normalize
from trainers.models.weight_names import UnfitWeights, is_pickle, loaded_paths, network_of, prefix_of

# Of torchvision's and timm's ResNets: torchvision, transforms/_presets.py, ImageClassification.
_IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
_POOLING = {"padded_pool": "true", "blur_pool": "false"}  # torchvision's, as an export's metadata have it
_NEAR = 0.005  # between means or deviations that are the same but for rounding; assumed

Numbers = tuple[list[float], list[float]]  # mean and deviation of each channel


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A trained ResNet, as its file describes it.

    Args:
        kind: of `model`.
        keys: its other keys.
        channels: of its images.
        mean, std: of each channel, by which its images were normalised, on a scale from 0 to 1.
        size: height and width of its images in pixels; None where the file does not say it.
    """

    kind: str
    keys: dict[str, bool]
    channels: int
    mean: list[float]
    std: list[float]
    size: int | None


def pretrained(file: Path) -> Pretrained:
    """The ResNet whose weights a file holds by torchvision's names: torchvision's, timm's, or an export of a run.

    An export says in its metadata how its run pooled, cropped and normalised; of others it is as torchvision does.

    Raises:
        InputRefused: the file cannot be read, is none of safetensors, or holds no such weights.
    """
    way_out = "docs/weights.md says how to make one; other networks begin with `init` of a recipe of theirs"
    if url_of(file) is not None:
        raise InputRefused(f"{url_of(file)}: is a URL; download the file, and name it here")
    if not file.is_file():
        raise InputRefused(f"there is no file {file}; {way_out}")
    if is_pickle(file):
        raise InputRefused(f"{file} is a pickle or a zip file, and these are never opened; {way_out}")
    try:
        with safe_open(file, "np") as opened:
            names, facts = opened.keys(), opened.metadata() or {}
            kind = network_of(names)
            if (
                kind is None
                and (prefix := prefix_of(names))
                and network_of(name.removeprefix(prefix) for name in names)
            ):
                raise InputRefused(f"{file} has names that begin with `{prefix}`; save it without that")
            if kind is None or "conv1.weight" not in names:
                raise InputRefused(f"{file} holds no ResNet's weights by torchvision's names; {way_out}")
            first = opened.get_slice("conv1.weight")
            if not first.get_dtype().startswith(("F", "BF")):
                raise InputRefused(f"{file} is not in floating point ({first.get_dtype()}); give weights before that")
            channels = first.get_shape()[1]
    except OSError as error:
        raise InputRefused(f"{file} cannot be read: {error}") from None
    except SafetensorError as error:
        raise InputRefused(f"{file}: no file of safetensors ({error}); {way_out}") from None
    numbers, size = _IMAGENET, None
    if (text := facts.get("augmentation.eval")) is not None:
        numbers, size = _of_export(text), _crop_of_export(text)
    if numbers is None or len(numbers[0]) != channels:
        what = f"is for {channels} channels, and does not say how they are normalised"
        raise InputRefused(f"{file} {what}; {way_out}")
    keys = {key: facts.get(f"model.{key}", usual) == "true" for key, usual in _POOLING.items()}
    return Pretrained(kind=kind, keys=keys, channels=channels, mean=numbers[0], std=numbers[1], size=size)


def require_classes(
    model: chainer.Link, init: Init, dataset: Dataset, *, head: Set[str], facts: Mapping[str, str]
) -> None:
    """Refuse the last layer of a file whose classes are not those of the data, or are in another order.

    Args:
        head: the paths of the last layer, or of all that may be it; nothing is refused if one of them is drawn.
        facts: the metadata of the file; without `classes` nothing is refused, as where the data have no names.
    Raises:
        UnfitWeights: names both.
    """
    theirs, ours = _json(facts.get("classes")), []
    with suppress(LookupError, OSError, ValueError):  # the data are elsewhere
        ours = dataset.class_names()
    if not isinstance(theirs, list) or not ours or theirs == ours:
        return
    if not head or not head <= loaded_paths(model, init):
        return
    what = f"the classes of {init.weights} are {listed(map(str, theirs))}, and those of {dataset.name} {listed(ours)}"
    if sorted(map(str, theirs)) == sorted(ours):
        what = f"the classes of {init.weights} are in another order, {listed(theirs)}, than those of {dataset.name}"
    way_out = "name the last layer here, such as [fc], so that it is drawn anew"
    raise UnfitWeights(
        "except", what, f"{way_out}; if only their names differ, give a checkpoint's weights.safetensors"
    )


def warn_of_normalisation(recipe: Recipe, dataset: Dataset, reading: Reading, facts: Mapping[str, str]) -> list[str]:
    """A warning where evaluation normalises images otherwise than those that the weights were trained on; else none.

    Weights with neither metadata nor names that begin as a checkpoint's, with a slash, are torchvision's or timm's.
    """
    file = recipe.init.weights
    if "augmentation.eval" in facts:
        theirs, whose = _of_export(facts["augmentation.eval"]), f"{file} was trained on images"
    elif _is_torch(file):
        theirs, whose = _IMAGENET, f"{file} has torchvision's names, whose weights want images"
    else:
        return []
    used = (each for each in recipe.augmentation.eval if isinstance(each, Normalize))
    ours = next(((each.mean or dataset.mean, each.std or dataset.std) for each in used), None)
    if theirs is None or _are_near(theirs, ours):
        return []
    mean, std = map(json.dumps, theirs)
    other = "none" if ours is None else "mean {} and std {}".format(*map(json.dumps, ours))
    what = f"{whose} normalised by mean {mean} and std {std}, and augmentation.eval takes {other}"
    way_out = f"write {{kind: Normalize, mean: {mean}, std: {std}}} at its end and that of augmentation.train"
    return [str(reading.origin(("init", "weights")).problem("init.weights", what, way_out))]


def _of_export(text: str) -> Numbers | None:
    """The numbers of `Normalize` in the evaluation transforms that an export names; None where it has none."""
    with suppress(KeyError, TypeError, ValueError):
        entry = _transforms(text)["Normalize"]
        return [*map(float, entry["mean"])], [*map(float, entry["std"])]
    return None


def _crop_of_export(text: str) -> int | None:
    """The size of the crop in the evaluation transforms that an export names; None where it has none."""
    size = _transforms(text).get("CenterCrop", {}).get("size")
    return size if isinstance(size, int) else None


def _transforms(text: str) -> dict[Any, dict[str, Any]]:
    """The evaluation transforms that an export names, by kind."""
    entries = _json(text)
    found = (entry for entry in (entries if isinstance(entries, list) else ()) if isinstance(entry, dict))
    return {entry["kind"]: entry for entry in found if isinstance(entry.get("kind"), str)}


def _are_near(theirs: Numbers, ours: Any) -> bool:
    if ours is None or any(map(lambda each, other: len(each) != len(other), theirs, ours)):
        return False
    return bool(np.allclose(np.array(theirs), np.array(ours), rtol=0, atol=_NEAR))


def _is_torch(file: str) -> bool:
    with safe_open(file, "np") as opened:
        return not any(name.startswith("/") for name in opened.keys())  # noqa: SIM118


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (RecursionError, ValueError):  # a stranger's
        return None
