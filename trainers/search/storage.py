"""Storages of a study: SQLite on one machine, a journal on a shared file system, a database server, a gRPC proxy.

`parse_storage` reads the option `--storage`, `open_storage` opens what it names, and `serve_study` is the gRPC proxy
between a database and hundreds of supervisors.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from recipes.errors import RecipeError
from trainers.launch.request import refused
from trainers.runs.storage_url import hidden, is_secret, is_well_formed
from trainers.search.storage_cache import CachedDatabase, CachedJournal, CachedProxy
from trainers.search.study import DEATHS, PRUNED_AT
from trainers.search.trial_leases import LEASE

DATABASE, JOURNAL = "study.db", "study.journal"  # in a search's folder
PASSWORD = "KILOBATCH_STORAGE_PASSWORD"  # environment variable: the password of a database URL without one
_WAIT_SECONDS = 10
_RESTART_SECONDS = 60.0  # time for a server to restart; shorter than a lease
_TRIES = 4  # if two processes create the tables at once one of them fails, and finds the tables when it tries again
_FORMS = (
    "give sqlite, journal, sqlite:////PATH, journal:///PATH, postgresql://USER@HOST/DATABASE, "
    "mysql://USER@HOST/DATABASE or grpc://HOST:PORT"
)
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}
_EXTRAS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}


@dataclass(frozen=True, kw_only=True)
class StorageAddress:
    """The storage of a study.

    Args:
        kind: of storage.
        target: an absolute path, a database's URL with its password, or host and port of a proxy.
        text: for messages and `storage.yaml`: without the password, and without the search's folder, which may be
            moved.
    """

    kind: Literal["sqlite", "journal", "database", "grpc"]
    target: str
    text: str


def parse_storage(text: str, folder: Path) -> StorageAddress:
    """The storage that `--storage` names.

    Args:
        text: one of `sqlite`, `journal` (both in the search's folder), `sqlite:////PATH`, `journal:///PATH`, the URL
            of a PostgreSQL or MySQL database, and `grpc://HOST:PORT`.
        folder: of the search.
    Raises:
        RecipeError: `text` names no storage.
    """
    if text in ("sqlite", "journal"):
        path = folder.resolve() / (DATABASE if text == "sqlite" else JOURNAL)
        return StorageAddress(kind=text, target=os.fspath(path), text=text)
    scheme, mark, rest = text.partition("://")
    dialect = scheme.partition("+")[0]
    if scheme == "sqlite" or scheme == "journal":
        return _file(scheme, rest.removeprefix("/") if scheme == "sqlite" else rest)
    if scheme == "grpc" and is_well_formed(text) and urlsplit(text).port is not None:
        parts = urlsplit(text)
        return StorageAddress(
            kind="grpc", target=f"{parts.hostname}:{parts.port}", text=f"grpc://{parts.hostname}:{parts.port}"
        )
    if mark and dialect in _DRIVERS and not is_well_formed(text):
        way_out = "in a user or a password write @ as %40, : as %3A, / as %2F, ? as %3F and # as %23"
        raise refused("--storage", f"{hidden(text)} is no URL", way_out)
    if mark and dialect in _DRIVERS and urlsplit(text).path.strip("/"):
        return _database(text)
    raise refused("--storage", f"{hidden(text)} is no storage of a study", _FORMS)


def open_storage(address: StorageAddress) -> BaseStorage:
    """Open a storage, with `CachedReads`; it is created if there is none.

    Raises:
        RecipeError: a package is missing, or the storage cannot be reached.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if address.kind == "grpc":
        return _proxy(address)
    if address.kind == "journal":
        try:
            return CachedJournal(Journal(Path(address.target)))
        except (OSError, StorageInternalError) as error:
            raise _unreachable(address, error) from None
    return CachedDatabase(database(address), at_once=(LEASE, DEATHS, PRUNED_AT))


def database(address: StorageAddress) -> RDBStorage:
    """Open a storage in SQLite, PostgreSQL or MySQL, without `CachedReads`."""
    if address.kind == "sqlite":
        try:
            return _sqlite(Path(address.target))
        except (sqlite3.Error, SQLAlchemyError) as error:
            raise _unreachable(address, error) from None
    scheme = urlsplit(address.target).scheme.partition("+")[0]
    url, options = address.target, {"pool_pre_ping": True, "pool_recycle": 1800}
    options["connect_args"] = _connect_arguments(url)
    try:
        storage = _connect(url.replace("{", "{{").replace("}", "}}"), options)
        event.listen(storage.engine, "do_connect", _connect_patiently)
        return storage
    except ImportError as error:
        extra = f"pip install 'kilobatch[{_EXTRAS[scheme]}]', or install what the URL names"
        raise refused("--storage", f"the driver of {address.text} is not installed: {error.__cause__}", extra) from None
    except Exception as error:
        raise _unreachable(address, error) from None


class Journal(JournalFileBackend):
    """Optuna's journal file, hardened against crashes and lost file systems.

    Optuna cannot read a journal in which another line follows a line that a crash cut off, so such a last line is
    dropped. The lock is a symbolic link, which every shared file system creates atomically. Optuna breaks a lock that
    was held for 30 seconds, but only if the path is absolute.

    Args:
        path: absolute; the file is created if there is none. If it disappears later it is not created again.
    Raises:
        OSError: the file cannot be read and written at the start.
        StorageInternalError: the same, later; or a line is not one of a journal.
    """

    def __init__(self, path: Path) -> None:
        assert path.is_absolute()
        lock = JournalFileSymlinkLock(os.fspath(path))
        super().__init__(os.fspath(path), lock_obj=lock)
        with open(path, "rb+") as file:
            file.seek(max(0, path.stat().st_size - 1))
            if file.read() in (b"", b"\n"):
                return
        lock.acquire()
        try:
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        finally:
            lock.release()

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        try:
            yield from super().read_logs(log_number_from)
        except (OSError, ValueError) as error:
            raise StorageInternalError(f"{self._file_path} cannot be read: {error}") from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            os.stat(self._file_path)
            super().append_logs(logs)
        except (OSError, RuntimeError) as error:  # RuntimeError: the folder, and the lock in it, was removed meanwhile
            raise StorageInternalError(f"{self._file_path} cannot be written: {error}") from error


def is_unreachable(error: BaseException) -> bool:
    """Whether an error means that the storage no longer answers."""
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    return isinstance(error, StorageInternalError) or "grpc.RpcError" in names


def root_cause(address: StorageAddress, error: BaseException) -> str:
    """The root cause of a storage's error, in one line and without the password."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    parts = urlsplit(address.target)
    items = [item.partition("=")[2] for item in parts.query.split("&") if is_secret(item)]
    secrets = [parts.password, *items] if address.kind == "database" else []
    for secret in filter(None, (form for text in secrets if text for form in (text, unquote(text)))):
        line = line.replace(secret, "***")
    return line


def _file(kind: str, path: str) -> StorageAddress:
    head = f"{kind}://{'/' * (kind == 'sqlite')}"
    if not path.startswith("/"):
        what = f"{head}{path} is relative: in another working directory it would be another file"
        raise refused("--storage", what, f"write {head}{Path(path).resolve()}")
    if not Path(path).parent.is_dir():
        raise refused("--storage", f"there is no folder {Path(path).parent}", "make it, or name another file")
    return StorageAddress(kind=kind, target=path, text=f"{head}{path}")


def _database(text: str) -> StorageAddress:
    parts = urlsplit(text)
    if "+" not in parts.scheme:
        parts = parts._replace(scheme=f"{parts.scheme}+{_DRIVERS[parts.scheme]}")
    if parts.password is None and PASSWORD in os.environ:
        user, _, host = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{user}:{quote(os.environ[PASSWORD], safe='')}@{host}")
    return StorageAddress(kind="database", target=parts.geturl(), text=hidden(text))


def _sqlite(path: Path) -> RDBStorage:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # kept in the file; readers do not wait for the writer
    storage = _connect(f"sqlite:///{path}".replace("{", "{{").replace("}", "}}"), {"connect_args": {"timeout": 60}})
    storage.engine.dispose()
    # Nothing written is lost when a process is killed. A power failure may lose the last second; its reports are read
    # again from the run's folder.
    event.listen(
        storage.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=NORMAL").close()
    )
    return storage


def _connect_arguments(url: str) -> dict[str, Any]:
    """Timeouts: the server releases locks of a dead supervisor in two minutes, and no client waits forever."""
    scheme, query = urlsplit(url).scheme, urlsplit(url).query
    if scheme in ("postgresql+psycopg", "postgresql+psycopg2") and "options=" not in query:
        settings = {
            "idle_in_transaction_session_timeout": "60s",
            "lock_timeout": "150s",
            "tcp_keepalives_idle": 30,
            "tcp_keepalives_interval": 10,
            "tcp_keepalives_count": 3,
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return {"connect_timeout": _WAIT_SECONDS, "options": options}
    if scheme.endswith("+pymysql"):
        settings = "SET SESSION wait_timeout=120, innodb_lock_wait_timeout=150"
        return {"connect_timeout": _WAIT_SECONDS, "init_command": settings}
    return {}


def _connect(url: str, options: dict[str, Any]) -> RDBStorage:
    for attempt in range(_TRIES):
        try:
            return RDBStorage(url, engine_kwargs=options)
        except (ImportError, RuntimeError):
            raise
        except Exception:
            if attempt == _TRIES - 1:
                raise
            time.sleep(0.5)
    raise AssertionError


def _connect_patiently(dialect: Any, record: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """Connect, and retry while a server restarts: safe, because no transaction has begun yet."""
    end = time.monotonic() + _RESTART_SECONDS
    while True:
        try:
            return dialect.connect(*arguments, **options)
        except dialect.loaded_dbapi.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def _proxy(address: StorageAddress) -> BaseStorage:
    host, _, port = address.target.rpartition(":")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = CachedProxy(host=host, port=int(port))
        storage.wait_server_ready(timeout=_WAIT_SECONDS)
    except ImportError as error:
        what = f"the package of {address.text} is not installed: {error}"
        raise refused("--storage", what, "pip install 'kilobatch[grpc]'") from None
    except ConnectionError:
        what = f"nobody answers at {address.text} within {_WAIT_SECONDS} s"
        raise refused(
            "--storage", what, "start it there: kilobatch serve-study STORAGE --host HOST --port PORT"
        ) from None
    return storage


def _unreachable(address: StorageAddress, error: Exception) -> RecipeError:
    way_out = f"check host, user and database; a password is taken from the URL or from {PASSWORD}"
    if address.kind != "database":
        way_out = f"see whether {address.target} is a study that can be written, or begin anew in another --out"
    return refused("--storage", f"{address.text} cannot be used: {root_cause(address, error)}", way_out)


def serve_study(storage: str, *, host: str, port: int) -> None:
    """Answer `--storage grpc://HOST:PORT` until this process is ended.

    It reads through Optuna's cache: without one every request would fetch all trials. There is no encryption and no
    authentication, so it listens only at `host`.

    Args:
        storage: `sqlite:////PATH`, or the URL of a PostgreSQL or MySQL database.
        host: name or address to listen at.
        port: to listen at.
    Raises:
        RecipeError: the database or the port cannot be used, or a package is missing.
    """
    address = parse_storage(storage, Path.cwd())
    if address.kind not in ("sqlite", "database"):
        what = f"{address.text} cannot stand behind a proxy"
        raise refused("STORAGE", what, "give the URL of a database; a journal is opened by each supervisor itself")
    try:
        importlib.import_module("grpc")
    except ImportError as error:
        raise refused("STORAGE", f"{error}", "pip install 'kilobatch[grpc]'") from None
    cached = optuna.storages.get_storage(database(address))
    print(f"serving the studies of {address.text} at grpc://{host}:{port}; end it with Ctrl-C", flush=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.run_grpc_proxy_server(cached, host=host, port=port)
    except RuntimeError as error:
        raise refused("--port", f"{host}:{port} cannot be listened at: {error}", "choose another") from None
    except KeyboardInterrupt:
        print("ended")
