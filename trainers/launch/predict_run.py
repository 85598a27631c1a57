"""`kilobatch predict`: what a run says of images without labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import InputRefused, printable_line, refuse_unreachable
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reports.wording import percent
from recipes.schema import Dataset
from recipes.schema.image_size import evaluated_size
from trainers.datasets.augmented import augmented_samples
from trainers.datasets.inspection import class_called
from trainers.datasets.samples import IMAGE_SUFFIXES, ImageFiles
from trainers.launch.identity import classes_of
from trainers.launch.score_run import score_samples
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import RankFailed, print_error, print_warnings
from trainers.runs.run_folder import RECIPE, require_run
from trainers.training.predictions import require_table, write_predictions

_LEAST_SHOWN = 0.01  # share of a class that is shown beside the first one


@dataclass(frozen=True, kw_only=True)
class _Loose:
    """A reader of files without labels, whatever folder and split it is asked for."""

    paths: Sequence[str]
    channels: int

    def open(self, root: Path | None, split: str) -> ImageFiles:
        """The files as samples of class 0."""
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
    """The classes that a checkpoint finds most probable for each image, which gets the recipe's evaluation transforms.

    Args:
        folder: of the run.
        images: files, and folders whose image files are all taken, also further below, in the order of their names.
        checkpoint: `newest`, `best`, or a name such as update-000060.
        predictions: a .csv that is written as by `score_run`, without what needs a label.
        allow_code: as for `train`.
        device: cpu, gpu or auto; None: cpu.
    Returns:
        of each image its `file`, `classes` by name and their `probabilities`, the most probable first: five, or all of
        up to five.
    Raises:
        InputRefused: there is no such run, checkpoint, device or image, or no image in a folder; an image cannot be
            read, or differs in size from the others as the model gets them.
    """
    require_run(folder)
    if predictions is not None:
        require_table(predictions)
    paths = [os.fspath(path) for given in images for path in _files(given)]
    opened = open_recipe(
        folder / RECIPE, vocabulary=vocabulary(allow_code=allow_code), allow_code=allow_code, of_run=True
    )
    print_warnings(opened.warnings)
    dataset, count = opened.dataset, len(paths)
    reader = _Loose(paths=paths, channels=dataset.channels)
    sizes = {"num_train": count, "num_eval": count}
    loose = replace(dataset, reader=reader, **sizes, validation=None, on_bad_image="refuse")
    _require_size(opened, loose)
    parts, score, _ = score_samples(folder, opened, loose, checkpoint=checkpoint, device=device)
    names = classes_of(folder, dataset)
    if not names:
        print_error(f"kilobatch: warning: {folder} has no record of the names of its classes; they are numbers here")
        names = list(map(str, range(dataset.num_classes)))
    if predictions is not None:
        write_predictions(predictions, score, parts.load_eval.samples, names, labelled=False)
    return [
        {
            "file": path,
            "classes": [class_called(names, label) for label in labels],
            "probabilities": [float(f"{share:.6g}") for share in shares],
        }
        for path, labels, shares in zip(paths, *(each.tolist() for each in score.top), strict=True)
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


def _require_size(opened: OpenedRecipe, loose: Dataset) -> None:
    """Refuse images whose size no augmentation changes, and which have another than the run's."""
    if evaluated_size(opened.recipe) is not None:
        return
    try:
        trained, _ = augmented_samples(opened.recipe, opened.dataset, "eval")(0, 0)
    except (LookupError, OSError, ValueError) as error:
        print_error(f"kilobatch: warning: images must have the size of the run's, which are not here: {error}")
        return
    try:
        image, _ = augmented_samples(opened.recipe, loose, "eval")(0, 0)
    except RankFailed as error:
        raise InputRefused(str(error)) from error
    if image.shape != trained.shape:
        here, there = (" x ".join(map(str, each.shape[1:])) for each in (image, trained))
        what = f"is {here} pixels as the model gets it, and the run's images are {there}"
        raise InputRefused(f"{loose.reader.paths[0]}: {what}; bring it to that size")


def _files(given: Path) -> list[Path]:
    """The image files that a path means.

    Raises:
        InputRefused: nothing is there, or no image is in a folder.
    """
    if not given.is_dir():
        if not given.exists():
            raise InputRefused(f"{given}: there is no such image or folder")
        return [given]
    found = [
        Path(parent, name)
        for parent, _, names in os.walk(given)
        for name in names
        if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
    ]
    if not found:
        raise InputRefused(f"{given}: holds no file called {', '.join(IMAGE_SUFFIXES)}")
    return sorted(found, key=os.fsencode)
