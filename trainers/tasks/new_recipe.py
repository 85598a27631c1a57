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
import yaml

from recipes.errors import InputRefused, listed
from recipes.planning.rates import LARGEST_SHARE
from recipes.reading.open import open_dataset, open_recipe
from recipes.reading.registry import require_suffix, typed
from recipes.reports.wording import counted, number
from recipes.schema import Recipe
from recipes.schema.dataset import url_of
from trainers.datasets.held_out import open_split
from trainers.datasets.image_folder import SCORED, ImageFolder, has_folders, reader_of
from trainers.datasets.inspection import UNEVEN, class_weights, images_found
from trainers.datasets.samples import UnreadableImage, evenly
from trainers.launch.vocabulary import vocabulary
from trainers.models.weight_file_facts import Pretrained, pretrained

_MEASURED = 1000  # images whose pixels give mean and standard deviation
_SMALL = 96  # pixels of the shorter side, below which images are for the networks of CIFAR
_MOST = 256  # samples in a batch, from which `recipes scale` goes on
_LEAST = 10  # images, of which a tenth is one
_UPDATES = 3000  # of a run from drawn weights, between 30 and 200 epochs
_TUNED = 1000  # of a run from given weights, between 10 and 50 epochs

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
    "validation: {fraction: 0.1, by_class: true}     # no other images to score: a tenth is scored, not trained on\n"
)

_RECIPE = """\
kilobatch: 1
title: {model_name} on {name}

dataset: {dataset}
model: {model}
{init}epochs: {epochs}                                      # {updates} updates
{few}batch: {{global: {batch}, norm_span: {span}}}              # normalised over {span} images, on any ranks
learning_rate:
  reference: {reference:<35}# the rate at a batch of `per`{why}
  per: 256
  rule: linear                                  # in proportion to the batch: {rate:.3g} here
  schedule: {{kind: Cosine}}                      # over the whole run, to 0
{loss}optimizer: {{kind: MomentumSGD, momentum: 0.9, weight_decay: 1e-4, no_decay: [norm]}}
augmentation:
  train:
{train}
    - {{kind: HorizontalFlip}}                    # leave it out where left and right differ, as in writing
    - {normalize}
  eval: [{evaluated}{normalize}]
evaluation: {{every: 1ep{statistics}}}
seed: 0
"""
_INIT = """\
init: {{weights: {weights}, except: [fc]}}       # the last layer is drawn: it is for these classes
"""
_FEW = "# lint: ignore batch-over-tenth statistics of fewer images would be mostly noise\n"
_STATISTICS = ", norm_momentum: {{keep: {keep}, per: {batch}}}"  # of an epoch at most
_LOSS = """\
loss:
  kind: SoftmaxCrossEntropy                     # so that classes of different sizes count alike:
  class_weights: {weights}
"""


