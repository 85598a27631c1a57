"""`kilobatch recipes new`: a first recipe for a folder of images, with what can be measured of them filled in."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from recipes.reading.registry import require_suffix, typed
from recipes.reports.wording import counted, number
from trainers.datasets.image_folder import SCORED, ImageFolder, is_flat
from trainers.datasets.inspection import UNEVEN, class_weights, images_found
from trainers.datasets.samples import UnreadableImage, evenly
from trainers.launch.vocabulary import vocabulary

_MEASURED = 1000  # images whose pixels give mean and standard deviation
_SMALL = 96  # pixels of the shorter side, below which images are for the networks of CIFAR
_MOST = 256  # samples in a batch, from which `recipes scale` goes on
_UPDATES = 3000  # of a run, between 30 and 200 epochs

_DATASET = """\
# {title}
name: {name}
reader: {reader}
root: {root}
channels: {channels}
mean: {mean}                # of {measured}, on a scale from 0 to 1
std: {std}
"""
_VALIDATION = (
    "validation: {fraction: 0.1}                    # no other images to score: a tenth is scored, not trained on\n"
)

_RECIPE = """\
kilobatch: 1
title: {model_name} on {name}

dataset: {dataset}
model: {model}
epochs: {epochs}                                      # {updates} updates
batch: {{global: {batch}, norm_span: {span}}}              # normalised over {span} images, on any ranks
learning_rate:
  reference: 0.1                                # the rate at a batch of `per`
  per: 256
  rule: linear                                  # in proportion to the batch: {rate:.3g} here
  schedule: {{kind: Cosine}}                      # over the whole run, to 0
{loss}optimizer: {{kind: MomentumSGD, momentum: 0.9, weight_decay: 1e-4, no_decay: [norm]}}
augmentation:
  train:
{train}
    - {{kind: HorizontalFlip}}                    # leave it out where left and right differ, as in writing
    - {{kind: Normalize, with: {name}}}
  eval: [{evaluated}{{kind: Normalize, with: {name}}}]
evaluation: {{every: 1ep}}
seed: 0
"""
_LOSS = """\
loss:
  kind: SoftmaxCrossEntropy                     # so that classes of different sizes count alike:
  class_weights: {weights}
