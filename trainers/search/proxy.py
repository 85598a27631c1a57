"""A server between a database and hundreds of supervisors, so that none needs its own connection to the database."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import optuna

from trainers.request import refused
from trainers.search.storages import database, read_place


def serve_study(storage: str, *, host: str, port: int) -> None:
    """Answer `--storage grpc://HOST:PORT` until this process is ended.

    It reads through a cache: without one every request would fetch all trials. There is no encryption and no
    authentication, so it listens only at `host`.

    Args:
        storage: `sqlite:////PATH`, or the URL of a PostgreSQL or MySQL database.
        host: name or address to listen at.
        port: to listen at.
    Raises:
        RecipeError: the database or the port cannot be used, or a package is missing.
    """
    place = read_place(storage, Path.cwd())
    if place.kind not in ("sqlite", "database"):
        what = f"{place.said} cannot stand behind a proxy"
        raise refused("STORAGE", what, "give the URL of a database; a journal is opened by each supervisor itself")
    try:
        importlib.import_module("grpc")
    except ImportError as error:
        raise refused("STORAGE", f"{error}", "pip install 'kilobatch[grpc]'") from None
    cached = optuna.storages.get_storage(database(place))
    print(f"serving the studies of {place.said} at grpc://{host}:{port}; end it with Ctrl-C", flush=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.run_grpc_proxy_server(cached, host=host, port=port)
    except RuntimeError as error:
        raise refused("--port", f"{host}:{port} cannot be listened at: {error}", "choose another") from None
    except KeyboardInterrupt:
        print("ended")