def write_new_recipe(
    folder: Path,
    recipe: Path | None,
    *,
    weights: Path | None = None,
    showing: Callable[[str, int], AbstractContextManager[Callable[[int], None]]],
) -> list[str]:
    """Write a recipe and the file of its data set.

    The model and the size of its images follow from the sizes of the images, the batch and the epochs from their
    number, mean and standard deviation from the pixels of up to 1,000 of them.

    Args:
        folder: with train/CLASS/FILE and, if there is one, val/CLASS/FILE, or one called as others do; or CLASS/FILE.
        recipe: the new file; by default named after the folder, in the working directory.
        weights: of a ResNet by torchvision's names, to begin with; None for weights that the seed draws.
        showing: (title, number of images) -> a progress bar, called with 1 after each image that is measured.
    Returns:
        lines that say what was found, written and chosen.
    Raises:
        InputRefused: the folder is not as described, has one class or too few images, an image cannot be read, a file
            exists, or `weights` are not as described.
        RecipeError: `recipe` has another suffix than .yaml.
    """
    if url_of(folder) is not None:
        raise InputRefused(f"{url_of(folder)}: is a URL; `kilobatch data stage` copies the images into a folder here")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", folder.resolve().name).strip("_-") or "images"
    recipe = recipe or Path(f"{name}-recipe.yaml")
    require_suffix(recipe)
    dataset = recipe.with_name(f"{name}.yaml")
    if dataset == recipe:
        raise InputRefused(f"{recipe} is to describe the images; give the recipe another name")
    for file in (recipe, dataset):
        if file.exists():
            way_out = f"kilobatch recipes new {quote(str(folder))} other/{recipe.name}"
            raise InputRefused(f"{file} exists, and nothing is overwritten; in another folder: {way_out}")
    reader, passed_over = _reader_of_classes(folder)
    if reader.train == "." and recipe.parent.resolve().is_relative_to(folder.resolve()):
        raise InputRefused(f"{folder} holds folders of classes alone; give a FILE outside of it")
    looks = images_found(reader.open(folder, "train"))
    known = None if weights is None else pretrained(weights)
    if known is not None:
        reader = replace(reader, channels=known.channels)
    elif set(looks["modes"]) <= {"1", "L"}:
        reader = replace(reader, channels=1)
    mean, std, measured = _mean_and_deviation(folder, reader, showing)
    try:
        _write(dataset, _dataset_text(name, folder, dataset, reader, mean=mean, std=std, measured=measured))
        described = open_dataset(str(dataset), vocabulary=vocabulary())
        trained, scored = (open_split(described, split).labels for split in ("train", "eval"))
        counts = np.bincount(trained, minlength=len(reader.class_names(folder)))
        init = {} if weights is None else {"known": known, "weights": os.path.relpath(weights, recipe.parent)}
        _write(recipe, _recipe_text(_as_text(name), dataset, looks, counts, **init))
        made = open_recipe(str(recipe), vocabulary=vocabulary()).recipe
    except BaseException:
        for file in (dataset, recipe):
            file.unlink(missing_ok=True)
        raise
    sides = " x ".join(number(looks[side]["median"]) for side in ("height", "width"))
    chosen = f"{type(made.model).__name__}, {number(made.epochs)} epochs"
    shorter = looks["shorter"]["median"]
    if shorter < min(looks["height"]["median"], looks["width"]["median"]):
        sides += f", of the shorter side {number(shorter)}"
    images = f"{counted(int(counts.sum()), 'training image')}, median height x width {sides}"
    others = f"; passed over: {counted(passed_over, 'other file')}" if passed_over else ""
    larger, batch = typed(recipe.with_name("larger.yaml")), 4 * int(made.batch.global_.sizes[0])
    scaled = [f"  kilobatch recipes scale {typed(recipe)} --batch {batch} -o {larger}"]
    unscored = [repr(name) for label, name in enumerate(reader.class_names(folder)) if label not in scored]
    turned = f"turned by EXIF, which is not applied: {number(looks['turned_by_exif'])}"
    turned += f" of {counted(looks['looked_at'], 'image')} looked at"
    unused = [name for name in SCORED if reader.eval not in (None, name) and has_folders(folder / name)]
    score = "  kilobatch evaluate RUN --data {} --split all    # once, at the end"
    return [
        f"{number(len(counts))} classes, {images}{others}",
        f"wrote {dataset}, which describes them, and {recipe}: {chosen}",
        *([turned] if looks["turned_by_exif"] else []),
        *_cut_off(looks, made),
        *([f"none is scored, for want of images, of {listed(unscored, most=5)}"] if unscored else []),
        "next:",
        f"  kilobatch data sheet {typed(recipe)} -o samples.png        # images as the model gets them",
        f"  kilobatch train {typed(recipe)}",
        *(scaled if 10 * batch <= counts.sum() else []),
        *(score.format(quote(str(folder / name))) for name in unused),
    ]


def _cut_off(looks: dict[str, Any], recipe: Recipe) -> list[str]:
    """What evaluation sees of images that are not square."""
    height, width = (int(looks[side]["median"]) for side in ("height", "width"))
    if height == width:
        return []
    resize, crop, *_ = recipe.augmentation.eval
    side = round(looks["shorter"]["median"] * crop.size / resize.shorter)
    whole = f"{number(height)} x {number(width)}"
    return [f"images are not square: evaluation scores the middle {number(side)} x {number(side)} pixels of {whole}"]


def _reader_of_classes(folder: Path) -> tuple[ImageFolder, int]:
    """The reader of a folder from which something can be learned, and how many other files it passes over."""
    reader = reader_of(folder)
    try:
        passed_over = len(reader.other_files(folder))
        reader = reader if passed_over else replace(reader, others="refuse")
        facts, names = reader.facts(folder), reader.class_names(folder)
    except (OSError, ValueError) as error:
        what = "it must hold CLASS/FILE, or train/CLASS/FILE and perhaps val/CLASS/FILE"
        raise InputRefused(f"{error}; {what}") from error
    if len(names) == 1:
        raise InputRefused(f"{folder}: there is one class, {names[0]}, and nothing to tell apart")
    if reader.eval is None and facts["num_train"] < _LEAST:
        what = f"a tenth of {facts['num_train']} images is none to score"
        raise InputRefused(f"{folder}: {what}; add some, or a folder val")
    return reader, passed_over


def _mean_and_deviation(
    folder: Path, reader: ImageFolder, showing: Callable[..., Any]
) -> tuple[list[float], list[float], int]:
    """Of each channel over an even sample of the images, each image with the same weight; and how many were read."""
    samples = reader.open(folder, "train")
    chosen, moments = evenly(len(samples), _MEASURED), []
    with showing("measuring", len(chosen)) as advance:
        for index in chosen:
            try:
                pixels = samples[index][0] / 255
            except UnreadableImage as error:
                way_out = f"mend or remove it; kilobatch data verify {quote(str(folder))} names all of its kind"
                raise InputRefused(f"{error}; {way_out}") from error
            moments.append((pixels.mean(axis=(0, 1)), (pixels**2).mean(axis=(0, 1))))
            advance(1)
    mean, square = np.mean(moments, axis=0)
    mean, std = (
        [round(float(each), 4) for each in values] for values in (mean, np.sqrt(np.maximum(square - mean**2, 0)))
    )
    if 0 in std:
        raise InputRefused(f"{folder}: all pixels of a channel are the same, {mean} on a scale from 0 to 1")
    return mean, std, len(chosen)


