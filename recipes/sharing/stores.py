"""Where a registry keeps its files: a folder, a git repository, or a URL of fsspec.

Files of a registry never change. A store reads and lists them. It creates one only where none of its name is there,
also if two try at once. A damaged pack may be put right.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import os
import random
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from recipes.errors import InputRefused
from recipes.extras import install
from recipes.sharing.cache import cache_folder
from recipes.sharing.canonical import sha256_of

_ATTEMPTS = 60  # of a push to git that another one overtakes
_BRANCH = "main"


class Unreachable(InputRefused):
    """A store does not answer: no network, no mount, no permission."""


class Store(Protocol):
    """The files of a registry.

    Attributes:
        guard: what keeps two from creating one file, in words; empty where files can only be read.
    """

    guard: str

    def names(self, folder: str) -> list[str]:
        """Paths of all files below a folder, sorted. Raises Unreachable."""

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file here. Raises FileNotFoundError, Unreachable."""

    def create(self, path: str, data: bytes, *, before: Mapping[str, Path]) -> bool:
        """Create a file, and those of `before` if they are not there yet, whose names decide their contents.

        In a folder or git, a file of `before` also takes the place of one with other contents: that one is damaged.

        Returns:
            False if there is a file of this name, which stays as it is.
        """


def store_of(url: str) -> Store:
    """The store at a URL: `git+...` or `....git` is a repository, `x://...` a URL of fsspec, anything else a folder."""
    if url.startswith("git+") or url.endswith(".git"):
        return GitStore(url.removeprefix("git+"))
    if "://" in url and not url.startswith("file://"):
        return RemoteStore(url)
    return FolderStore(Path(url.removeprefix("file://")))


class FolderStore:
    """A folder, perhaps on a mounted file system: a new file appears whole, by a hard link, which never replaces."""

    guard = "a hard link, which the file system makes only where no file of the name is"

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser()

    def names(self, folder: str) -> list[str]:
        self._require_root()
        found = (path for path in (self._root / folder).rglob("*") if not path.name.startswith("."))
        try:
            return sorted(path.relative_to(self._root).as_posix() for path in found if path.is_file())
        except OSError as error:
            raise Unreachable(f"{self._root}: cannot be listed: {error.strerror or error}") from error

    def fetch(self, path: str, to: Path) -> None:
        self._require_root()
        try:
            shutil.copyfile(self._root / path, to)
        except FileNotFoundError:
            raise
        except OSError as error:  # also of a folder, or of a pipe
            raise Unreachable(f"{self._root}: {path} cannot be read: {error.strerror or error}") from error

    def _require_root(self) -> None:
        if not self._root.is_dir():
            raise Unreachable(f"{self._root}: there is no such folder; is it mounted?")

    def create(self, path: str, data: bytes, *, before: Mapping[str, Path]) -> bool:
        self._require_root()
        try:
            for name, source in before.items():
                wrong = (self._root / name).exists() and not _same_bytes(self._root / name, source)
                self._link(name, lambda part, source=source: shutil.copyfile(source, part), over=wrong)
            return self._link(path, lambda part: part.write_bytes(data))
        except OSError as error:
            raise Unreachable(f"{self._root}: cannot be written: {error.strerror or error}") from error

    def _link(self, path: str, write: Any, *, over: bool = False) -> bool:
        """Make a file, or put it in the place of another; False if there is one that stays."""
        target = self._root / path
        if target.exists() and not over:
            return False
        self._make_folder(target.parent)
        handle, part = tempfile.mkstemp(prefix=".part-", dir=target.parent)
        os.close(handle)
        try:
            write(Path(part))
            os.chmod(part, stat.S_IMODE(self._root.stat().st_mode) & 0o666)  # as the registry's folder
            with open(part, "rb") as written:
                os.fsync(written.fileno())  # else the name may outlive its contents where the machine stops
            if over:
                os.replace(part, target)
            else:
                os.link(part, target)
        except FileExistsError:
            return False
        finally:
            Path(part).unlink(missing_ok=True)
        return True

    def _make_folder(self, folder: Path) -> None:
        """Make a folder that has the mode of the registry's own, so that all who push into one can push into both."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            with suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(stat.S_IMODE(self._root.stat().st_mode))


def _same_bytes(one: Path, other: Path) -> bool:
    if not one.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as left, other.open("rb") as right:
        return hashlib.file_digest(left, "sha256").digest() == hashlib.file_digest(right, "sha256").digest()


class GitStore:
    """The branch `main` of a git repository, by a clone in the cache; a push that another overtook is made anew."""

    guard = "git, which accepts a push only onto the commit that it was made from"

    def __init__(self, url: str) -> None:
        self._url = url
        self._folder = cache_folder() / "registries" / f"{sha256_of(url.encode())[:16]}.git"
        self._fetched = False

    def names(self, folder: str) -> list[str]:
        self._fetch()
        if self._head() is None:
            return []
        return sorted(self._git("ls-tree", "-r", "--name-only", "-z", _BRANCH, f"{folder}/").split("\0")[:-1])

    def fetch(self, path: str, to: Path) -> None:
        self._fetch()
        with to.open("wb") as out:
            done = self._run(["cat-file", "blob", f"{_BRANCH}:{path}"], stdout=out)
        if done.returncode:
            raise FileNotFoundError(path)

    def create(self, path: str, data: bytes, *, before: Mapping[str, Path]) -> bool:
        for attempt in range(_ATTEMPTS):
            self._fetched = False
            self._fetch()
            with self._locked():
                parent = self._head()
                if parent and self._run(["cat-file", "-e", f"{_BRANCH}:{path}"]).returncode == 0:
                    return False
                commit = self._commit(parent, path, data, before)
                pushed = self._run(["push", "--quiet", self._url, f"{commit}:refs/heads/{_BRANCH}"])
                if pushed.returncode == 0:
                    self._git("update-ref", f"refs/heads/{_BRANCH}", commit)
                    return True
            self._fetched = False
            self._fetch()
            if self._head() == parent and attempt >= 3:  # nobody was faster: it is refused for another reason
                raise Unreachable(f"{self._url}: git push: {_reason(pushed.stderr)}")
            time.sleep(random.uniform(0, 0.05 * min(attempt + 1, 20)))
        raise Unreachable(f"{self._url}: other pushes came first, {_ATTEMPTS} times; try again")

    def _commit(self, parent: str | None, path: str, data: bytes, before: Mapping[str, Path]) -> str:
        """A commit with the files on top of another, made without a work tree."""
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
            if parent:
                self._git("read-tree", parent, environment=index)
            blobs = {name: self._git("hash-object", "-w", str(source)).strip() for name, source in before.items()}
            blobs[path] = self._git("hash-object", "-w", "--stdin", data=data).strip()
            for name, blob in blobs.items():
                self._git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}", environment=index)
            tree = self._git("write-tree", environment=index).strip()
        options = ["-p", parent] if parent else []
        return self._git("commit-tree", tree, *options, "-m", f"Add {path}").strip()

    def _head(self) -> str | None:
        done = self._run(["rev-parse", "--verify", "--quiet", f"refs/heads/{_BRANCH}"])
        return done.stdout.decode().strip() or None

    def _fetch(self) -> None:
        """Bring the clone up to date, once; without a network it stays as it was."""
        if self._fetched:
            return
        with self._locked():
            if not (self._folder / "HEAD").exists():
                self._git("init", "--quiet", "--bare")
            done = self._run(["fetch", "--quiet", "--prune", self._url, "+refs/heads/*:refs/heads/*"])
        if done.returncode:
            raise Unreachable(f"{self._url}: git fetch: {_reason(done.stderr)}")
        self._fetched = True

    def _locked(self) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        held = (self._folder / ".kilobatch.lock").open("a")  # closing releases it
        fcntl.flock(held, fcntl.LOCK_EX)
        return held

    def _git(self, *words: str, data: bytes | None = None, environment: Mapping[str, str] | None = None) -> str:
        done = self._run(list(words), input=data, environment=environment)
        if done.returncode:
            raise Unreachable(f"{self._url}: git {words[0]}: {_reason(done.stderr)}")
        return done.stdout.decode("utf-8", "replace")

    def _run(
        self,
        words: list[str],
        *,
        input: bytes | None = None,
        stdout: Any = subprocess.PIPE,
        environment: Mapping[str, str] | None = None,
    ) -> Any:
        user = f"{getpass.getuser()}@{socket.gethostname()}"
        known = {"GIT_TERMINAL_PROMPT": "0"}
        if not os.environ.get("GIT_AUTHOR_NAME"):
            known |= {f"GIT_{who}_{what}": user for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        command = ["git", "-C", str(self._folder), *words]
        variables = {**os.environ, **known, **(environment or {})}
        try:
            return subprocess.run(command, input=input, stdout=stdout, stderr=subprocess.PIPE, env=variables)
        except FileNotFoundError:
            raise InputRefused("a registry in git needs git; install it") from None


def _reason(text: bytes) -> str:
    """The line of git's errors that says why."""
    lines = [line.strip() for line in text.decode("utf-8", "replace").strip().splitlines()] or ["failed"]
    starts = ("fatal: ", "remote: error: ", "! [")
    why = next((line for start in starts for line in lines if line.startswith(start)), lines[-1])
    return why + "; a registry is a bare repository: git init --bare" * ("checked out branch" in why)


