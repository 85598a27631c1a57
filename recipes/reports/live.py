"""Pages that follow runs and searches while they go on, served to this machine only."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import quote, unquote, urlsplit

import numpy as np

from recipes.errors import InputRefused
from recipes.reports.charts import script
from recipes.reports.html import table, tag
from recipes.reports.metrics import evaluations_of, read_metrics, session_end
from recipes.reports.page import document, page_text, policy_of
from recipes.reports.record import open_run
from recipes.reports.sections import OUTCOMES
from recipes.reports.wording import percent

_ADDRESS = "127.0.0.1"
_NAMES = (_ADDRESS, "localhost", "::1")  # of this machine, also where a port is forwarded
_SECONDS = 3
_METRICS, _REPORT = "metrics.jsonl", "report.html"
_OF_A_PAGE = ("run.yaml", "environment.json", _METRICS, "evaluation/*")
# Of a page by another version, or by a stranger: its script runs, asks nobody and reads no other page.
_OTHERS_POLICY = policy_of("", live=False) + "; script-src 'unsafe-inline'; sandbox allow-scripts"
_MOST_KEPT = 16  # pages
_MOST_LISTED = 4096  # runs
_REST = 10  # times the work on a page, until it is made anew: a watched run costs at most a tenth of a core. Assumed.


def serve(folder: Path, *, port: int = 0, ready: Callable[[str], None] = print) -> None:
    """Serves the live page of a run, of a search with those of its trials, or of a folder of these, until Ctrl-C.

    Args:
        folder: of a run or a search, or one that holds such folders.
        port: 0: a free one.
        ready: called with the page's address.
    Raises:
        InputRefused: there is no such folder, or the port is taken.
    """
    if not folder.is_dir():
        raise InputRefused(f"{folder}: no such folder; name that of a run or a search, or one that holds such")
    try:
        server = server_of(folder, port)
    except OSError as error:
        raise InputRefused(f"--port: {port} cannot be had: {error.strerror}; leave it out for a free one") from None
    with server:
        ready(f"http://{_ADDRESS}:{server.server_address[1]}/")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def server_of(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """The server, which does not serve yet."""
    return ThreadingHTTPServer((_ADDRESS, port), partial(_Pages, folder.resolve(), _RunPages()))


class _RunPages:
    """The pages of runs, each kept for all tabs."""

    def __init__(self) -> None:
        self._lock, self._of = Lock(), lru_cache(_MOST_KEPT)(_RunPage)

    def page(self, folder: Path) -> str:
        """The page of a run.

        Raises:
            InputRefused: the run is being written, or damaged.
        """
        with self._lock:
            page = self._of(folder)
        return page.text()


class _RunPage:
    """The page of a run, made anew when a file that it is made from has changed, but not all the time.

    After t seconds of work the next begins `_REST` t later, less the seconds between two questions of a tab.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, Lock()
        self._text, self._made_from, self._next = "", None, -math.inf

    def text(self) -> str:
        with self._lock:
            stamps = _stamps(self._folder)
            if stamps != self._made_from and time.monotonic() >= self._next:
                began = time.thread_time()
                self._text, self._made_from = page_text([open_run(self._folder)], live=True), stamps
                self._next = time.monotonic() + _REST * (time.thread_time() - began) - _SECONDS
            return self._text


def _stamps(folder: Path) -> tuple[object, ...]:
    """Name, size and time of each file that the page of a run is made from."""
    stamps = []
    for file in sorted(file for name in _OF_A_PAGE for file in folder.glob(name)):
        with suppress(FileNotFoundError):  # it is being written anew
            stat = file.stat()
            stamps.append((file.name, stat.st_size, stat.st_mtime_ns))
    return tuple(stamps)


class _Pages(BaseHTTPRequestHandler):
    """A page for each folder below one: made of a run's metrics, as it lies there of a search."""

    def __init__(self, root: Path, runs: _RunPages, *rest: object) -> None:
        self._root, self._runs = root, runs
        super().__init__(*rest)

    def handle(self) -> None:
        with suppress(ConnectionError):  # the browser's tab was closed
            super().handle()

    def do_GET(self) -> None:
        folder = self._folder()
        try:
            if folder is None:
                self.send_error(404)  # another name of this address is a trick of another site's page
            elif not urlsplit(self.path).path.endswith("/"):
                self.send_response(301)
                self.send_header("Location", f"{urlsplit(self.path).path}/")
                self.end_headers()
            else:
                self._answer(*self._page(folder))
        except PermissionError:
            self.send_error(404)

    def _folder(self) -> Path | None:
        """The folder that is asked for, if it is there and may be served."""
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname  # browsers leave out port 80
            path = unquote(urlsplit(self.path).path, errors="surrogateescape")
            folder = Path(os.path.realpath(self._root / path.lstrip("/")))
            served = host in _NAMES and folder.is_relative_to(self._root) and folder.is_dir()
        except (OSError, ValueError):  # it may not be entered, its name is too long, or no name at all
            return None
        return folder if served else None

    def _page(self, folder: Path) -> tuple[str, int, dict[str, str]]:
        """Its text, its status, and headers of its own."""
        again = {"Refresh": str(_SECONDS)}
        if (folder / _METRICS).is_file():
            try:
                return self._runs.page(folder), 200, {}
            except InputRefused as error:  # it is being written, or damaged
                return document(folder.name, tag("p", str(error))), 503, again
        report = Path(os.path.realpath(folder / _REPORT))
        if report.is_file() and report.is_relative_to(self._root):
            text, own = report.read_text(encoding="utf-8", errors="replace"), script()
            policy = policy_of(own, live=True) if own in text else _OTHERS_POLICY
            return text, 200, {"Content-Security-Policy": policy}
        return _list(folder), 200, again

    def _answer(self, text: str, status: int, headers: dict[str, str]) -> None:
        content = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Nothing: a live page asks every few seconds."""


def _list(folder: Path) -> str:
    """A page with a row for each run and search in a folder."""
    rows = [_row(one) for one in sorted(folder.iterdir()) if _is_known(one)]
    heads = ("run", "state", "last accuracy", "last written")
    return document(folder.name, table(heads, rows) if rows else tag("p", "No run has written anything here yet."))


def _row(folder: Path) -> list[str]:
    """A link to a run or a search, how the run stands, and when the folder's file was last written."""
    link = tag("a", folder.name, href=f"{quote(os.fsencode(folder.name))}/")
    try:
        is_run = (folder / _METRICS).is_file()
        stat = (folder / (_METRICS if is_run else _REPORT)).stat()
    except OSError:  # it has been removed meanwhile
        return [link, "", "", ""]
    state = _state(folder / _METRICS, stat.st_size, stat.st_mtime_ns) if is_run else ("", "")
    return [link, *state, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stat.st_mtime))]


@lru_cache(_MOST_LISTED)
def _state(metrics: Path, *_stamp: int) -> tuple[str, str]:
    """How a run stands, and its last accuracy; read again when the stamp of its file has changed."""
    try:
        lines = read_metrics(metrics, all_updates=False)
        accuracy = evaluations_of(metrics, lines).accuracy
    except InputRefused:
        return "cannot be read", ""
    outcome = str(session_end(lines).get("value", "unfinished"))
    known = accuracy[~np.isnan(accuracy)]
    return OUTCOMES.get(outcome, outcome), percent(float(known[-1]) if len(known) else None)


def _is_known(folder: Path) -> bool:
    try:
        return any((folder / name).is_file() for name in (_METRICS, _REPORT))
    except OSError:  # it may not be entered
        return False
