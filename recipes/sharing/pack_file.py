"""The file of a pack: what belongs to a recipe, in one file that has exactly one form and is read whole or refused.

It is an image layout of OCI in a tar archive without compression, so that a registry of containers carries it too:
`oci-layout`, `index.json` and `blobs/sha256/DIGEST`. The manifest, one of the blobs, lists the digest, size and name of
every file; its own digest is the pack's. Times, owners, order and spelling are fixed, so equal contents give equal
bytes, and a reader compares what it finds with what it would have written.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from recipes.errors import InputRefused
from recipes.schema import Claim
from recipes.sharing.cache import cache_folder
from recipes.sharing.canonical import canonical_json, mapping_in, sha256_of

SUFFIX = ".kilobatch"
FORMAT = 1  # `kilobatch_pack` of the head
HEAD = "pack.json"  # the manifest's config: what the pack is, see `recipes.packs.make`
_BLOBS = "blobs/sha256/"
_TITLE = "org.opencontainers.image.title"
_TYPE = "application/vnd.kilobatch.recipe.v1"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_LAYOUT = canonical_json({"imageLayoutVersion": "1.0.0"})
_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_LARGEST_JSON, _MOST_FILES = 1 << 24, 10_000
_MOST_COPIED = 1 << 26  # bytes that its files may take beyond four times the pack's: many may have the same contents
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}"  # no part is `..` or begins with a dot
# Code lies below `code/` only, where nothing is imported from without --allow-code; compiled code, which Python would
# import in place of its source, lies nowhere. Folders in `runs/` are seeds.
_NAME = re.compile(
    rf"(?!(.*/)?__pycache__/)(code(/{_PART}){{0,6}}/{_PART}\.py"
    rf"|(?!code/)(?!runs/(?![0-9]+/))({_PART}/){{0,7}}{_PART}\.(json|jsonl|md|safetensors|svg|txt|yaml))"
)
_Place = tuple[int, int]  # of the first byte of a file in the archive, and the number of bytes
_ENTRY = re.compile(rf"{_BLOBS}([0-9a-f]{{64}})")


class PackRefused(InputRefused):
    """A file is no pack, or not as it was written; says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A pack that was read whole.

    Args:
        digest: SHA-256 of its manifest, which decides every byte of it.
        folder: its files, in the cache.
        head: what it is.
    """

    digest: str
    folder: Path
    head: dict[str, Any]


def claims_of(said: Mapping[str, Any]) -> list[Claim]:
    """The claims in the head of a pack or in a registry's entry; what a stranger wrote there that is none is left out.

    >>> claims_of({"claims": [{"metric": "top1", "kind": "accuracy", "value": "high", "status": "reproduced"}, 7]})
    []
    """
    found, listed, claim = [], said.get("claims"), TypeAdapter(Claim)
    for each in listed if isinstance(listed, list) else ():
        with suppress(ValidationError):
            found.append(claim.validate_json(json.dumps(each), strict=True))
    numbers = ([it for it in vars(each).values() if isinstance(it, int | float)] for each in found)
    return [each for each, own in zip(found, numbers, strict=True) if all(map(math.isfinite, own))]


def claims_of_runs(recipe: Path) -> list[Claim]:
    """The claims of the pack, in the cache, whose recipe this file is; none where it has no runs, or is of no pack."""
    folder = recipe.resolve().parent
    if folder.parent == cache_folder().resolve() / "packs":
        with suppress(OSError, ValueError):  # removed meanwhile
            head = mapping_in((folder / HEAD).read_bytes())
            return claims_of(head) if runs_of(head) else []
    return []


def runs_of(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs in the head of a pack; what a stranger wrote there that is none is left out.

    >>> runs_of({"runs": [{"seed": 3}, 3]}), runs_of({"runs": 7})
    ([{'seed': 3}], [])
    """
    listed = said.get("runs")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def write_pack(path: Path, head: Mapping[str, Any], files: Mapping[str, bytes | Path]) -> str:
    """Write a pack, whole or not at all; returns its digest.

    Args:
        head: what the pack is, as plain data.
        files: contents, or files that hold them, by name.
    Raises:
        OSError: a file cannot be read, or the pack not be written.
    """
    config = canonical_json(head)
    blobs: dict[str, bytes | Path] = {sha256_of(config): config}
    layers = []
    for name, content in sorted(files.items()):
        assert _NAME.fullmatch(name), name
        digest, size = _measured(content)
        blobs[digest] = content
        layers.append((name, digest, size))
    manifest = _manifest(config, layers)
    _write(path, manifest, blobs)
    return sha256_of(manifest)


