"""The identity of a recipe that is not trained yet, as a run of it here would record it, and what a run recorded."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.reading.identity import identity_ids
from recipes.reading.open import OpenedRecipe
from recipes.schema import Dataset
from trainers.datasets.image_folder import ImageFolder
from trainers.launch.preflight import refuse_folder
from trainers.runs.identity import WHATS, code_digests, identity_of, own_code, read_identity, sha256_of_files


def ids_of(opened: OpenedRecipe) -> dict[str, str | None]:
    """The digests of recipe, own code and data; None for data that are not here and code that is not all here."""
    return identity_ids(opened, made_of(opened)) | ({"code": None} if missing_modules(opened) else {})


def made_of(opened: OpenedRecipe) -> dict[str, Any]:
    """SHA-256 of each own file and of each part of the data; without `data` where these are not here."""
    try:
        refuse_folder(opened.dataset, None)
        made = identity_of(opened)
        return {what: made[what] for what in WHATS}
    except (LookupError, OSError, ValueError, AttributeError):  # no reader, or one that finds nothing to read
        trees = [opened.tree, opened.dataset_tree]
        return {"code": sha256_of_files(own_code(trees, opened.code_folders))}


def code_of(opened: OpenedRecipe) -> dict[str, str | None]:
    """SHA-256 of each own file, and None at a module that has none here; nothing is run."""
    return code_digests([opened.tree, opened.dataset_tree], opened.code_folders)


def missing_modules(opened: OpenedRecipe) -> list[str]:
    """Modules that the recipe names and that are neither own code nor installed here; nothing is run."""
    unseen = [module for module, digest in code_of(opened).items() if digest is None]
    return [module for module in unseen if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except ValueError:  # `__main__`, or no name
        return False


def classes_of(run: Path, dataset: Dataset) -> list[str]:
    """The names of a run's classes, in the order of their labels: as recorded, else those of its data set's file."""
    record = read_identity(run) or {}
    names, data, reader = record.get("classes"), record.get("data"), dataset.reader
    if names is None and isinstance(reader, ImageFolder) and isinstance(data, Mapping):  # its record has no classes
        folder = f"{reader.train}/"
        names = sorted((part.removeprefix(folder) for part in data if part.startswith(folder)), key=os.fsencode)
    is_record = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_record and names else list(dataset.classes)
