"""`kilobatch data stage`: a copy of a data set's files in a local folder, each compared by its checksum."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.schema.dataset import url_of
from trainers.datasets.remote import FETCHERS, CannotFetch, mirror_of
from trainers.runs.cores import usable_cores
from trainers.runs.run_folder import filling_folder, write_whole

_OWN = ".kilobatch-"  # begins names of files beside the data that hold for one place only
RECORD = f"{_OWN}staged.jsonl"  # a line of each copied file: name, bytes, mark of the source, SHA-256
_BLOCK = 16 << 20  # bytes that are copied at once; a cut-off file goes on behind the last whole block
_MD5 = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What `stage` did.

    Args:
        num_files, num_bytes: of the data.
        num_copied: files that were copied now; the others were there, with the right bytes.
        replaced: those of them that were there with other bytes of the same size.
        removed: files of an earlier copy of this root, which no longer has them; those that were changed since stay.
        extra: files in the folder that are not of this root; they stay.
    """

    num_files: int
    num_bytes: int
    num_copied: int
    replaced: list[str]
    removed: list[str]
    extra: list[str]


class Source:
    """The files of a root, a folder or a URL.

    Attributes:
        sizes: path below the root -> bytes.
    Raises:
        InputRefused: there is none; a link leads nowhere, or to a folder that it lies in.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._mirror = root, mirror_of(root)
        sizes = _sizes(root) if self._mirror is None else self._mirror.list_again().sizes
        self.sizes = {name: size for name, size in sizes.items() if _is_data(name)}

    def mark(self, name: str) -> str:
        """What changes with a file's content; empty if it has none."""
        if self._mirror is not None:
            return self._mirror.marks.get(name, "")
        return str((self._root / name).stat().st_mtime_ns)

    def sum(self, name: str) -> tuple[str, str] | None:
        """A checksum of a file, where it can be had without copying it: its kind, and in hexadecimal."""
        if self._mirror is None:
            return "sha256", _digest(self._root / name, "sha256")
        return md5_in(self.mark(name))

    def block(self, name: str, start: int, size: int) -> bytes:
        """Some bytes of a file."""
        if self._mirror is None:
            with (self._root / name).open("rb") as file:
                file.seek(start)
                return file.read(size)
        return self._mirror.range(name, start, size)

    def copy_whole(self, name: str, path: Path) -> bool:
        """Copy a file at once if the source gives no blocks of it; whether it did so."""
        if self._mirror is None or self._mirror.gives_ranges(name):
            return False
        self._mirror.copy(name, path)
        return True


def stage(root: Path, target: Path, *, done: Callable[[int], None] = lambda count: None) -> Staged:
    """Copy all files of a URL, or of a folder, to a local folder; what is there with the right bytes is kept.

    A file that is there is read. Its SHA-256 must be that of the bytes that were copied, and the source must not have
    changed since; where no record says so, it is compared with the source: by SHA-256 with a folder, by MD5 with a URL
    that names it. Else it is copied again. A copied file is compared with the URL's MD5, where it names one. Files that
    were copied from this root before, unchanged since and no longer there, are removed. Links are followed.

    Args:
        target: is made if it does not exist.
        done: called with bytes that are there.
    Raises:
        InputRefused: the target has too little room, lies in the root, or is being filled by another command.
        CannotFetch: a file cannot be read, after several attempts, or came with other bytes than its MD5 promises.
    """
    source = Source(root)
    if mirror_of(root) is None and target.resolve().is_relative_to(root.resolve()):
        raise InputRefused(f"{target}: lies in the data's own folder; name another one")
    with filling_folder(target):
        return _stage(root, source, target, done)


def _stage(root: Path, source: Source, target: Path, done: Callable[[int], None]) -> Staged:
    record, writing, replaced, copied = _read_record(target), threading.Lock(), [], []
    place = url_of(root) or os.path.realpath(root)
    missing = sum(size for name, size in source.sizes.items() if _size(target / name) != size)
    begun = sum(path.stat().st_size for path in _parts(target, source))
    if missing > (free := shutil.disk_usage(target).free + begun):
        raise InputRefused(f"{target}: {free:,} bytes are free, {missing:,} needed; name another folder")

    def one(name: str) -> None:
        size, mark, path = source.sizes[name], source.mark(name), target / name
        if _size(path) == size:
            digest = _digest(path, "sha256")
            if _is_right(path, digest, record.get(name), source, name):
                note(name, size, mark, digest)
                done(size)
                return
            replaced.append(name)
        digest = _copy(source, name, path, mark, done)
        copied.append(name)
        note(name, size, mark, digest)

    def note(name: str, size: int, mark: str, digest: str) -> None:
        line = {"name": name, "bytes": size, "mark": mark, "sha256": digest, "root": place}
        if record.get(name) != line:
            with writing, (target / RECORD).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    with ThreadPoolExecutor(FETCHERS if mirror_of(root) else usable_cores()) as threads:
        for each in [threads.submit(one, name) for name in source.sizes]:
            try:
                each.result()
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
    for path in _parts(target, source):  # of a state that the source no longer has
        path.unlink()
    found = (Path(folder, name) for folder, _, names in os.walk(target) for name in names if _is_data(name))
    others = sorted({path.relative_to(target).as_posix() for path in found} - set(source.sizes))
    copies = [name for name in others if record.get(name, {}).get("root") == place]
    removed = [name for name in copies if _digest(target / name, "sha256") == record[name]["sha256"]]
    _remove(target, removed)
    return Staged(
        num_files=len(source.sizes),
        num_bytes=sum(source.sizes.values()),
        num_copied=len(copied),
        replaced=sorted(replaced),
        removed=removed,
        extra=[name for name in others if name not in removed],
    )