def write_pack_of_layout(path: Path, folder: Path) -> Pack:
    """Write the pack that stands in a folder as an image layout, as tools of container registries write it.

    Raises:
        PackRefused: it is no pack; nothing is written.
        OSError: the pack cannot be written.
    """
    try:
        digest = mapping_in((folder / "index.json").read_bytes())["manifests"][0]["digest"].removeprefix("sha256:")
        manifest = (folder / _BLOBS / digest).read_bytes()
        tree = mapping_in(manifest)
        digests = [entry["digest"].removeprefix("sha256:") for entry in (tree["config"], *tree["layers"])]
        if not all(re.fullmatch("[0-9a-f]{64}", each) for each in (digest, *digests)):
            raise ValueError("a digest is none of SHA-256")
    except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise PackRefused(f"{folder}: its manifest cannot be read: {error}") from None
    missing = [each for each in digests if not (folder / _BLOBS / each).is_file()]
    if missing:
        raise PackRefused(f"{folder}: {_BLOBS}{missing[0]} is missing")
    part = path.with_name(f".{path.name}.{os.getpid()}.unchecked")
    try:
        _write(part, manifest, {each: folder / _BLOBS / each for each in digests})
        pack = open_pack(part)
        part.replace(path)
    finally:
        with suppress(OSError):  # none is there: the folder is read-only
            part.unlink()
    return pack


def _write(path: Path, manifest: bytes, blobs: Mapping[str, bytes | Path]) -> None:
    """The archive of a manifest and its blobs, whole or not at all."""
    blobs = {**blobs, sha256_of(manifest): manifest}
    entries = {"oci-layout": _LAYOUT, "index.json": _index(manifest)}
    entries |= {f"{_BLOBS}{blob}": blobs[blob] for blob in sorted(blobs)}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as out:
            for name, content in entries.items():
                size = len(content) if isinstance(content, bytes) else content.stat().st_size
                out.write(_header(name, size))
                if isinstance(content, bytes):
                    out.write(content)
                else:
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, out)
                out.write(bytes(-size % _BLOCK))
            out.write(bytes(2 * _BLOCK))
            out.write(bytes(-out.tell() % _RECORD))
        part.replace(path)
    finally:
        with suppress(OSError):  # none is there: the folder is read-only
            part.unlink()


def open_pack(path: Path) -> Pack:
    """Read and check every byte of a pack, then put its files into the cache, unless they are there as they must be.

    Raises:
        PackRefused: a byte is not as it must be; nothing is written.
        InputRefused: it has a later format than this program knows.
    """
    try:
        with path.open("rb") as file:
            digest, head, places = _read(file)
            if (form := head.get("kilobatch_pack", FORMAT)) != FORMAT:
                what = f"a pack of format {json.dumps(form)[:80]}, and this kilobatch reads format {FORMAT}"
                raise InputRefused(f"{path}: {what}; open it with a newer kilobatch")
            folder = cache_folder() / "packs" / digest
            if not _is_whole(folder):
                _unpack(file, places, folder)
        return Pack(digest=digest, folder=folder, head=head)
    except OSError as error:
        raise PackRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    except PackRefused as error:
        raise PackRefused(f"{path}: {error}; ask for another copy of the pack") from None


