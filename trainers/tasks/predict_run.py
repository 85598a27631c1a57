"""`kilobatch predict`: the classes that a run finds most probable for images without labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import InputRefused, printable_line, refuse_unreachable
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reports.wording import percent
from recipes.schema.image_size import evaluated_size, image_sizes
from trainers.datasets.augmented import augmented_samples
from trainers.datasets.inspection import class_called
from trainers.datasets.samples import IMAGE_SUFFIXES, ImageFiles, UnreadableImage
from trainers.launch.identity import classes_of
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import UnfitImage, print_warnings
from trainers.runs.run_folder import RECIPE, require_run
from trainers.tasks.score_run import give_weights, read_scored
from trainers.training.predictions import OF_TOP, TOP, require_table, write_table

_TOGETHER = 32  # images of a forward
_LEAST_SHOWN = 0.01  # share of a class that is shown beside the first one


@dataclass(frozen=True, kw_only=True)
class _Files:
    """A reader of files without labels, whatever folder and split it is asked for."""

    paths: Sequence[str]
    channels: int

    def open(self, root: Path | None, split: str) -> ImageFiles:
        """The files, as samples of class 0."""
        labels = np.zeros(len(self.paths), np.int32)
        return ImageFiles(labels=labels, channels=self.channels, folder=Path(), paths=self.paths)


@refuse_unreachable()
def predict_run(
    folder: Path,
    images: Sequence[Path],
    *,
    checkpoint: str = "newest",
    predictions: Path | None = None,
    allow_code: bool = False,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """The classes that a checkpoint finds most probable for each image, after the recipe's evaluation transforms.

    Args:
        folder: of the run.
        images: files, and folders whose image files are all taken, also further below, in the order of their names.
        checkpoint: `newest`, `best`, or a name such as update-000060.
        predictions: a .csv that is written as by `score_run`, without what needs a label.
        allow_code: as for `train`.
        device: cpu, gpu or auto; None: cpu.
    Returns:
        of each image its `file`, `classes` by name and their `probabilities`, the most probable first: five, or all of
            up to five. Images that cannot be read, or have another size than the run's, are named in warnings.
    Raises:
        InputRefused: there is no such run, checkpoint, device or image, or no image in a folder, or none of them can be
            used.
    """
    require_run(folder)
    if predictions is not None:
        require_table(predictions)
    paths = [os.fspath(path) for given in images for path in _image_files(given)]
    words = vocabulary(allow_code=allow_code)
    opened = open_recipe(folder / RECIPE, vocabulary=words, allow_code=allow_code, of_run=True, as_trained=True)
    print_warnings(opened.warnings)
    names = classes_of(folder, opened.dataset)
    if not names:
        print_warnings([f"{folder} has no record of the names of its classes; they are numbers here"])
    found = [
        (path, labels, [class_called(names, label) for label in labels], shares)
        for path, labels, shares in _predicted(folder, opened, paths, checkpoint=checkpoint, device=device)
    ]
    if not found:
        raise InputRefused("there is no image that can be used; give others")
    if predictions is not None:
        columns = ("sample", "file", "predicted", "predicted_class", "probability")
        columns += OF_TOP if opened.dataset.num_classes > TOP else ()
        lines = [
            (index, path, labels[0], called[0], shares[0], " ".join(map(str, labels)), " ".join(shares))
            for index, (path, labels, called, shares) in enumerate(found)
        ]
        write_table(predictions, [columns, *(line[: len(columns)] for line in lines)])
    return [
        {"file": path, "classes": called, "probabilities": list(map(float, shares))}
        for path, _, called, shares in found
    ]


def predicted_text(predicted: Sequence[dict[str, Any]]) -> str:
    """A line for each image: its most probable class, and others of 1 % or more, up to three."""
    lines = []
    for each in predicted:
        pairs = list(zip(each["classes"], each["probabilities"], strict=True))[:3]
        shown = [pair for at, pair in enumerate(pairs) if at == 0 or pair[1] >= _LEAST_SHOWN]
        words = ", ".join(f"{name} {percent(share)}" for name, share in shown)
        lines.append(printable_line(f"{each['file']}: {words}"))
    return "\n".join(lines)


def _predicted(
    folder: Path, opened: OpenedRecipe, paths: Sequence[str], *, checkpoint: str, device: str | None
) -> Iterator[tuple[str, list[int], list[str]]]:
    """Of each image that can be read its path, labels and probabilities, the most probable first."""
    path, content, kind = read_scored(folder, checkpoint, device)

    from chainer.utils.type_check import InvalidType

    from trainers.training.build import drawn_model
    from trainers.training.extensions.evaluation import logits_of, most_probable

    recipe, dataset = opened.recipe, opened.dataset
    reader = _Files(paths=paths, channels=dataset.channels)
    load = augmented_samples(recipe, replace(dataset, reader=reader, validation=None, on_bad_image="refuse"), "eval")
    model, trained = None, _shape_of_the_run(opened)
    shape = trained
    for first in range(0, len(paths), _TOGETHER):
        several = []
        for index in range(first, min(first + _TOGETHER, len(paths))):
            try:
                image, _ = load(0, index)
                shape = shape or image.shape
                if image.shape != shape:
                    here, there = (" x ".join(map(str, each[1:])) for each in (image.shape, shape))
                    whose = "the run's images" if trained else "images before it"
                    raise UnfitImage(f"{paths[index]}: {here} pixels as the model gets it, and {whose} are {there}")
            except (UnreadableImage, UnfitImage) as error:
                print_warnings([f"passed over {str(error).partition('; it is sample')[0]}"])
                continue
            several.append((paths[index], image))
        if several and model is None:
            example = _Files(paths=[several[0][0]], channels=dataset.channels)  # lazy layers see an image
            given = replace(dataset, reader=example, num_train=1, num_eval=1, validation=None)
            side = image_sizes(recipe)[-1] or (shape[1] if shape[1] == shape[2] else None)
            model = drawn_model(recipe, given, sides=(side, None))
            give_weights(model, recipe, path, content, kind)
        if several:
            names, images = zip(*several, strict=True)
            try:
                logits = logits_of(model, np.stack(images), flipped=recipe.evaluation.flipped)
            except InvalidType as error:  # the size of the run's images is not known
                what = f"the run's model does not take images of {' x '.join(map(str, shape[1:]))} pixels"
                raise InputRefused(f"{what}; bring them to the size of the run's") from error
            top = most_probable(logits.array, min(TOP, dataset.num_classes))
            for name, labels, shares in zip(names, *(each.tolist() for each in top), strict=True):
                yield name, labels, [f"{share:.6g}" for share in shares]


def _shape_of_the_run(opened: OpenedRecipe) -> tuple[int, ...] | None:
    """The shape of the run's images as the model gets them; None where all images get one size, or it is not known."""
    if evaluated_size(opened.recipe) is not None:
        return None
    try:
        return augmented_samples(opened.recipe, opened.dataset, "eval")(0, 0)[0].shape
    except (LookupError, OSError, ValueError) as error:
        what = "another size than that of the run's images, which are not here, is not noticed"
        print_warnings([f"{what}: {error}"])
        return None


def _image_files(given: Path) -> list[Path]:
    """The image files that a path means.

    Raises:
        InputRefused: nothing is there, or no image is in a folder.
    """
    if given.is_file():
        return [given]
    if not given.is_dir():
        raise InputRefused(f"{given}: there is no such image or folder")
    found, seen = [], set()
    for parent, folders, names in os.walk(given, followlinks=True):
        if (real := os.path.realpath(parent)) in seen:
            folders.clear()  # links may lead in a circle
            continue
        seen.add(real)
        paths = (Path(parent, name) for name in names if name.lower().endswith(IMAGE_SUFFIXES) and name[0] != ".")
        found += [path for path in paths if path.is_file()]  # a pipe would be waited for
    if not found:
        raise InputRefused(f"{given}: holds no file called {', '.join(IMAGE_SUFFIXES)}")
    return sorted(found, key=os.fsencode)