class RemoteStore:
    """A URL that fsspec opens; credentials come from its configuration or the environment, never from the URL."""

    _CONDITIONAL = ("s3", "gs", "gcs")  # whose drivers can create a file on the condition that there is none

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise InputRefused(f"{url}: needs fsspec; {install('remote')}") from error
        self._url = url
        scheme = url.partition("://")[0]
        self.guard = "a write on the condition that no object of the name is there" * (scheme in self._CONDITIONAL)
        try:
            self._files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise InputRefused(f"{url}: {error}; {install('remote')}") from error
        except Exception as error:  # of any driver
            raise Unreachable(f"{url}: cannot be opened ({type(error).__name__}: {error})") from error
        self._root = root.rstrip("/")

    def names(self, folder: str) -> list[str]:
        try:
            found = self._files.find(f"{self._root}/{folder}")
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._unreachable(error) from error
        return sorted(path.removeprefix(self._files._strip_protocol(self._root)).lstrip("/") for path in found)

    def fetch(self, path: str, to: Path) -> None:
        try:
            self._files.get_file(f"{self._root}/{path}", str(to))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._unreachable(error) from error

    def create(self, path: str, data: bytes, *, before: Mapping[str, Path]) -> bool:
        if not self.guard:
            what = "files can only be read there: nothing would keep two pushes from overwriting each other"
            raise InputRefused(f"{self._url}: {what}; push to a folder, git, s3:// or gs://")
        for name, source in before.items():
            self._create(name, source.read_bytes())
        return self._create(path, data)

    def _create(self, path: str, data: bytes) -> bool:
        for attempt in range(5):
            try:
                self._files.pipe_file(f"{self._root}/{path}", data, mode="create")
                return True
            except FileExistsError:
                return False
            except Exception as error:
                words = f"{error}"
                if "PreconditionFailed" in words or "412" in words:
                    return False
                if attempt == 4 or not ("Conflict" in words or "409" in words):
                    raise self._unreachable(error) from error
            time.sleep(0.1 * 2**attempt)
        raise AssertionError

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self._url}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