def files_of(pack: Pack) -> dict[str, bytes | Path]:
    """The files of an opened pack by name, for `write_pack`: from these it gets the same bytes again."""
    return _files_in(pack.folder)


def cached_pack(digest: str) -> Pack | None:
    """A pack that was opened on this machine before; None if it was not, or if a file of it was changed since."""
    folder = cache_folder() / "packs" / digest
    with suppress(OSError, ValueError):
        if _is_whole(folder):
            return Pack(digest=digest, folder=folder, head=mapping_in((folder / HEAD).read_bytes()))
    return None


def _files_in(folder: Path) -> dict[str, Path]:
    """The files of an unpacked pack by name, without its head and without what Python compiles."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    found = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path for name, path in found.items() if name != HEAD and "__pycache__" not in name.split("/")}


def _is_whole(folder: Path) -> bool:
    """Whether a folder in the cache has every file as its name, the pack's digest, says."""
    try:
        layers = [(name, *_measured(path)) for name, path in _files_in(folder).items()]
        return _digest_of(folder, layers) == folder.name
    except OSError:
        return False


def _digest_of(folder: Path, layers: Iterable[tuple[str, str, int]]) -> str:
    """The digest of the pack whose head is in a folder, and whose other files are these."""
    return sha256_of(_manifest((folder / HEAD).read_bytes(), sorted(layers)))


