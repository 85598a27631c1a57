"""Data at real web servers: that fail, stall, give whole files only, or name no ETags."""

import http.server
import os
import socket
import time
from functools import partial
from typing import ClassVar

import pytest

from recipes.errors import InputRefused
from trainers.datasets import remote
from trainers.datasets.remote import CannotFetch, Mirror


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    for package in ("fsspec", "aiohttp"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install fsspec aiohttp requests")
    monkeypatch.setenv(remote.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.01)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves files of 100 bytes: `good`, `flaky` (which fails twice), `broken` and `stalled` (which sends nothing)."""

    seen: ClassVar[dict[str, int]] = {}

    def do_GET(self):
        name = self.path.removeprefix("/set").strip("/")
        self.seen[name] = self.seen.get(name, 0) + 1
        if name == "stalled":
            time.sleep(3)
        if name == "broken" or (name == "flaky" and self.seen[name] < 3):
            self.send_error(503)
            return
        links = "".join(f'<a href="{each}">{each}</a>' for each in ("good", "flaky", "broken", "stalled"))
        data = bytes(100) if name else links.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()

    def log_message(self, *words):
        pass


@pytest.fixture
def http_mirror(serve):
    Server.seen.clear()
    return Mirror(f"{serve(Server)}/set/")


def test_a_server_that_fails_is_asked_again_and_then_named(http_mirror):
    assert http_mirror.read("good") == http_mirror.read("flaky") == bytes(100)
    assert Server.seen["flaky"] == 3
    with pytest.raises(CannotFetch, match="/set/broken: cannot be read after 5 attempts .*503"):
        http_mirror.read("broken")
    assert Server.seen["broken"] == 5


def test_a_server_that_stalls_is_given_up(http_mirror, monkeypatch):
    monkeypatch.setattr(remote, "STALLED_SECONDS", 0.3)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    with pytest.raises(CannotFetch, match="/set/stalled: cannot be read after 2 attempts .*no byte came for 0.3 s"):
        http_mirror.read("stalled")
    with pytest.raises(CannotFetch, match="/set/stalled: cannot be read after 2 attempts .*no byte came for 0.3"):
        http_mirror.read("stalled", 10, 20)


def test_a_server_that_fails_for_a_range_is_asked_again_and_one_without_ranges_refused(http_mirror):
    with pytest.raises(CannotFetch, match="/set/broken: cannot be read after 5 attempts .*503"):
        http_mirror.read("broken", 10, 20)
    assert Server.seen["broken"] == 5
    with pytest.raises(InputRefused, match="/set/good: the server gives whole files only.* kilobatch data stage"):
        http_mirror.read("good", 10, 20)
    assert http_mirror.read("good", 0, 100) == bytes(100)


def test_a_server_that_stalls_before_it_lists_is_given_up(monkeypatch):
    monkeypatch.setattr(remote, "STALLED_SECONDS", 0.03)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    with socket.socket() as silent:  # takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(CannotFetch, match="/set: cannot be read after 2 attempts .*no byte came for 0.3 s"):
            Mirror(f"http://127.0.0.1:{silent.getsockname()[1]}/set")


def test_a_file_that_changes_on_a_server_without_etags_is_fetched_anew(tmp_path, monkeypatch, serve):
    monkeypatch.setattr(remote, "_LISTED_SECONDS", 0)
    (tmp_path / "set").mkdir()
    url = serve(partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "set"))
    for hour, content in enumerate((b"before", b"behind")):
        (tmp_path / "set/a.bin").write_bytes(content)
        os.utime(tmp_path / "set/a.bin", (3600 * hour,) * 2)
        assert Mirror(url).read("a.bin") == content
