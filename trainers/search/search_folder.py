"""A search's folder: the search that it belongs to, the storage of its study, and the lock of its supervisor."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import TrialState

from recipes.errors import InputRefused, refuse_unreachable
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch
from trainers.runs.run_folder import FolderRefused, differences, open_to_append, require_usable
from trainers.runs.storage_url import hidden
from trainers.search.rank_groups import JOBS
from trainers.search.storage import opened_storage
from trainers.search.study import (
    FOLDER,
    finished,
    new_owner,
    new_study,
    ranked_trials,
    search_identity,
    searches_differ,
)

SEARCH, STORAGE, _LOCK = "search.yaml", "storage.yaml", "lock"
TRIALS = "trials"  # a run's folder for each trial: trial-0017


@refuse_unreachable()
def check_folder(folder: Path, opened: OpenedSearch, *, resume: bool) -> None:
    """Refuse a folder that holds something else than this search.

    Raises:
        FolderRefused: it does, `--resume` finds no search there, or `search.yaml` is damaged.
    """
    if not (folder / SEARCH).is_file():
        if resume:
            raise FolderRefused(f"there is no search in {folder} to go on with; leave --resume out to begin one")
        if not _has_only_groups(folder):
            require_usable(folder, resume=False)
        return
    before = _read(folder / SEARCH)
    changed = searches_differ(before, yaml.safe_load(yaml.safe_dump(search_identity(opened))))
    if changed:
        raise FolderRefused(
            f"{folder} holds another search; {'; '.join(changed)}; go on with the search it began with, or begin "
            "anew in another --out"
        )


def study_place(folder: Path, opened: OpenedSearch, *, storage: str | None, study: str | None) -> dict[str, str]:
    """The study's storage, its name, and the word that makes it this folder's own, from `storage.yaml` or the options.

    Raises:
        FolderRefused: the folder's search has its study elsewhere, or `storage.yaml` is damaged.
    """
    before = _read(folder / STORAGE) if (folder / STORAGE).is_file() else {}
    shown = hidden(storage) if storage else before.get("storage", "sqlite")
    place = {"storage": shown, "study": study or before.get("study", opened.search.name)}
    changed = differences(before, {**before, **place}) if before else []
    if changed:
        raise FolderRefused(
            f"{folder} has its study elsewhere; {'; '.join(changed)}; leave the option out, or begin anew in another "
            "--out"
        )
    return {**place, "owner": before.get("owner", new_owner())}


@contextmanager
def study_of(folder: Path, search: Search) -> Iterator[optuna.Study]:
    """The study of the search in a folder, for reading; its storage is closed afterwards."""
    place = _read(folder / STORAGE)
    with opened_storage(place["storage"], folder) as storage:
        yield new_study(search, storage=storage, name=place["study"])


def ranked_in(folder: Path) -> tuple[list[Path], int]:
    """The trials' folders of a search, the best first, and how many of its trials have finished.

    Raises:
        InputRefused: there is no search in the folder.
    """
    if not (folder / STORAGE).is_file():
        raise InputRefused(f"prior: there is no search in {folder}; a search's folder has a file {STORAGE}")
    place = _read(folder / STORAGE)
    with opened_storage(place["storage"], folder) as storage:
        study = optuna.load_study(study_name=place["study"], storage=storage)
        return [folder / trial.user_attrs[FOLDER] for trial in ranked_trials(study)], len(finished(study))


def require_own_trials(folder: Path, study: optuna.Study) -> None:
    """Refuse a folder with a trial of another study: its scores would be taken for those of this study's trial.

    Raises:
        FolderRefused: a trial's folder has a number that the study does not know.
    """
    numbers = {trial.number for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING}
    for path in sorted((folder / TRIALS).glob("trial-*")):
        number = path.name.rpartition("-")[2]
        if number.isdecimal() and int(number) not in numbers:
            raise FolderRefused(
                f"{path} is of a trial that this search's study does not know: that is another study now, or an older "
                "copy; put the study back, or move that folder away, or begin anew in another --out"
            )


def run_folders(folder: Path, seeds: int) -> list[Path]:
    """The folders of a trial's runs: its own, or with several seeds one for each in it."""
    return [folder / f"run-{run}" for run in range(seeds)] if seeds > 1 else [folder]


def write_search_file(folder: Path, opened: OpenedSearch) -> None:
    """Write `search.yaml`, which ties the folder to this search, if it is not there yet."""
    _write_once(folder / SEARCH, search_identity(opened))


def write_storage_file(folder: Path, place: dict[str, str]) -> None:
    """Write `storage.yaml`, where the study is, if it is not there yet."""
    _write_once(folder / STORAGE, place)


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


def _has_only_groups(folder: Path) -> bool:
    """Whether the folder holds only what ranks of a foreign launcher write before the supervisor checks the search."""
    if not folder.is_dir():
        return False
    loose = [path for path in folder.iterdir() if not path.is_dir() and path.name != _LOCK]
    return not loose and all(JOBS in (path.name, path.parent.name) for path in folder.glob("*/*"))


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        tree = None
    if not isinstance(tree, dict):
        raise FolderRefused(f"{path} is damaged; put it back from a copy, or begin anew in another --out")
    return tree


def _write_once(path: Path, tree: dict[str, Any]) -> None:
    if not path.exists():
        write_whole(path, yaml.safe_dump(tree, sort_keys=False, width=120))


def write_whole(path: Path, text: str, *, errors: str = "strict") -> None:
    """Write a file whole or not at all; `errors` as for `open`."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", errors=errors)
    partial.rename(path)
