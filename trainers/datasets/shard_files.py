"""Writers of the forms in which samples are stored: class folders, tar shards, Parquet, arrays. One chunk at a time.

A chunk is written whole under a hidden name, then renamed, so that an interrupted writer leaves only whole ones. The
same samples give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from recipes.errors import InputRefused
from recipes.extras import install
from trainers.datasets.fingerprints import sha256_of_parts

_ROWS = 100  # of a group of Parquet's rows


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image as it is written.

    Args:
        name: of its class, a slash, and of its file.
        file: bytes of the image file.
        label: its class's number.
    """

    name: str
    file: bytes
    label: int


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Samples that are written together.

    Args:
        name: of the file or folder below the root.
        indices: of the samples, in order.
        start: place of the first one in the split, of arrays.
    """

    name: str
    indices: Sequence[int]
    start: int = 0


def chunks_of(form: str, split: str, labels: np.ndarray, classes: Sequence[str], *, per_chunk: int) -> list[Chunk]:
    """The chunks of a split: a class each of folders, else `per_chunk` samples in order.

    Raises:
        InputRefused: a class would have no folder, and the next ones its label.
    """
    called = {"train": "train", "eval": "validation" if form == "parquet" else "val"}[split]
    if form == "folder":
        counts = np.bincount(labels, minlength=len(classes))
        if len(counts) > len(classes):
            what = f"{called} has class {len(counts) - 1}, and train has {len(classes)} classes"
            raise InputRefused(f"{what}; write another form")
        if not counts.all():
            empty, why = classes[int(counts.argmin())], "class folders would number the others anew"
            raise InputRefused(f"class {empty} has no sample in {called}, and {why}; write another form")
        by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
        pairs = zip(classes, by_class, strict=True)
        return [Chunk(name=f"{called}/{name}", indices=own.tolist()) for name, own in pairs]
    bounds = [*range(0, len(labels), per_chunk), len(labels)]
    ranges = list(zip(bounds[:-1], bounds[1:], strict=True))
    names = {
        "tar": f"{called}-{{0:05d}}.tar",
        "parquet": f"data/{called}-{{0:05d}}-of-{len(ranges):05d}.parquet",
        "arrays": f"{called}_images.npy[{{1}}:{{2}}]",
    }
    return [
        Chunk(name=names[form].format(number, start, stop), indices=range(start, stop), start=start)
        for number, (start, stop) in enumerate(ranges)
    ]


def write_folder(path: Path, images: Iterator[StoredImage]) -> None:
    """The files of one class, in its folder."""
    part = _part(path)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for image in images:
        with (part / image.name.rpartition("/")[2]).open("xb") as file:  # "x": no two of one name
            file.write(image.file)
    shutil.rmtree(path, ignore_errors=True)  # of an interrupted or damaged conversion: no folder replaces a full one
    part.replace(path)


def write_tar(path: Path, images: Iterator[StoredImage]) -> None:
    """Images as WebDataset has them: KEY.jpg, .png or another suffix, and KEY.cls."""
    with _part(path).open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for image in images:
            key, _, ending = image.name.rpartition(".")
            for name, content in ((f"{key}.{ending.lower()}", image.file), (f"{key}.cls", b"%d" % image.label)):
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))
    _part(path).replace(path)


def require_writer(form: str) -> None:
    """Check that what writes a form is installed.

    Raises:
        InputRefused: pyarrow is not, for Parquet.
    """
    if form == "parquet" and find_spec("pyarrow") is None:
        raise InputRefused(f"Parquet is written with pyarrow; {install('parquet')}")


def write_parquet(path: Path, images: Iterator[StoredImage]) -> None:
    """Rows as ImageNet-1k's, uncompressed, so that each image lies whole in the file; needs pyarrow."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    path.parent.mkdir(exist_ok=True)
    image_type = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("image", image_type), ("label", pyarrow.int64())])
    with ParquetWriter(
        _part(path), schema, compression="none", use_dictionary=False, write_statistics=["label"]
    ) as writer:
        for group in _groups(images, _ROWS):
            column = [{"bytes": image.file, "path": image.name.rpartition("/")[2]} for image in group]
            table = pyarrow.table({"image": column, "label": [image.label for image in group]}, schema=schema)
            writer.write_table(table, row_group_size=_ROWS)
    _part(path).replace(path)


def write_arrays(path: Path, images_HWC: Iterator[np.ndarray]) -> None:
    """A part of an array that is there: PATH[START:STOP]."""
    file, start, _ = _slice(path)
    mapped = np.load(file, mmap_mode="r+")
    for number, image_HWC in enumerate(images_HWC, start):
        mapped[number] = image_HWC
    mapped.flush()


WRITERS: dict[str, Callable[..., None]] = {
    "folder": write_folder,
    "tar": write_tar,
    "parquet": write_parquet,
    "arrays": write_arrays,
}


def digest_of(path: Path) -> str:
    """SHA-256 of a chunk that is written: of a file, of a class folder's names and files, or of a part of an array.

    Raises:
        OSError: it is not there.
    """
    if path.name.endswith("]"):
        file, start, stop = _slice(path)
        return hashlib.sha256(np.load(file, mmap_mode="r")[start:stop]).hexdigest()
    if path.is_dir():
        names = sorted(os.listdir(path), key=os.fsencode)
        return sha256_of_parts(part for name in names for part in (name, (path / name).read_bytes()))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _slice(path: Path) -> tuple[Path, int, int]:
    name, _, bounds = path.name.removesuffix("]").partition("[")
    start, _, stop = bounds.partition(":")
    return path.with_name(name), int(start), int(stop)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _groups(images: Iterator[StoredImage], size: int) -> Iterator[list[StoredImage]]:
    group: list[StoredImage] = []
    for image in images:
        group.append(image)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
