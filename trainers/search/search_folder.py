"""A search's folder: its search and where its study is (`search.yaml`), and the lock of its supervisor."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import yaml

from recipes.errors import refuse_unreachable
from recipes.search_space.open_search import OpenedSearch
from trainers.runs.run_folder import (
    FolderRefused,
    dataset_facts,
    differences,
    open_to_append,
    require_usable,
    run_identity,
)
from trainers.runs.storage_url import hidden
from trainers.search.rank_groups import JOBS

SEARCH, _LOCK = "search.yaml", "lock"
_OWNER = "owner"  # user attribute of the study, and in `search.yaml`: a word that no other folder has
# Keys that may change between two sessions of one search: no trial depends on them.
_MAY_CHANGE = ("title", "budget", "retries", "ranks_per_trial", "confirm")


@refuse_unreachable()
def folder_record(
    folder: Path, opened: OpenedSearch, *, resume: bool, storage: str | None = None, study: str | None = None
) -> dict[str, Any]:
    """What `search.yaml` holds, or will hold: the study's storage, its name and owner, and the search.

    Args:
        folder, opened: of the search.
        resume: whether there must be one.
        storage, study: of the command line; None: those of the folder, else `sqlite` and the search's name.
    Raises:
        FolderRefused: the folder holds something else, its study is elsewhere, `--resume` finds no search there, or
            `search.yaml` is damaged.
    """
    tree = {key: value for key, value in opened.tree.items() if key not in _MAY_CHANGE}
    own = {"search": tree, "recipe": opened.base.tree, "dataset": dataset_facts(opened.base.dataset)}
    own = yaml.safe_load(yaml.safe_dump(own))
    if not (folder / SEARCH).is_file():
        if resume:
            raise FolderRefused(f"there is no search in {folder} to go on with; leave --resume out to begin one")
        if not _has_only_groups(folder):
            require_usable(folder, resume=False)
        place = {"storage": hidden(storage or "sqlite"), "study": study or opened.search.name}
        return {**place, _OWNER: uuid.uuid4().hex, **own}
    before = read_record(folder)
    changed = differences(_without_texts(before), _without_texts({**before, **own}))
    if changed:
        raise FolderRefused(
            f"{folder} holds another search; {'; '.join(changed)}; go on with the search it began with, or begin "
            "anew in another --out"
        )
    given = {"storage": storage and hidden(storage), "study": study}
    elsewhere = differences(before, {**before, **{key: value for key, value in given.items() if value}})
    if elsewhere:
        raise FolderRefused(
            f"{folder} has its study elsewhere; {'; '.join(elsewhere)}; leave the option out, or begin anew in another "
            "--out"
        )
    return before


def own_study(study: optuna.Study, folder: Path, record: Mapping[str, Any]) -> None:
    """Tie a study and a folder to each other, or refuse one that is another's; its owner is stored in both.

    Raises:
        FolderRefused: the study is of another folder, or is no longer that of this folder.
    """
    owner = study.user_attrs.get(_OWNER)
    if owner is None and (folder / SEARCH).is_file():
        raise FolderRefused(
            f"the study of {folder} is no longer in its storage; put it back, or begin anew in another --out"
        )
    if owner is None:
        study.set_user_attr(_OWNER, record[_OWNER])
    elif owner != record[_OWNER]:
        what = f"the study {record['study']} in this storage was begun in another folder, and one search owns it"
        raise FolderRefused(f"{what}; choose another --study")
    if not (folder / SEARCH).is_file():
        write_whole(folder / SEARCH, yaml.safe_dump(dict(record), sort_keys=False, width=120))


def read_record(folder: Path) -> dict[str, Any]:
    """What `search.yaml` holds.

    Raises:
        FolderRefused: it is damaged.
    """
    try:
        tree = yaml.safe_load((folder / SEARCH).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        tree = None
    if not isinstance(tree, dict):
        raise FolderRefused(f"{folder / SEARCH} is damaged; put it back from a copy, or begin anew in another --out")
    return tree


def trial_folder(number: int) -> str:
    """The folder of a trial, within that of its search."""
    return f"trials/trial-{number:04d}"


def run_folders(folder: Path, number: int, *, seeds: int) -> list[Path]:
    """The folders of a trial's runs: its own, or with several seeds one for each in it; `folder` is the search's."""
    own = folder / trial_folder(number)
    return [own / f"run-{run}" for run in range(seeds)] if seeds > 1 else [own]


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, or refuse a second supervisor; the system releases the lock of a killed process."""
    with open_to_append(folder, _LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            process = file.read().decode().strip() or "unknown"
            raise FolderRefused(f"process {process} searches in {folder} already; wait for it, or end it") from None
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(path)


def _has_only_groups(folder: Path) -> bool:
    """Whether the folder holds only what is written before `search.yaml`: the lock, the study, messages of groups."""
    return folder.is_dir() and all(path.name.startswith((_LOCK, "study.", JOBS)) for path in folder.iterdir())


def _without_texts(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its recipe's texts: no trial depends on them."""
    return {**record, "recipe": run_identity(record.get("recipe", {}))}
