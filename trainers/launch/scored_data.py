"""The data that `kilobatch evaluate` scores, which may be others than the run's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from recipes.reading.open import OpenedRecipe
from recipes.reports.wording import listed
from recipes.schema import Dataset
from trainers.datasets.one_split import OneSplit, reader_of_one
from trainers.launch.identity import classes_of
from trainers.launch.preflight import DataRefused, refused_data
from trainers.runs.identity import changes, digests_of_data, own_code, read_identity, sha256_of_files
from trainers.runs.run_folder import DATASET

_MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class ScoredData:
    """What is scored.

    Args:
        dataset: opens the scored split alone, with the labels of the run.
        classes: names of the run's classes, in the order of their labels; numbers where they have none.
        differences: in words, which code and data are not those that the run was trained with.
    """

    dataset: Dataset
    classes: list[str]
    differences: list[str]


def scored_data(opened: OpenedRecipe, run: Path) -> ScoredData:
    """The split that a run scores, of the data in its root.

    It may have another number of samples, and fewer classes, which are found by their names where these are known.

    Raises:
        DataRefused: it cannot be read; a class is none of the run's; the scored samples are held out of another number
            than in the run, so that they are others.
    """
    dataset, file, held_out = opened.dataset, run / DATASET, opened.dataset.validation is not None
    split = "train" if held_out else "eval"
    reader = reader_of_one(dataset.reader, split)
    try:
        found = reader.facts(dataset.root)
        names = OneSplit(reader=reader).class_names(dataset.root)
    except (LookupError, OSError, ValueError) as error:
        raise refused_data(dataset, error) from error
    num_train, num_eval = dataset.num_train, dataset.num_eval
    if reader is not dataset.reader and not held_out:
        num_train = num_eval = found["num_train"]
    elif not held_out:
        num_train, num_eval = found.get("num_train", num_train), found.get("num_eval", num_eval)
    elif (there := found.get("num_train")) != num_train + num_eval:
        raise DataRefused(
            f"data set {dataset.name}: {file} says num_train and num_eval together: {num_train + num_eval:,}, and "
            f"there are {there:,}; from another number others are held out, also such as were trained on; give "
            "the run's own data with --data"
        )
    trained = classes_of(run, dataset.reader)
    labels = _labels(dataset, names, trained)
    if not (names and trained) and found.get("num_classes", 0) > dataset.num_classes:
        what = f"{file} says num_classes: {dataset.num_classes:,}, and there are {found['num_classes']:,}"
        raise DataRefused(f"data set {dataset.name}: {what}; the model knows no others: give other data with --data")
    scored = replace(dataset, num_train=num_train, num_eval=num_eval, reader=OneSplit(reader=reader, labels=labels))
    classes = trained or names or list(map(str, range(dataset.num_classes)))
    return ScoredData(dataset=scored, classes=classes, differences=_differences(opened, reader, run))


def _labels(dataset: Dataset, names: Sequence[str], trained: Sequence[str]) -> tuple[int, ...] | None:
    """The run's label of each class of the data, None if they are the same."""
    if not names or not trained or names == trained:
        return None
    if unknown := [name for name in names if name not in trained]:
        strange, known = (listed(map(repr, each), most=_MOST_NAMED) for each in (unknown, trained))
        what = f"there are classes that the run was not trained on: {strange}; it knows {known}"
        raise DataRefused(f"data set {dataset.name}: {what}; rename them, or give other data with --data")
    return tuple(map(trained.index, names))


def _differences(opened: OpenedRecipe, reader: Any, run: Path) -> list[str]:
    """What has changed of own code and of the scored data; nothing where the run has no record of them."""
    before = read_identity(run)
    if before is None:
        return []
    dataset = opened.dataset
    try:
        data = digests_of_data(reader, dataset)
    except (LookupError, OSError, ValueError):  # a reader that takes both splits at once
        data = {dataset.name: None}
    if reader is not dataset.reader and isinstance(before.get("data"), Mapping):
        kept = {part: digest for part, digest in before["data"].items() if part in data or _is_of(part, reader.train)}
        before = {**before, "data": kept}
    code = sha256_of_files(own_code([opened.tree, opened.dataset_tree], opened.code_folders))
    return list(changes(before, {"code": code, "data": data}).values())


def _is_of(part: str, split: str) -> bool:
    """Whether a part of the data's identity is of a split: a class folder in it, or a file of its pattern."""
    return part.startswith(f"{split}/") or fnmatchcase(part, split)
