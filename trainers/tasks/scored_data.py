"""The data that `kilobatch evaluate` scores, which may be others than the run's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import listed
from recipes.reading.open import OpenedRecipe
from recipes.schema import Dataset
from trainers.datasets.image_folder import SCORED, ImageFolder, has_folders, is_flat
from trainers.datasets.samples import splits_of, written_otherwise
from trainers.launch.identity import classes_of
from trainers.launch.preflight import DataRefused, refused_data
from trainers.runs.identity import (
    IDENTITY,
    changes,
    digests_of_data,
    installed_code,
    is_of_the_user,
    own_code,
    read_identity,
    sha256_of_files,
)
from trainers.runs.run_folder import DATASET

_MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class OneSplit:
    """A reader that opens one split, whichever is asked for, with the labels of a run.

    Args:
        reader: of the split, which it calls `train`; of readers that have no key for a split, of both.
        labels: the run's label of each class of the data; None: they are the run's own.
    """

    reader: Any
    labels: tuple[int, ...] | None = None

    def open(self, root: Path | None, split: str) -> Any:
        """The samples."""
        samples = self.reader.open(root, split if splits_of(self.reader) == ("train", "eval") else "train")
        if self.labels is None:
            return samples
        return replace(samples, labels=np.array(self.labels, samples.labels.dtype)[samples.labels])

    def class_names(self, root: Path | None) -> list[str]:
        """Names of the classes of the data, in the order of the reader's labels; none where it has none."""
        return list(self.reader.class_names(root)) if hasattr(self.reader, "class_names") else []


@dataclass(frozen=True, kw_only=True)
class ScoredData:
    """What is scored.

    Args:
        dataset: opens the scored split alone, with the labels of the run.
        classes: names of the run's classes, in the order of their labels; numbers where they have none.
        differences: in words, which code and data are not those that the run was trained with.
        unasked: those of them that the user did not ask for.
        without_names: whose classes have no names, so that those of other data are matched by their numbers: "the run"
            or "these data"; empty where they are matched by name, or the data are the run's.
    """

    dataset: Dataset
    classes: list[str]
    differences: list[str]
    unasked: list[str]
    without_names: str


def scored_data(opened: OpenedRecipe, run: Path) -> ScoredData:
    """The split that a run scores, of the data in its root.

    It may have another number of samples, and fewer classes, which are found by their names where these are known.

    Raises:
        DataRefused: it cannot be read; a class is none of the run's; the scored samples are held out of another number
            than in the run, so that they are others.
    """
    dataset, file, held_out = opened.dataset, run / DATASET, opened.dataset.validation is not None
    split = "train" if held_out else "eval"
    reader = _reader_of_one(dataset.reader, split)
    try:
        found = reader.facts(dataset.root)
        names = OneSplit(reader=reader).class_names(dataset.root)
        data = digests_of_data(reader, dataset)
    except (LookupError, OSError, ValueError) as error:
        raise refused_data(dataset, error) from error
    if len(names) < found.get("num_classes", 0):  # a record of other data
        names = []
    num_train, num_eval = dataset.num_train, dataset.num_eval
    if reader is not dataset.reader and not held_out:
        num_train = num_eval = found["num_train"]
    elif not held_out:
        num_train, num_eval = found.get("num_train", num_train), found.get("num_eval", num_eval)
    elif (there := found.get("num_train", num_train + num_eval)) != num_train + num_eval:
        raise DataRefused(
            f"data set {dataset.name}: {file} says num_train and num_eval together: {num_train + num_eval:,}, and "
            f"there are {there:,}; from another number others are held out, also such as were trained on; give "
            "the run's own data with --data, or score every image of CLASS/FILE in it with --split all"
        )
    trained = classes_of(run, dataset)
    labels = _labels(dataset, names, trained)
    if names and not trained and len(names) != dataset.num_classes:
        what = f"{run} has no record of its classes, and here are {len(names):,} of {dataset.num_classes:,}"
        raise DataRefused(f"data set {dataset.name}: {what}, by whatever numbers; give data with all classes")
    if not (names and trained) and found.get("num_classes", 0) > dataset.num_classes:
        what = f"{file} says num_classes: {dataset.num_classes:,}, and there are {found['num_classes']:,}"
        raise DataRefused(f"data set {dataset.name}: {what}; the model knows no others: give other data with --data")
    scored = replace(dataset, num_train=num_train, num_eval=num_eval, reader=OneSplit(reader=reader, labels=labels))
    classes = trained or names or list(map(str, range(dataset.num_classes)))
    differences = _differences(opened, reader, data, run)
    nameless = "the run" if not trained else "" if names else "these data"
    return ScoredData(
        dataset=scored,
        classes=classes,
        differences=list(differences.values()),
        unasked=list(differences.values()),
        without_names=nameless if "data" in differences else "",
    )


