"""A search's folder: the search and the place of its study (`search.yaml`), and Optuna's storages as they are."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import optuna
import yaml
from optuna import storages

from recipes.errors import InputRefused, RecipeError, refuse_unreachable, refused
from recipes.extras import install
from recipes.reading.load import load_tree
from recipes.reading.open import OpenedRecipe
from recipes.reading.yaml import block_text
from recipes.search_space.open_search import OpenedSearch
from recipes.search_space.ranges import Space
from trainers.runs import run_folder as runs
from trainers.runs.identity import changes, own_code, sha256_of_files
from trainers.runs.run_folder import LOG, FolderRefused, write_whole
from trainers.runs.storage_url import hidden, is_well_formed
from trainers.search.group import JOBS

SEARCH, TRIALS = "search.yaml", "trials"
PASSWORD = "KILOBATCH_STORAGE_PASSWORD"  # environment variable: the password of a database URL without one
# Keys that may change between two sessions of one search: no trial depends on them.
_MAY_CHANGE = ("title", "budget", "retries", "ranks_per_trial", "confirm")
_FILES = {"sqlite": "study.db", "journal": "study.journal"}  # of a storage in the search's folder
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}
_EXTRAS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "grpc": "grpc"}
_PROXY_SECONDS = 10  # for a proxy to answer
_AWAY_SECONDS = 0.5, 2.0  # waited for a recipe or data that cannot be read, before they count as changed


def opened_or_begun_before(
    opening: Callable[..., Any],
    folder_of: Callable[[Any], Path],
    *,
    record: str,
    require_same: Callable[[Any, Path], object],
) -> Any:
    """What `opening` opens, a search or a frontier.

    Args:
        folder_of: its folder, where it was begun if that has the file `record`.
        require_same: raises InputRefused if another one was begun there.
    Raises:
        RecipeError: it does not open. If that is so only by rules that are younger than what was begun, each problem
            says so.
    """
    try:
        return opening()
    except RecipeError as error:
        try:
            opened = opening(of_run=True)
            folder = folder_of(opened)
            begun = (folder / record).is_file()
            if begun:
                require_same(opened, folder)
        except InputRefused:
            begun = False
        if not begun:
            raise
        how = f"{folder} was begun by an older version, which has no such rule; finish it with that one, or begin anew"
        problems = [replace(it, way_out=f"{how} in another --out: {it.way_out}") for it in error.problems]
        raise RecipeError(problems) from None


@refuse_unreachable()
def folder_record(folder: Path, opened: OpenedSearch, *, resume: bool, storage: str | None = None) -> dict[str, Any]:
    """What `search.yaml` holds, or will hold: the study's storage and name, and the search.

    Args:
        resume: whether there must be one.
        storage: of the command line; None: that of the folder, else `sqlite`.
    Raises:
        InputRefused: the folder holds something else, its study is elsewhere, `--resume` finds no search there, or
            `search.yaml` is damaged.
    """
    tree = {key: value for key, value in opened.tree.items() if key not in _MAY_CHANGE}
    own = {"search": tree, "recipe": opened.base.tree, "dataset": runs.dataset_facts(opened.base.dataset)}
    own["code"] = code_of_search(opened.base, opened.search.space)
    own = {**yaml.safe_load(yaml.safe_dump(own)), **({"storage": hidden(storage)} if storage else {})}
    if not (folder / SEARCH).is_file():
        if resume:
            raise FolderRefused(f"there is no search in {folder} to go on with; leave --resume out to begin one")
        begun = (LOG, "study.", JOBS)  # what is written before `search.yaml`
        if not folder.is_dir() or not all(path.name.startswith(begun) for path in folder.iterdir()):
            runs.require_usable(folder, resume=False)
        return {"storage": "sqlite", "study": opened.search.name, "device_hours": "of training", **own}
    before = {"code": own["code"], **read_record(folder)}  # older folders have no code
    changed = runs.differences(*map(_compared, (before, before | own))) + code_changes(before["code"], own["code"])
    if changed:
        way_out = "go on with the search it began with, or begin anew in another --out"
        raise FolderRefused(f"{folder} holds another search; {'; '.join(changed)}; {way_out}")
    return before


def _compared(record: dict[str, Any]) -> dict[str, Any]:
    """Without texts for people and own code."""
    recipe, dataset = runs.run_identity(record.get("recipe", {})), runs.without_texts(record.get("dataset", {}))
    return {**record, "recipe": recipe, "dataset": dataset, "code": None}


def code_of_search(base: OpenedRecipe, space: Space) -> dict[str, str]:
    """SHA-256 of each file of `files_of_code`."""
    return sha256_of_files(files_of_code(base, space))


def files_of_code(base: OpenedRecipe, space: Space) -> dict[str, Path]:
    """The files of the user's own code that a recipe or a choice of its space names, see `own_code`."""
    choices = [{path.rpartition(".")[2]: it} for path, range_ in space.items() for it in range_.ends.values()]
    return own_code([base.tree, base.dataset_tree, *choices], base.code_folders)


def code_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """In words, which files differ: none or one text."""
    return [*changes({"code": before}, {"code": now}).values()]


def recipe_change(opened: OpenedSearch, code: Mapping[str, str]) -> str:
    """What differs in the recipe, data or own code from when the search opened them, in a line; empty if nothing does.

    Args:
        code: `code_of_search` the recipe as it was opened.
    """
    for seconds in (*_AWAY_SECONDS, None):
        try:
            now, before = opened.base_now(), opened.base
            break
        except InputRefused as error:  # a file may be away for a moment
            if seconds is None:
                return str(error)
            time.sleep(seconds)
    both = [{**runs.run_identity(it.tree), "dataset": runs.dataset_facts(it.dataset)} for it in (before, now)]
    code_now = code_of_search(now, opened.search.space)
    return "; ".join(runs.differences(*both, where=("before", "now")) + code_changes(code, code_now))