"""


def write_new_recipe(
    folder: Path, recipe: Path | None, *, showing: Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
) -> list[str]:
    """Write a recipe and the file of its data set.

    The model and the size of its images follow from the sizes of the images, the batch and the epochs from their
    number, mean and standard deviation from the pixels of up to 1,000 of them.

    Args:
        folder: with train/CLASS/FILE and, if there is one, val/CLASS/FILE, or one called as others do; or CLASS/FILE.
        recipe: the new file; by default named after the folder, in the working directory.
        showing: (title, number of images) -> a progress bar, called with 1 after each image that is measured.
    Returns:
        lines that say what was found, written and chosen.
    Raises:
        InputRefused: the folder is not as described, an image cannot be read, or a file exists.
        RecipeError: `recipe` has another suffix than .yaml.
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", folder.resolve().name).strip("_-") or "images"
    recipe = recipe or Path(f"{name}-recipe.yaml")
    require_suffix(recipe)
    dataset = recipe.with_name(f"{name}.yaml")
    for file in (recipe, dataset):
        if file.exists():
            raise InputRefused(f"{file} exists, and nothing is overwritten; give another FILE, in another folder")
    reader, root = ImageFolder(eval=next((name for name in SCORED if (folder / name).is_dir()), None)), folder
    try:
        if is_flat(folder):
            whole = folder.resolve()
            reader, root = ImageFolder(train=whole.name, eval=None), whole.parent
        facts, samples = reader.facts(root), reader.open(root, "train")
    except (OSError, ValueError) as error:
        what = "it must hold CLASS/FILE, or train/CLASS/FILE and perhaps val/CLASS/FILE"
        raise InputRefused(f"{error}; {what}") from error
    looks = images_found(samples)
    if set(looks["modes"]) <= {"1", "L"}:
        reader = replace(reader, channels=1)
        samples = reader.open(root, "train")
    try:
        mean, std, measured = _mean_and_deviation(samples, showing)
    except UnreadableImage as error:
        way_out = f"mend or remove it; kilobatch data verify {quote(str(folder))} names all of its kind"
        raise InputRefused(f"{error}; {way_out}") from error
    num_train = facts["num_train"] - (facts["num_train"] // 10 if reader.eval is None else 0)
    texts = {
        dataset: _dataset_text(name, root, dataset, reader, mean=mean, std=std, measured=measured),
        recipe: _recipe_text(name, dataset, looks, num_train, np.bincount(samples.labels)),
    }
    _write(texts)
    try:
        made = open_recipe(str(recipe), vocabulary=vocabulary()).recipe
    except BaseException:
        for file in texts:
            file.unlink()
        raise
    sides = " x ".join(number(looks[side]["median"]) for side in ("height", "width"))
    images = f"{counted(num_train, 'training image')}, median height x width {sides}"
    chosen = f"{type(made.model).__name__}, {number(made.epochs)} epochs"
    return [
        f"{number(facts['num_classes'])} classes, {images}",
        f"wrote {dataset}, which describes them, and {recipe}: {chosen}",
        "next:",
        f"  kilobatch data sheet {typed(recipe)} -o samples.png        # images as the model gets them",
        f"  kilobatch train {typed(recipe)}",
        f"  kilobatch recipes scale {typed(recipe)} --batch {4 * made.batch.global_.sizes[0]:g} -o larger.yaml",
    ]


def _mean_and_deviation(samples: Any, showing: Callable[..., Any]) -> tuple[list[float], list[float], int]:
    """Of each channel over an even sample of the images, each image with the same weight; and how many were read."""
    chosen = evenly(len(samples), _MEASURED)
    moments = []
    with showing("measuring", len(chosen)) as advance:
        for index in chosen:
            pixels = samples[index][0] / 255
            moments.append((pixels.mean(axis=(0, 1)), (pixels**2).mean(axis=(0, 1))))
            advance(1)
    mean, square = np.mean(moments, axis=0)
    return [[round(float(each), 4) for each in values] for values in (mean, np.sqrt(square - mean**2))] + [len(chosen)]


def _dataset_text(name: str, root: Path, file: Path, reader: ImageFolder, **measured: Any) -> str:
    usual, keys = ImageFolder(), {}
    for key in ("train", "eval"):
        if (value := getattr(reader, key)) != getattr(usual, key):
            keys[key] = json.dumps(value)
    keys |= {"channels": reader.channels} if reader.channels != 3 else {}
    of_reader = ", ".join(["kind: ImageFolder", *(f"{key}: {value}" for key, value in keys.items())])
    images = counted(measured.pop("measured"), "training image")
    text = _DATASET.format(
        title="Images of class folders",
        name=name,
        reader=f"{{{of_reader}}}",
        root=json.dumps(os.path.relpath(root, file.parent)),
        channels=reader.channels,
        measured=images,
        **measured,
    )
    return text + (_VALIDATION if reader.eval is None else "")


def _recipe_text(name: str, dataset: Path, looks: dict[str, Any], num_train: int, counts: np.ndarray) -> str:
    height, width = looks["height"], looks["width"]
    side = int(min(height["median"], width["median"]))
    one_size = height["min"] == height["max"] == width["min"] == width["max"]
    if side >= _SMALL:
        size, model, model_name = (224 if side >= 160 else 96), "{kind: ResNet50, zero_last_gamma: true}", "ResNet-50"
    else:
        size, model, model_name = side, "{kind: CifarResNet, depth: 20}", "ResNet-20"
    if side < _SMALL and one_size:
        train = f"    - {{kind: RandomCrop, size: {size}, padding: {max(1, size // 8)}}}"
        evaluated = ""
    else:
        train = f"    - {{kind: RandomResizedCrop, size: {size}}}"
        shorter = size if side < _SMALL else size * 8 // 7
        evaluated = f"{{kind: Resize, shorter: {shorter}}}, {{kind: CenterCrop, size: {size}}}, "
    batch = max(1, min(_MOST, 1 << max(0, (num_train // 16).bit_length() - 1)))
    updates = -(-num_train // batch)
    epochs = min(200, max(30, math.ceil(_UPDATES / updates)))
    is_uneven = counts.max() >= UNEVEN * counts.min()
    return _RECIPE.format(
        loss=_LOSS.format(weights=class_weights(counts)) if is_uneven else "",
        name=name,
        dataset=dataset.name,
        model=model,
        model_name=model_name,
        epochs=epochs,
        updates=number(epochs * num_train // batch),
        batch=batch,
        span=min(32, batch),
        rate=0.1 * batch / 256,
        train=train,
        evaluated=evaluated,
    )


def _write(texts: dict[Path, str]) -> None:
    """Write new files, all or none."""
    written: list[Path] = []
    try:
        for file, text in texts.items():
            with file.open("x") as opened:
                written.append(file)
                opened.write(text)
    except OSError as error:
        for file in written:
            file.unlink()
        raise InputRefused(f"{file}: {error.strerror}") from None
