"""Pages that follow runs and searches while they go on, served to this machine only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from recipes.errors import InputRefused
from recipes.reports.html import tag
from recipes.reports.page import document, page_text
from recipes.reports.record import open_run

_ADDRESS = "127.0.0.1"
_SECONDS = 3
_METRICS, _REPORT = "metrics.jsonl", "report.html"


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
    return ThreadingHTTPServer((_ADDRESS, port), partial(_Pages, folder.resolve()))


class _Pages(BaseHTTPRequestHandler):
    """A page for each folder below one: made anew of a run's metrics, as it lies there of a search."""

    def __init__(self, root: Path, *rest: object) -> None:
        self._root = root
        super().__init__(*rest)

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        path = unquote(urlsplit(self.path).path)
        folder = (self._root / path.lstrip("/")).resolve()
        if host not in (_ADDRESS, "localhost") or not folder.is_relative_to(self._root) or not folder.is_dir():
            self.send_error(404)  # another name of this address is a trick of another site's page
        elif not path.endswith("/"):
            self.send_response(301)
            self.send_header("Location", f"{urlsplit(self.path).path}/")
            self.end_headers()
        else:
            self._answer(folder)

    def _answer(self, folder: Path) -> None:
        status, again = 200, False
        if (folder / _METRICS).is_file():
            try:
                text = page_text([open_run(folder)], live=True)
            except InputRefused as error:  # it is being written, or damaged
                status, again, text = 503, True, document(folder.name, tag("p", str(error)))
        elif (folder / _REPORT).is_file():
            text = (folder / _REPORT).read_text(encoding="utf-8")
        else:
            again, text = True, _list(folder)
        content = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        if again:
            self.send_header("Refresh", str(_SECONDS))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Nothing: a live page asks every few seconds."""


def _list(folder: Path) -> str:
    """A page with a link to each run and search in a folder."""
    known = [one for one in folder.iterdir() if any((one / name).is_file() for name in (_METRICS, _REPORT))]
    links = [tag("li", tag("a", one.name, href=f"{quote(one.name)}/")) for one in sorted(known)]
    words = tag("ul", *links) if links else tag("p", "No run has written anything here yet.")
    return document(folder.name, words)