def own_study(study: optuna.Study, folder: Path, record: Mapping[str, Any]) -> None:
    """Begin a search's folder with an empty study, or refuse a study that is another folder's.

    Raises:
        FolderRefused: the study is of another folder, or is no longer that of this folder.
    """
    begun, filled = (folder / SEARCH).is_file(), bool(study.get_trials(deepcopy=False))
    if begun and not filled and (folder / TRIALS).is_dir():
        raise _lost(folder)
    if filled and not begun:
        what = f"the study {record['study']} in this storage was begun in another folder, and one search owns it"
        raise FolderRefused(f"{what}; give the search another name")
    if not begun:
        write_whole(folder / SEARCH, block_text(dict(record)))


@contextmanager
def read_study(folder: Path) -> Iterator[optuna.Study]:
    """The study of a search that was begun in a folder; FolderRefused if it is no longer in its storage."""
    record = read_record(folder)
    if (file := _FILES.get(record["storage"])) and not (folder / file).is_file():
        raise _lost(folder)  # Optuna would make an empty one
    with opened_storage(record["storage"], folder) as storage:
        try:
            study = optuna.load_study(study_name=record["study"], storage=storage)
        except KeyError:
            raise _lost(folder) from None
        yield study


def _lost(folder: Path) -> FolderRefused:
    what = f"the study of {folder} is no longer in its storage"
    return FolderRefused(f"{what}; put it back, or begin anew in another --out")


def read_record(folder: Path) -> dict[str, Any]:
    """What `search.yaml` holds; RecipeError, with the place, where it is damaged."""
    return load_tree(folder / SEARCH, kind=None)[0]


def run_folders(folder: Path, number: int, *, seeds: int) -> list[Path]:
    """The folders of a trial's runs: its own, or with several seeds one for each in it; `folder` is the search's."""
    own = folder / TRIALS / f"trial-{number:04d}"
    return [own / f"run-{run}" for run in range(seeds)] if seeds > 1 else [own]


@contextmanager
def opened_storage(where: str, folder: Path) -> Iterator[storages.BaseStorage]:
    """Optuna's storage, closed afterwards; created if there is none.

    Args:
        where: `sqlite` or `journal`, both in the search's folder; `grpc://HOST:PORT` of Optuna's proxy; or the URL of a
            database, whose password may come from `KILOBATCH_STORAGE_PASSWORD`.
    Raises:
        RecipeError: `where` names no storage, its driver is not installed, or it does not answer.
        FolderRefused: the file in the search's folder is damaged, or may not be written.
    """
    try:
        storage = _storage(where, folder)
        cached = storages.get_storage(storage)  # a database gets Optuna's cache
    except RecipeError:
        raise
    except Exception as error:
        if where in _FILES:
            what = f"{folder / _FILES[where]} cannot be used: {root_cause(error, where)}"
            way_out = "check that it may be written, put a damaged one back, or begin anew in another --out"
            raise FolderRefused(f"{what}; {way_out}") from None
        way_out = f"check host, user and database; the password is that of the URL, or in {PASSWORD}"
        if isinstance(error, ImportError):
            extra = _EXTRAS.get(urlsplit(where).scheme.partition("+")[0])
            way_out = "install its driver" + (f": {install(extra)}" if extra else "")
        what = f"{hidden(where)} cannot be used: {root_cause(error, where)}"
        raise refused("--storage", what, way_out) from None
    try:
        yield cached
    finally:
        storage.remove_session()
        if isinstance(storage, storages.RDBStorage):
            storage.engine.dispose()


def root_cause(error: BaseException, where: str) -> str:
    """The root cause of a storage's error, in a line without the password."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    password = urlsplit(where).password if is_well_formed(where) else None
    for secret in filter(None, (password, os.environ.get(PASSWORD))):
        line = line.replace(secret, "***")
    return line


def require_storage(where: str) -> None:
    """Refuse what is neither a word for a storage, as in `opened_storage`, nor a URL."""
    if where not in _FILES and not (is_well_formed(where) and urlsplit(where).scheme and "://" in where):
        way_out = "give sqlite, journal, postgresql://USER@HOST/DATABASE, another database's URL, or grpc://HOST:PORT"
        raise refused("--storage", f"{hidden(where)} is no storage of a study, or no URL", way_out)


def _storage(where: str, folder: Path) -> storages.BaseStorage:
    if where == "journal":
        return storages.JournalStorage(storages.journal.JournalFileBackend(os.fspath(folder / _FILES[where])))
    require_storage(where)
    if where == "sqlite":
        where = f"sqlite:///{folder.resolve() / _FILES[where]}"
    parts = urlsplit(where)
    if parts.scheme == "grpc":
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            proxy = storages.GrpcStorageProxy(host=parts.hostname or "localhost", port=parts.port or 13000)
        proxy.wait_server_ready(timeout=_PROXY_SECONDS)
        return proxy
    if parts.scheme in _DRIVERS:
        parts = parts._replace(scheme=f"{parts.scheme}+{_DRIVERS[parts.scheme]}")
    if parts.password is None and PASSWORD in os.environ and "@" in parts.netloc:
        user, _, host = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{user}:{quote(os.environ[PASSWORD], safe='')}@{host}")
    of_file = parts.scheme == "sqlite"
    options: dict[str, Any] = {"connect_args": {"timeout": 60}} if of_file else {"pool_pre_ping": True}
    url = where if of_file else parts.geturl()
    return storages.RDBStorage(url.replace("{", "{{").replace("}", "}}"), engine_kwargs=options)
