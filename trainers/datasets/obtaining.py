"""`kilobatch data get`: the files of a data set, from the first of its sources that can be reached."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from recipes.errors import InputRefused
from recipes.schema import Dataset
from recipes.schema.dataset import Source, SourceFile
from trainers.datasets.held_out import contradictions

ATTEMPTS = 3  # of a file, before the next source is tried
PAUSE_SECONDS = 1.0  # before the second attempt; then twice as long
_TIMEOUT_SECONDS = 30.0  # without a byte
_BLOCK = 1 << 20
_ARCHIVES = (".tar.gz", ".tar")

# (words, total bytes) -> a context with a function that counts bytes
Showing = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class Unreached(Exception):
    """A source that does not serve, and why."""


def get(dataset: Dataset, target: Path, *, at_hand: Path | None, showing: Showing) -> Path:
    """The folder of a data set's files, which are fetched if they are not there.

    Args:
        dataset: with its sources.
        target: folder for what is downloaded or copied; is made if it does not exist.
        at_hand: a folder that has the files: they are copied from there, and nothing is downloaded. All that is in it
            is copied where the sources name other files, as archives of them.
        showing: shows how much is done.
    Raises:
        InputRefused: the reader needs no files, the files at hand cannot be copied or are the target's, or no source
            serves: each is named with the cause, such as a file with another SHA-256 than promised.
    """
    if not getattr(dataset.reader, "reads_folder", True):
        kind = type(dataset.reader).__name__
        raise InputRefused(f"data set {dataset.name}: {kind} reads no folder, so there is nothing to fetch")
    if at_hand is not None:
        return _copied(dataset, at_hand, target)
    for folder in (target, *(target / each.folder for each in dataset.sources if each.folder), dataset.root):
        if folder is not None and _lacks(dataset, folder) is None:
            return folder
    if not dataset.sources:
        raise InputRefused(
            f"data set {dataset.name}: its file names no source; {dataset.obtain or 'give its folder with --data'}"
        )
    causes = []
    for source in dataset.sources:
        try:
            folder = _installed(source) if source.debian else _downloaded(source, target, showing)
            if (lacks := _lacks(dataset, folder)) is not None:
                raise Unreached(f"{folder}: {lacks}")
            return folder
        except Unreached as error:
            causes.append(str(error))
            print(f"{dataset.name}: {error}", file=sys.stderr, flush=True)
    raise InputRefused(
        f"data set {dataset.name}: no source serves: {'; '.join(causes)}. With the files at hand: --from FOLDER"
    )


def _lacks(dataset: Dataset, folder: Path) -> str | None:
    """What a folder lacks of the data; None if it has all."""
    try:
        wrong = "; ".join(contradictions(replace(dataset, root=folder)))
    except (LookupError, OSError, ValueError) as error:
        return str(error)
    return f"the data set's file says {wrong}" if wrong else None


def _copied(dataset: Dataset, at_hand: Path, target: Path) -> Path:
    if target.resolve() == at_hand.resolve():
        raise InputRefused(f"{at_hand}: the files are there already; name another --to, or train with --data {at_hand}")
    if (lacks := _lacks(dataset, at_hand)) is not None:
        raise InputRefused(f"data set {dataset.name}: {at_hand}: {lacks}")
    for source in dataset.sources:
        other = [found for file in source.files for found in _others(file, at_hand)]
        if strange := [name for name, is_known in other if is_known]:
            what = f"not what {source.url} has, by the SHA-256 of the content: {', '.join(strange)}"
            raise InputRefused(f"data set {dataset.name}: {at_hand}: {what}; name the folder of its own files")
        if other:
            what = "not the files of"  # as those that somebody has compressed anew
            names = ", ".join(name for name, _ in other)
            print(f"{dataset.name}: {what} {source.url}, by SHA-256: {names}", file=sys.stderr)
    names = next(filter(None, (_names_at_hand(source, at_hand) for source in dataset.sources)), None)
    try:
        if names is None:
            if target.resolve().is_relative_to(at_hand.resolve()):
                raise InputRefused(f"{target}: lies in {at_hand}, all of which is copied; name another --to")
            shutil.copytree(at_hand, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            for name in names:
                shutil.copyfile(at_hand / name, target / name)
    except OSError as error:  # shutil.Error has a list of (from, to, cause)
        cause = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        what = f"not all of {at_hand} could be copied ({cause}); mend that, or name another folder"
        raise InputRefused(f"{target}: {what}") from error
    return target


def _others(file: SourceFile, folder: Path) -> Iterator[tuple[str, bool]]:
    """The names of files at hand that are not as the source has them, and whether their content is known to be another.

    A reader may read either of a file with and without .gz, so both are looked at.
    """
    for name in (file.name, _twin(file.name)):
        path = folder / name
        if not path.is_file() or (name == file.name and _digest(path) == file.sha256):
            continue
        if not file.content_sha256:
            yield name, False
        elif _digest_of_content(path) != file.content_sha256:
            yield name, True


def _twin(name: str) -> str:
    """The name of a file without `.gz`, or with it."""
    return name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz"


def _names_at_hand(source: Source, folder: Path) -> list[str] | None:
    """Names in a folder of the files of a source, as they are or without or with .gz; None where a file has neither.

    Archives are unpacked before they are read, into files that the source does not name.
    """
    found = []
    for file in source.files:
        if file.name.endswith(_ARCHIVES):
            return None
        there = [name for name in (file.name, _twin(file.name)) if (folder / name).is_file()]
        if not there:
            return None
        found += there
    return found


def _installed(source: Source) -> Path:
    """The folder of a Debian package, which is installed."""
    command = ["apt-get", "install", "-y", source.debian]
    if shutil.which("apt-get") is None:
        raise Unreached(f"Debian's package {source.debian}: there is no apt-get here")
    if os.geteuid() != 0:
        raise Unreached(f"Debian's package {source.debian}: only root installs it; type: sudo {' '.join(command)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (command, ["apt-get", "update"], command):
        done = subprocess.run(words, stdout=sys.stderr, env=environment, stdin=subprocess.DEVNULL)
        if words == command and done.returncode == 0:
            return Path(source.folder)
    raise Unreached(f"Debian's package {source.debian}: {' '.join(command)} ended with {done.returncode}")


def _downloaded(source: Source, target: Path, showing: Showing) -> Path:
    """The folder of files from a URL, unpacked if they are archives."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.files:
        path = target / file.name
        if not (path.is_file() and _digest(path) == file.sha256):
            _download(f"{source.url.rstrip('/')}/{file.name}", path, file.sha256, showing)
        if file.name.endswith(_ARCHIVES):
            try:
                with tarfile.open(path) as archive:
                    archive.extractall(target, filter="data")
            except tarfile.TarError as error:
                raise Unreached(f"{path}: {type(error).__name__}: {error}") from error
    return target / source.folder


