"""Where a study is kept: in Optuna's own storages, as they are. `--storage` names one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import optuna
from optuna.storages import BaseStorage, GrpcStorageProxy, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from recipes.errors import RecipeError
from trainers.launch.request import refused
from trainers.runs.storage_url import hidden, is_well_formed

DATABASE, JOURNAL = "study.db", "study.journal"  # in a search's folder
PASSWORD = "KILOBATCH_STORAGE_PASSWORD"  # environment variable: the password of a database URL without one
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}
_SECONDS = 10  # for a proxy to answer


@contextmanager
def opened_storage(where: str, folder: Path) -> Iterator[BaseStorage]:
    """Optuna's storage, closed afterwards; created if there is none.

    Args:
        where: `sqlite` or `journal`, both in the search's folder; `grpc://HOST:PORT` of Optuna's proxy; or the URL of a
            database, whose password may come from `KILOBATCH_STORAGE_PASSWORD`.
        folder: of the search.
    Raises:
        RecipeError: `where` names no storage, its driver is not installed, or it does not answer.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = _open(where, folder)
        shown = optuna.storages.get_storage(storage)  # a database gets Optuna's cache
    except ImportError as error:
        way_out = "pip install 'kilobatch[postgresql]', [mysql] or [grpc], or what the URL names"
        raise refused("--storage", f"the driver of {hidden(where)} is not installed: {error}", way_out) from None
    except RecipeError:
        raise
    except Exception as error:
        way_out = f"check host, user and database; the password is that of the URL, or in {PASSWORD}"
        what = f"{hidden(where)} cannot be used: {one_line(error, where)}"
        raise refused("--storage", what, way_out) from None
    try:
        yield shown
    finally:
        storage.remove_session()
        if isinstance(storage, RDBStorage):
            storage.engine.dispose()


def one_line(error: BaseException, where: str) -> str:
    """The root cause of a storage's error, in a line without the password."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    password = urlsplit(where).password if is_well_formed(where) else None
    for secret in filter(None, (password, os.environ.get(PASSWORD))):
        line = line.replace(secret, "***")
    return line


def _open(where: str, folder: Path) -> BaseStorage:
    if where == "journal":
        return JournalStorage(JournalFileBackend(os.fspath(folder / JOURNAL)))
    if where == "sqlite":
        where = f"sqlite:///{folder.resolve() / DATABASE}"
    parts = urlsplit(where) if is_well_formed(where) else None
    if parts is None or not parts.scheme or "://" not in where:
        way_out = "give sqlite, journal, postgresql://USER@HOST/DATABASE, another database's URL, or grpc://HOST:PORT"
        raise refused("--storage", f"{hidden(where)} is no storage of a study, or no URL", way_out)
    if parts.scheme == "grpc":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            proxy = GrpcStorageProxy(host=parts.hostname or "localhost", port=parts.port or 13000)
        proxy.wait_server_ready(timeout=_SECONDS)
        return proxy
    if parts.scheme in _DRIVERS:
        parts = parts._replace(scheme=f"{parts.scheme}+{_DRIVERS[parts.scheme]}")
    if parts.password is None and PASSWORD in os.environ and "@" in parts.netloc:
        user, _, host = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{user}:{quote(os.environ[PASSWORD], safe='')}@{host}")
    options: dict[str, Any] = {"pool_pre_ping": True}
    if parts.scheme == "sqlite":
        options = {"connect_args": {"timeout": 60}}
    url = parts.geturl() if parts.scheme != "sqlite" else where
    return RDBStorage(url.replace("{", "{{").replace("}", "}}"), engine_kwargs=options)