def scored_folder(opened: OpenedRecipe, run: Path, folder: Path) -> ScoredData:
    """Every image of a folder of class folders, whatever the data of the run are; the run knows each class by its name.

    Raises:
        DataRefused: it is no such folder; a class is none of the run's, or the run has no record of its classes.
    """
    dataset, trained = opened.dataset, classes_of(run, opened.dataset)
    if not trained:
        what = f"{run} has no names of its classes, by which images are scored"
        raise DataRefused(f"--split all: {what}; write them into {run / DATASET} as `classes: [...]`")
    reader = ImageFolder(train=".", eval=None, channels=dataset.channels, others="skip")
    if not is_flat(folder) and (splits := [name for name in (*SCORED, "train") if has_folders(folder / name)]):
        what = f"{folder} holds {splits[0]}/CLASS"
        raise DataRefused(f"--split all: {what}; name the folder of its classes: --data {folder / splits[0]}")
    try:
        count, names = reader.facts(folder)["num_train"], reader.class_names(folder)
    except (OSError, ValueError) as error:
        raise DataRefused(f"--split all: {error}") from error
    own = OneSplit(reader=reader, labels=_labels(dataset, names, trained))
    scored = replace(dataset, num_train=count, num_eval=count, reader=own, root=folder, validation=None)
    changed = _differences(opened, dataset.reader, {}, run).get("code")
    unasked = [changed] if changed else []
    differences = [f"data: all images of {folder}", *unasked]
    return ScoredData(dataset=scored, classes=trained, differences=differences, unasked=unasked, without_names="")


def _reader_of_one(reader: Any, split: str) -> Any:
    """A reader of the files of one split, as `train`; the reader itself, where it has no key for each of them."""
    if is_of_the_user(reader) or getattr(reader, "eval", None) is None:
        return reader
    return replace(reader, train=getattr(reader, split), eval=None)


def _labels(dataset: Dataset, names: Sequence[str], trained: Sequence[str]) -> tuple[int, ...] | None:
    """The run's label of each class of the data, None if they are the same."""
    if not names or not trained or names == trained:
        return None
    if unknown := [name for name in names if name not in trained]:
        strange, known = (listed(map(repr, each), most=_MOST_NAMED) for each in (unknown, trained))
        twins = {name: twin for name in unknown if (twin := written_otherwise(name, trained))}
        for name, twin in list(twins.items())[:1]:
            known = f"{known}; {ascii(name)} is {ascii(twin)} there, the same letters in other bytes"
        what = f"there are classes that the run was not trained on: {strange}; it knows {known}"
        raise DataRefused(f"data set {dataset.name}: {what}; rename them, or give other data with --data")
    return tuple(map(trained.index, names))


def _differences(opened: OpenedRecipe, reader: Any, data: Mapping[str, str], run: Path) -> dict[str, str]:
    """In words what has changed of own `code` and of the scored `data`."""
    before = read_identity(run)
    if before is None:
        return {"data": f"code or data, perhaps: {run / IDENTITY} is missing or damaged"}
    if reader is not opened.dataset.reader and isinstance(before.get("data"), Mapping):
        kept = {part: digest for part, digest in before["data"].items() if part in data or _is_of(part, reader.train)}
        before = {**before, "data": kept}
    trees = [opened.tree, opened.dataset_tree]
    code = sha256_of_files(own_code(trees, opened.code_folders))
    installed = installed_code(trees, opened.reading.vocabulary)
    return changes(before, {"code": code, "data": data, "installed": installed})


def _is_of(part: str, split: str) -> bool:
    """Whether a part of the data's identity is of a split: a class folder in it, or a file of its pattern."""
    return part.startswith(f"{split}/") or fnmatchcase(part, split)