def _download(url: str, path: Path, sha256: str, showing: Showing) -> None:
    """Fetch a file, which takes its name once its sum is right; what is there of an attempt that was cut off is kept.

    Raises:
        Unreached: it cannot be fetched, or has another sum.
    """
    part, pause = path.with_name(f".{path.name}.{sha256[:16]}.part"), PAUSE_SECONDS
    for attempt in range(1, ATTEMPTS + 1):
        went_on = part.exists()
        try:
            _fetch(url, part, showing)
            if (found := _digest(part)) == sha256:
                part.replace(path)
                return
            part.unlink()
            if not went_on or attempt == ATTEMPTS:
                raise Unreached(f"{url}: has SHA-256 {found}, expected {sha256}")
        except (OSError, http.client.HTTPException) as error:
            cause, code = f"{type(error).__name__}: {error}", getattr(error, "code", 500)
            begins_anew = went_on and code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE
            if begins_anew:
                part.unlink()
            if attempt == ATTEMPTS or code < 500 and not begins_anew:
                raise Unreached(f"{url}: {cause}") from error
        time.sleep(pause)
        pause *= 2


def _fetch(url: str, part: Path, showing: Showing) -> None:
    there = max(part.stat().st_size - 1, 0) if part.exists() else 0  # behind the last byte servers have no range
    request = urllib.request.Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        there = there if answer.status == http.client.PARTIAL_CONTENT else 0
        total = there + int(answer.headers.get("Content-Length") or 0)
        with part.open("r+b" if there else "wb") as file, showing(url, total) as add:
            file.seek(there)
            add(there)
            while data := answer.read(_BLOCK):
                file.write(data)
                add(len(data))
            if file.tell() < total:
                raise OSError(f"{file.tell():,} of {total:,} bytes came")


def _digest_of_content(path: Path) -> str:
    """Of what a `.gz` holds, or of another file itself; empty for a damaged `.gz`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
