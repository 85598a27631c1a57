"""Data at a URL, such as `s3://bucket/imagenet`: listed once, and what is needed of them fetched to a cache.

That is whole files, or ranges of the bytes of larger ones. fsspec opens the URL and alone knows the credentials: from
its configuration, or the environment. The cache is a folder for each URL in `KILOBATCH_CACHE`, else
`~/.cache/kilobatch/data`, which all processes of the machine share. When the data of a URL are larger than
`KILOBATCH_CACHE_SIZE`, 200GB by default, those not read for longest are removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

from recipes.errors import InputRefused
from recipes.extras import install
from recipes.schema.dataset import url_of
from recipes.sharing.cache import cache_folder
from trainers.datasets.fingerprints import sha256_of_parts
from trainers.runs.errors import RankFailed
from trainers.runs.mpi_ranks import launched_by_us

FOLDER_VARIABLE, SIZE_VARIABLE = "KILOBATCH_CACHE", "KILOBATCH_CACHE_SIZE"
ATTEMPTS = 5  # of a file, before it ends the run
FIRST_PAUSE = 1.0  # seconds before the second attempt; each further pause is twice as long
STALLED_SECONDS = 30.0  # without a byte, after which an attempt is given up
FETCHERS = 16  # files or ranges that are fetched at once
_SLOWEST = 100_000  # bytes a second of a range, below which an attempt is given up
_LISTED_SECONDS = 600.0  # for which a listing is trusted
_BY_RANKS_SECONDS = 86_400.0  # the same by a run's ranks, which need that of the command that started them
_JUST_NOW_SECONDS = 3.0
_DEAD_SECONDS = 3600.0  # without a byte, after which a part of a file is of a process that was killed
_READS = 3  # attempts to read from the cache, which may be too small for all that is read at once
_LISTING, _LOCK, _RANGES = ".listing.json", ".lock", ".ranges"
_MARKS = ("ETag", "md5Hash", "mtime", "Last-Modified", "etag", "last_modified")  # as drivers of fsspec call them
_SECRET = re.compile("KEY|SECRET|TOKEN|PASS", re.IGNORECASE)  # in the name of a variable
# A file below the URL, its first byte and the number of bytes; None: the whole file.
Piece = tuple[str, int, int | None]
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class CannotFetch(RankFailed, OSError):
    """A file at a URL cannot be read, after several attempts."""


def mirror_of(root: Path | None) -> Mirror | None:
    """The mirror of a root that is a URL; None for a folder."""
    url = None if root is None else url_of(root)
    return None if url is None else _mirror(url)


def local_root(root: Path) -> Path:
    """A folder with all files of a root: itself, or a URL's whole copy in the cache."""
    mirror = mirror_of(root)
    if mirror is None:
        return root
    mirror.fetch_all(mirror.sizes)
    return mirror.folder


@lru_cache(maxsize=8)
def _mirror(url: str) -> Mirror:
    return Mirror(url)


