"""The identity of a recipe that is not trained yet, as a run of it here would record it."""

from __future__ import annotations

from typing import Any

from recipes.reading.identity import identity_ids
from recipes.reading.open import OpenedRecipe
from trainers.launch.preflight import refuse_folder
from trainers.runs.identity import code_digests, identity_of, own_code, sha256_of_files


def ids_of(opened: OpenedRecipe) -> dict[str, str | None]:
    """The digests of recipe, own code and data; the last is None where the data are not here."""
    return identity_ids(opened, made_of(opened))


def made_of(opened: OpenedRecipe) -> dict[str, Any]:
    """SHA-256 of each own file and of each part of the data; without `data` where these are not here."""
    trees, folders = [opened.tree, opened.dataset_tree], opened.code_folders
    try:
        refuse_folder(opened.dataset, None)
        return identity_of(trees, folders, opened.dataset)
    except (LookupError, OSError, ValueError, AttributeError):  # no reader, or one that finds nothing to read
        return {"code": sha256_of_files(own_code(trees, folders))}


def code_of(opened: OpenedRecipe) -> dict[str, str | None]:
    """SHA-256 of each own file, and None at a module that has none here; nothing is run."""
    return code_digests([opened.tree, opened.dataset_tree], opened.code_folders)