def _dataset_text(name: str, root: Path, file: Path, reader: ImageFolder, **measured: Any) -> str:
    usual, keys = ImageFolder(), {}
    for key in ("train", "eval"):
        if (value := getattr(reader, key)) != getattr(usual, key):
            keys[key] = json.dumps(value)
    keys |= {key: getattr(reader, key) for key in ("channels", "others") if getattr(reader, key) != getattr(usual, key)}
    of_reader = ", ".join(["kind: ImageFolder", *(f"{key}: {value}" for key, value in keys.items())])
    num_measured = measured.pop("measured")
    images = counted(num_measured, "training image")
    if reader.eval is None:
        images = f"{counted(num_measured, 'image')}, held-out ones too"
    text = _DATASET.format(
        title="Images of class folders",
        name=_as_text(name),
        reader=f"{{{of_reader}}}",
        root=json.dumps(os.path.relpath(root, file.parent)),
        channels=reader.channels,
        measured=images,
        **measured,
    )
    return text + (_VALIDATION if reader.eval is None else "")


def _recipe_text(
    name: str,
    dataset: Path,
    looks: dict[str, Any],
    counts: np.ndarray,
    *,
    known: Pretrained | None = None,
    weights: str = "",
) -> str:
    height, width, num_train = looks["height"], looks["width"], int(counts.sum())
    side = int(looks["shorter"]["median"])
    one_size = height["min"] == height["max"] == width["min"] == width["max"]
    size = 224 if side >= 160 else 96 if side >= _SMALL or known is not None else side
    is_large = side >= _SMALL or known is not None
    if known is not None:
        size = known.size or size
        keys = "".join(f", {key}: true" for key, is_set in known.keys.items() if is_set)
        model, model_name = f"{{kind: {known.kind}{keys}}}", known.kind.replace("ResNet", "ResNet-")
    elif is_large:
        model, model_name = "{kind: ResNet50, zero_last_gamma: true, padded_pool: true}", "ResNet-50"
    else:
        model, model_name = "{kind: CifarResNet, depth: 20}", "ResNet-20"
    if not is_large and one_size:
        train = f"    - {{kind: RandomCrop, size: {size}, padding: {max(1, size // 8)}}}"
        evaluated = ""
    else:
        train = f"    - {{kind: RandomResizedCrop, size: {size}}}"
        shorter = size * 8 // 7 if is_large else size
        evaluated = f"{{kind: Resize, shorter: {shorter}}}, {{kind: CenterCrop, size: {size}}}, "
    batch = max(min(16, num_train), min(_MOST, 1 << max(0, (num_train // 16).bit_length() - 1)))
    updates = -(-num_train // batch)
    least, most, wanted = (30, 200, _UPDATES) if known is None else (10, 50, _TUNED)
    epochs = min(most, max(least, math.ceil(wanted / updates)))
    reference = 0.1 if known is None else 0.03
    is_uneven = counts.max() >= UNEVEN * counts.min()
    return _RECIPE.format(
        loss=_LOSS.format(weights=class_weights(counts)) if is_uneven else "",
        name=name,
        dataset=dataset.name,
        model=model,
        model_name=model_name,
        epochs=epochs,
        updates=number(-(-epochs * num_train // batch)),
        batch=batch,
        few=_FEW if batch > LARGEST_SHARE * num_train else "",
        statistics=_STATISTICS.format(keep=(num_train - batch) * 100 // num_train / 100, batch=batch)
        if 10 * batch > num_train  # by default an update keeps 0.9
        else "",
        span=min(32, batch),
        init="" if known is None else _INIT.format(weights=json.dumps(weights)),
        reference=reference,
        why="" if known is None else ", a third of that of drawn weights",
        rate=reference * batch / 256,
        normalize=f"{{kind: Normalize, with: {name}}}" if known is None else _as_normalized(known),
        train=train,
        evaluated=evaluated,
    )


def _as_normalized(known: Pretrained) -> str:
    """The `Normalize` of the images that the weights were trained on."""
    return f"{{kind: Normalize, mean: {known.mean}, std: {known.std}}}"


def _as_text(name: str) -> str:
    """A name as YAML reads it back: in quotes where it would be a number or a date."""
    return name if yaml.safe_load(name) == name else json.dumps(name)


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x") as opened:
            opened.write(text)
    except OSError as error:
        raise InputRefused(f"{file}: {error.strerror}") from None