class Mirror:
    """The files below a URL, and a folder of the cache that gets each of them, or ranges of it, when it is first read.

    Args:
        url: without credentials.
    Attributes:
        folder: in the cache.
        sizes: path below the URL -> bytes.
        marks: path below the URL -> what changes with the content: an ETag, a checksum, a time of change; may be empty.
    Raises:
        InputRefused: there is no such place, or no package to open it with.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        place = os.environ.get(FOLDER_VARIABLE)
        self.folder = (Path(place) if place else cache_folder() / "data") / sha256_of_parts([self.url])[:16]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._limit = _bytes_of(os.environ.get(SIZE_VARIABLE) or "200GB")
        self._fetched = 0  # bytes since the cache was last made to fit
        self._wanted: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._fetchers: list[threading.Thread] = []
        self._coming: dict[Path, threading.Event] = {}  # what some thread of this process is fetching
        self._choosing = threading.Lock()
        self._files, self._base = _open(self.url)
        self._is_web = self.url.startswith(("http://", "https://"))
        self.sizes, self.marks, self.version = self._listed(_LISTED_SECONDS)
        self._names_in: dict[str, list[str]] = {}
        for name in self.sizes:
            self._names_in.setdefault(name.rpartition("/")[0], []).append(name)
        for folder in self._names_in:
            (self.folder / folder).mkdir(parents=True, exist_ok=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _mirror, (self.url,)

    def names_in(self, folder: str) -> list[str]:
        """Names of the files of a folder, without those that begin with a dot."""
        return [name for name in self._names_in.get(folder, []) if not name.rpartition("/")[2].startswith(".")]

    def fetch(self, name: str, start: int = 0, size: int | None = None) -> Path:
        """The file of this name below the URL, or a range of its bytes, in the cache.

        Raises:
            CannotFetch: it cannot be read, after several attempts.
        """
        if name not in self.sizes:
            raise CannotFetch(f"{self.url}/{name}: was not there when the data were listed")
        path = self.folder / (name if size is None else f"{_RANGES}/{name}/{start}")
        while True:
            with suppress(FileNotFoundError):
                if path.stat().st_size == (self.sizes[name] if size is None else size):
                    os.utime(path)
                    return path
            with self._choosing:
                coming = self._coming.get(path)
                if coming is None:
                    self._coming[path] = threading.Event()
                    break
            coming.wait()  # if that thread fails, this one tries
        try:
            self._bring(path, name, start, size)
        finally:
            self._coming.pop(path).set()
        if self._fetched > self._limit / 20:
            self._fit()
        return path

    def _bring(self, path: Path, name: str, start: int, size: int | None) -> None:
        part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        if size is None:
            self._attempt(name, lambda: self._get(name, part))
        else:
            part.write_bytes(self.range(name, start, size))
        part.replace(path)
        self._fetched += self.sizes[name] if size is None else size

    def range(self, name: str, start: int, size: int) -> bytes:
        """A range of a file's bytes, straight from the URL.

        Raises:
            CannotFetch: it cannot be read, after several attempts.
            InputRefused: the server gives whole files only.
        """
        return self._attempt(name, lambda: self._get_range(name, start, size))

    def gives_ranges(self, name: str) -> bool:
        """Whether parts of a file can be had: some web servers give whole files only."""

        def answers() -> bool:
            try:  # its file gives up an answer that is longer; `cat_file` would take all of it
                with self._files.open(self._path(name), "rb", cache_type="none") as file:
                    file.seek(1)
                    return len(file.read(1)) == 1
            except ValueError:
                return False

        return not self._is_web or self._attempt(name, partial(_in_time, answers))

    def copy(self, name: str, path: Path) -> None:
        """Copy a whole file, past the cache.

        Raises:
            CannotFetch: it cannot be read, after several attempts.
        """
        self._attempt(name, lambda: self._get(name, path))

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        """The bytes of a file, or a range of them: from the cache, or from the URL if the cache keeps removing them."""
        for _ in range(_READS):
            with suppress(FileNotFoundError):  # removed since it was fetched
                return self.fetch(name, start, size).read_bytes()
        return self.range(name, start, self.sizes[name] if size is None else size)

    def fetch_all(self, names: Iterable[str]) -> None:
        """Fetch files, several at once.

        Raises:
            InputRefused: together they are larger than the cache.
        """
        names = list(names)
        if (needed := sum(self.sizes[name] for name in names)) > self._limit:
            raise InputRefused(
                f"{self.url}: {needed:,} bytes, and the cache may have {self._limit:,}; give more room by "
                f"{SIZE_VARIABLE}, or copy the data: kilobatch data stage"
            )
        with ThreadPoolExecutor(FETCHERS) as threads:
            list(threads.map(self.fetch, names))

    def will_need(self, pieces: Iterable[Piece]) -> None:
        """Fetch files and ranges ahead, in this order; what fails is tried again, and named, when it is read."""
        if not self._fetchers:
            self._fetchers = [
                threading.Thread(target=self._fetch_ahead, name=f"fetch ahead {number}", daemon=True)
                for number in range(FETCHERS)
            ]
            for thread in self._fetchers:
                thread.start()
        for piece in pieces:
            self._wanted.put(piece)

    def _fetch_ahead(self) -> None:
        while True:
            with suppress(CannotFetch, InputRefused, OSError):
                self.fetch(*self._wanted.get())

    def list_again(self) -> Mirror:
        """The mirror itself, with what lies at the URL now."""
        self.sizes, self.marks, self.version = self._listed(_JUST_NOW_SECONDS)
        return self

    def _listed(self, newer_than: float) -> tuple[dict[str, int], dict[str, str], str]:
        """Sizes and marks of all files, and a name for their present state; kept for the ranks of a run."""
        place = self.folder / _LISTING
        with _locked(self.folder):
            with suppress(OSError, ValueError, KeyError):
                age = time.time() - place.stat().st_mtime
                if age < (_BY_RANKS_SECONDS if launched_by_us() else newer_than):
                    kept = json.loads(place.read_text(encoding="utf-8"))
                    return kept["sizes"], kept["marks"], kept["version"]
            found = self._attempt("", lambda: _in_time(lambda: self._files.find(self._base, detail=True)))
            marks, sizes = {}, {}
            for path, facts in sorted(found.items()):
                name = self._name(path)
                if facts.get("type") == "directory" or not name:
                    continue
                if facts.get("size") is None:  # HTTP's listings have none
                    facts = self._attempt(name, partial(_in_time, partial(self._files.info, path)))
                if ".." in PurePosixPath(name).parts:
                    raise InputRefused(f"{self.url}/{name}: leads out of the root")
                sizes[name] = int(facts["size"])
                marks[name] = next((str(facts[key]) for key in _MARKS if facts.get(key)), "")
            if not sizes:
                raise InputRefused(f"{self.url}: no file there; check the address, and who may list it")
            self._drop_changed(place, sizes, marks)
            version = sha256_of_parts([word for name in sizes for word in (name, str(sizes[name]), marks[name])])
            part = place.with_name(f"{place.name}.part")
            part.write_text(json.dumps({"sizes": sizes, "marks": marks, "version": version}), encoding="utf-8")
            part.replace(place)
            return sizes, marks, version

    def _name(self, path: str) -> str:
        """The name below the URL of what the driver lists; empty for what is no file, as the links that sort a list."""
        name = path[len(self._base) :].lstrip("/")
        if not self._is_web:
            return name
        return "" if "?" in name or "#" in name else unquote(name, errors="surrogateescape").lstrip("/")

    def _path(self, name: str) -> str:
        """What the driver calls a file."""
        return f"{self._base}/{quote(name, errors='surrogateescape') if self._is_web else name}"

    def _drop_changed(self, place: Path, sizes: dict[str, int], marks: dict[str, str]) -> None:
        """Remove from the cache what has changed or gone at the URL, and folders of which all has gone."""
        with suppress(OSError, ValueError, KeyError):
            before = json.loads(place.read_text(encoding="utf-8"))
            for name, size in before["sizes"].items():
                if (sizes.get(name), marks.get(name)) != (size, before["marks"][name]):
                    (self.folder / name).unlink(missing_ok=True)
                    shutil.rmtree(self.folder / _RANGES / name, ignore_errors=True)
                    if name not in marks:
                        with suppress(OSError):  # other files are there
                            (self.folder / name).parent.rmdir()

    def _attempt(self, name: str, task: Callable[[], Any]) -> Any:
        """The result of a task, which is tried several times."""
        where, pause = f"{self.url}/{name}" if name else self.url, FIRST_PAUSE
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return task()
            except InputRefused:
                raise
            except Exception as error:  # of a network, by any of fsspec's drivers
                cause = _cause(error)
                missing = isinstance(error, FileNotFoundError | PermissionError)
                if missing or attempt == ATTEMPTS:
                    tries = "" if missing else f" after {attempt} attempts"
                    raise CannotFetch(f"{where}: cannot be read{tries} ({cause})") from error
            time.sleep(pause)
            pause *= 2
        raise AssertionError

    def _get(self, name: str, part: Path) -> None:
        """Copy a file; given up where no byte comes for long."""
        _in_time(
            partial(self._files.get_file, self._path(name), os.fspath(part)),
            seconds=STALLED_SECONDS,
            grown=lambda: part.stat().st_size if part.exists() else 0,
        )
        if (size := part.stat().st_size) != self.sizes[name]:
            raise OSError(f"{size} of {self.sizes[name]} bytes came")

    def _get_range(self, name: str, start: int, size: int) -> bytes:
        whole = size == self.sizes[name]
        limits = {} if whole else {"start": start, "end": start + size}
        read = partial(self._files.cat_file, self._path(name), **limits)
        data = _in_time(read, seconds=STALLED_SECONDS + size / _SLOWEST)
        if len(data) > size and not whole:
            raise InputRefused(
                f"{self.url}/{name}: the server gives whole files only, and ranges are needed; copy the data: "
                "kilobatch data stage"
            )
        if len(data) != size:
            raise OSError(f"{len(data)} of {size} bytes from byte {start} on came")
        return data

    def _fit(self) -> None:
        """Remove what was not read for longest, until the cache is nine tenths of its limit."""
        with _locked(self.folder):
            self._fetched = 0
            found = []
            for folder, _, files in os.walk(self.folder):
                for name in files:
                    path = os.path.join(folder, name)
                    with suppress(FileNotFoundError):
                        facts = os.stat(path)
                        if not name.startswith("."):
                            found.append((facts.st_mtime_ns, facts.st_size, path))
                        elif name.endswith(".part") and time.time() - facts.st_mtime > _DEAD_SECONDS:
                            os.unlink(path)
            total = sum(size for _, size, _ in found)
            for _, size, path in sorted(found) if total > self._limit else []:
                if total <= 0.9 * self._limit:
                    break
                with suppress(FileNotFoundError):
                    os.unlink(path)
                total -= size


def _open(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path of the URL in it."""
    try:
        import fsspec
    except ImportError as error:
        raise InputRefused(f"{url}: needs fsspec; {install('remote')}") from error
    try:
        return fsspec.core.url_to_fs(url, **_timeouts(url))
    except ImportError as error:
        is_web = url.startswith(("http://", "https://"))
        way_out = "pip install aiohttp requests" if is_web else install("remote")
        raise InputRefused(f"{url}: {error}; {way_out}") from error
    except Exception as error:  # of any driver: credentials, a missing library
        cause = f"{type(error).__name__}: {error}"
        raise InputRefused(
            f"{url}: cannot be opened ({cause}); credentials come from fsspec's configuration"
        ) from error