def _remove(target: Path, names: list[str]) -> None:
    """Remove copied files, their folders if these are empty then, and their lines of the record."""
    for name in names:
        (target / name).unlink()
        with suppress(OSError):  # other files are there
            for folder in list((target / name).relative_to(target).parents)[:-1]:
                (target / folder).rmdir()
    if names:
        kept = [line for name, line in _read_record(target).items() if name not in names]
        write_whole(target / RECORD, "".join(json.dumps(line) + "\n" for line in kept))


def md5_in(mark: str) -> tuple[str, str] | None:
    """The MD5 that a mark is: S3's ETag of a file that was sent in one part, Google's md5Hash in base64.

    >>> md5_in('"9e107d9d372bb6826bd81d3542a419d6"'), md5_in("nhB9nTcrtoJr2B01QqQZ1g==")
    (('md5', '9e107d9d372bb6826bd81d3542a419d6'), ('md5', '9e107d9d372bb6826bd81d3542a419d6'))
    >>> md5_in('"9e107d9d372bb6826bd81d3542a419d6-12"'), md5_in("1764081600.0")
    (None, None)
    """
    text = mark.strip('"')
    if _MD5.fullmatch(text):
        return "md5", text
    with suppress(ValueError, binascii.Error):
        if len(raw := base64.b64decode(text, validate=True)) == 16:
            return "md5", raw.hex()
    return None


def _is_right(path: Path, digest: str, line: dict[str, Any] | None, source: Source, name: str) -> bool:
    if line is not None and line["mark"] == source.mark(name) != "":
        return line["sha256"] == digest
    if (wanted := source.sum(name)) is None:
        return False
    return wanted == (wanted[0], digest if wanted[0] == "sha256" else _digest(path, wanted[0]))


def _copy(source: Source, name: str, path: Path, mark: str, done: Callable[[int], None]) -> str:
    """Copy a file, by blocks if these can be had, going on where that was cut off; its SHA-256."""
    size, state = source.sizes[name], hashlib.sha256(f"{source.sizes[name]} {mark}".encode()).hexdigest()[:16]
    part = path.with_name(f".{path.name}.{state}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    if size > _BLOCK and source.copy_whole(name, part):
        done(size)
    else:
        _copy_blocks(source, name, part, mark, done)
    digest = _digest(part, "sha256")
    wanted = source.sum(name)
    if wanted is not None and wanted[1] != (digest if wanted[0] == "sha256" else _digest(part, wanted[0])):
        part.unlink()
        raise CannotFetch(f"{name}: its bytes are not those of the {wanted[0].upper()} of the source, {wanted[1]}")
    part.replace(path)
    return digest


def _copy_blocks(source: Source, name: str, part: Path, mark: str, done: Callable[[int], None]) -> None:
    size = source.sizes[name]
    with part.open("ab") as file:
        there = min(file.tell(), size) // _BLOCK * _BLOCK if mark else 0
        file.truncate(there)
        done(there)
        for start in range(there, size, _BLOCK):
            data = source.block(name, start, min(_BLOCK, size - start))
            file.write(data)
            file.flush()
            done(len(data))


def _parts(target: Path, source: Source) -> list[Path]:
    """Files that were cut off before."""
    folders = {(target / name).parent for name in source.sizes}
    return [path for folder in folders for path in folder.glob(".*.part")]


def _read_record(target: Path) -> dict[str, dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = {}
    with suppress(OSError):
        for text in (target / RECORD).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # a torn last line
                line = json.loads(text)
                lines[line["name"]] = line
    return lines


def _sizes(root: Path) -> dict[str, int]:
    start = len(os.path.join(root, ""))
    sizes = {path[start:]: size for path, size in _below(os.fspath(root), ())}
    if not sizes:
        raise InputRefused(f"{root}: no file there; name the folder of the data")
    return sizes


def _below(folder: str, above: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Path and bytes of each file in a folder and further below, also behind links."""
    real = os.path.realpath(folder)
    if real in above:
        raise InputRefused(f"{folder}: a link to a folder that it lies in; remove it")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and not os.path.exists(entry.path):
                raise InputRefused(f"{entry.path}: a link that leads nowhere; remove it")
            if entry.is_dir():
                yield from _below(entry.path, (*above, real))
            elif entry.is_file():
                yield entry.path, entry.stat().st_size


def _is_data(name: str) -> bool:
    return not name.rpartition("/")[2].startswith(_OWN)


def _size(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_size
    return None


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