def _read(file: IO[bytes]) -> tuple[str, dict[str, Any], dict[str, _Place]]:
    """Digest and head of a pack, and where its files stand, by name."""
    places: dict[str, _Place] = {}
    before: tuple[int, str] = (-1, "")
    end = _size(file)
    while (header := file.read(_BLOCK)) != bytes(_BLOCK):
        name, size = _named(header, left=end - file.tell())
        if (order := ({"oci-layout": 0, "index.json": 1}.get(name, 2), name)) <= before:
            raise PackRefused(f"{name} stands twice in it, or in another place than a pack has it")
        before = order
        if len(places) > _MOST_FILES:
            raise PackRefused(f"it has more than {_MOST_FILES:,} files")
        blob = name.removeprefix(_BLOBS)
        places[blob] = (file.tell(), size)
        if order[0] == 2 and _copied(file, size) != blob:
            raise PackRefused(f"the contents of {name} have another SHA-256: it was changed or damaged")
        file.seek(sum(places[blob]))
        if any(file.read(-size % _BLOCK)):
            raise PackRefused(f"something is hidden after {name}")
    expected = -(-(file.tell() + _BLOCK) // _RECORD) * _RECORD
    if end != expected or any(file.read(_RECORD)):
        raise PackRefused("it does not end where a pack ends")
    try:
        if _small(file, places.pop("oci-layout")) != _LAYOUT:
            raise ValueError("it has no layout of OCI")
        return _named_places(file, _small(file, places.pop("index.json")), places)
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise PackRefused(f"its manifest cannot be read: {error}") from None


def _named_places(
    file: IO[bytes], index: bytes, places: Mapping[str, _Place]
) -> tuple[str, dict[str, Any], dict[str, _Place]]:
    """Check index and manifest against the blobs, whose places then get names."""
    digest = mapping_in(index)["manifests"][0]["digest"].removeprefix("sha256:")
    manifest = _small(file, places[digest])
    tree = mapping_in(manifest)
    config = _small(file, places[tree["config"]["digest"].removeprefix("sha256:")])
    layers = [
        (layer["annotations"][_TITLE], layer["digest"].removeprefix("sha256:"), layer["size"])
        for layer in tree["layers"]
    ]
    head = mapping_in(config)
    if (_index(manifest), _manifest(config, layers), canonical_json(head)) != (index, manifest, config):
        raise PackRefused("its manifest is not written as a pack's")
    named = {digest, sha256_of(config), *(blob for _, blob, _ in layers)}
    if extra := sorted(places.keys() - named):
        raise PackRefused(f"{_BLOBS}{extra[0]} is not in its manifest")
    if any(blob not in places or places[blob][1] != size for _, blob, size in layers):
        raise PackRefused("a file of its manifest is missing, or has another size")
    found = {HEAD: places[sha256_of(config)], **{name: places[blob] for name, blob, _ in layers}}
    if len(layers) > _MOST_FILES or sum(size for *_, size in layers) > 4 * _size(file) + _MOST_COPIED:
        raise PackRefused("its manifest names far more or larger files than there are in it")
    names = [name for name, *_ in layers]
    if names != sorted(set(names)) or HEAD in names:
        raise PackRefused("a name stands twice in its manifest, or out of order")
    folders = {parent for name in found for parent in _parents(name)}
    for name in names:
        if not _NAME.fullmatch(name) or name in folders:
            raise PackRefused(f"{name[:80]!r} is no name of a file in a pack")
    return digest, head, found


def _unpack(file: IO[bytes], places: Mapping[str, _Place], folder: Path) -> None:
    """Write the files of a pack into a new folder, which takes the place of any other when it is whole."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
    except OSError as error:
        raise InputRefused(f"the cache {folder.parent} cannot be written: {error.strerror}") from error
    try:
        new, layers = part / "new", []
        for name, (start, size) in places.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            with (new / name).open("wb") as out:
                file.seek(start)
                layers += [(name, _copied(file, size, out), size)]
        if _digest_of(new, [layer for layer in layers if layer[0] != HEAD]) != folder.name:
            raise PackRefused("it was changed while it was read")
        with suppress(OSError):  # none is there
            folder.rename(part / "old")
        try:
            new.rename(folder)
        except OSError as error:
            if not _is_whole(folder):  # as it is where another process was first
                what = f"{folder} is not as it was unpacked, and cannot be replaced: {error.strerror}"
                raise InputRefused(f"{what}; remove it") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _parents(name: str) -> Iterable[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _small(file: IO[bytes], place: _Place) -> bytes:
    if place[1] > _LARGEST_JSON:
        raise ValueError("too large")
    file.seek(place[0])
    return file.read(place[1])


def _copied(file: IO[bytes], size: int, out: IO[bytes] | None = None) -> str:
    """SHA-256 of the next bytes of a file, which are written into another."""
    digest = hashlib.sha256()
    while size:
        data = file.read(min(size, 1 << 20))
        if not data:
            raise PackRefused("it is cut short")
        digest.update(data)
        size -= len(data)
        if out is not None:
            out.write(data)
    return digest.hexdigest()


def _named(header: bytes, *, left: int) -> tuple[str, int]:
    """Name and size that a header gives, which must be exactly the header of these."""
    name = header[:100].rstrip(b"\0").decode("ascii", "replace")
    if name not in ("oci-layout", "index.json") and not _ENTRY.fullmatch(name):
        raise PackRefused(f"it is cut short, no pack, or holds what no pack holds: {name[:80]!r}")
    try:
        size = int(header[124:136].rstrip(b"\0 "), 8)
    except ValueError:
        size = -1
    if not 0 <= size <= left or header != _header(name, size):
        raise PackRefused(f"the header of {name} is not a pack's, or it is cut short")
    return name, size


def _measured(content: bytes | Path) -> tuple[str, int]:
    if isinstance(content, bytes):
        return sha256_of(content), len(content)
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), content.stat().st_size


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.USTAR_FORMAT)


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _manifest(config: bytes, layers: Iterable[tuple[str, str, int]]) -> bytes:
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "artifactType": _TYPE,
            "config": _descriptor(f"{_TYPE}+json", sha256_of(config), len(config)),
            "layers": [
                _descriptor("application/octet-stream", digest, size) | {"annotations": {_TITLE: name}}
                for name, digest, size in layers
            ],
        }
    )


def _index(manifest: bytes) -> bytes:
    entry = _descriptor(_MANIFEST_TYPE, sha256_of(manifest), len(manifest)) | {"artifactType": _TYPE}
    return canonical_json({"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": [entry]})