def _in_time(task: Callable[[], Any], *, seconds: float | None = None, grown: Callable[[], int] = lambda: 0) -> Any:
    """The result of a task, which runs on another thread and is abandoned if it makes no progress.

    Args:
        seconds: that may pass without a change of `grown`; None: ten times `STALLED_SECONDS`.
    Raises:
        TimeoutError: it took longer.
    """
    limit = 10 * STALLED_SECONDS if seconds is None else seconds
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((task(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="fetch", daemon=True)
    thread.start()
    size, since = 0, time.monotonic()
    while thread.is_alive():
        thread.join(0.02)
        if (now := grown()) != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > limit:
            raise TimeoutError(f"no byte came for {limit:g} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def _timeouts(url: str) -> dict[str, Any]:
    """Options by which a driver itself gives up a server that does not answer, where it can."""
    if url.startswith("s3://"):
        times = {"connect_timeout": STALLED_SECONDS, "read_timeout": STALLED_SECONDS, "retries": {"max_attempts": 1}}
        return {"config_kwargs": times}
    return {}


def _cause(error: Exception) -> str:
    """A driver's error in words, without what its environment holds as a secret."""
    text = f"{type(error).__name__}: {error}"
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) > 3:
            text = text.replace(value, "***")
    return text


def _bytes_of(text: str) -> int:
    """The bytes of a size such as 200GB.

    >>> _bytes_of("200GB"), _bytes_of("1.5 M"), _bytes_of("4096")
    (200000000000, 1500000, 4096)
    """
    found = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise InputRefused(f"{SIZE_VARIABLE}: {text!r} is no size; write one such as 200GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / _LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
