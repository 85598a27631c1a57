"""Parquet files with images, as data sets are published on the Hugging Face Hub."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from recipes.extras import install
from trainers.datasets.byte_ranges import ByteRanges
from trainers.datasets.fingerprints import fingerprint_of_files, sha256_of_parts
from trainers.datasets.index_file import indexed
from trainers.datasets.manifest import preparation, recorded_classes, refuse_unfinished
from trainers.datasets.place import Place, place_of
from trainers.datasets.progress_bar import showing_progress
from trainers.datasets.remote import Mirror, Piece
from trainers.datasets.samples import (
    EncodedSamples,
    FilePaths,
    UnreadableImage,
    require_channels,
    require_names,
    require_root,
    require_split,
    splits_of,
)

_CACHE_BYTES = 2**28  # of row groups that a process keeps
_QUIET_SECONDS = 2.0
_NEEDLE = 32  # bytes of an image that are searched for; the others are compared then


@dataclass(frozen=True, kw_only=True)
class Parquet:
    """Rows of an image and its class, in the files in which ImageNet-1k is published for download.

        ROOT/data/train-00000-of-00294.parquet ..., ROOT/data/validation-00000-of-00014.parquet ...
        image       bytes of an image file, or a struct with a field `bytes` of them
        label       the class, a whole number from 0

    The samples are in the order of the files' names as bytes, and of their rows. Labels, and where each image lies, are
    in an index, which is made once and again when the size or time of a file changes.

    Access: where images are stored uncompressed, as `scripts/prepare_imagenet.py` writes them, the index has the place
    of each, and a sample is one read. Elsewhere Parquet gives nothing less than a row group: the whole group of an
    image is read and decompressed for it, and the last 256 MiB of groups are kept. In random order that is about one
    group for each image, a hundred times its size where groups have 100 rows. At a URL an image, or a group, is one
    request for its range of bytes; to make the index of uncompressed files, all bytes are read once.

    Args:
        train: names of the files of the training split, below ROOT; * stands for any characters.
        eval: names of the files of the evaluation split, likewise; null if there is none.
        image: name of the column of images.
        label: name of the column of labels.
        channels: 3 for colour, 1 for grey; images of the other kind are converted.
    Raises:
        ValueError: `train` or `eval` is empty or leads out of the root, or they are equal; `channels` is not 1 or 3.
            When opened: pyarrow is not installed; there is no file; one is damaged, has other columns or a group
            without rows; a row has no image, or a label below 0.

    Source: the layout of https://huggingface.co/datasets/ILSVRC/imagenet-1k (not checked: its files were not at hand).
    """

    train: str = "data/train-*.parquet"
    eval: str | None = "data/validation-*.parquet"
    image: str = "image"
    label: str = "label"
    channels: int = 3

    def __post_init__(self) -> None:
        require_names(self)
        require_channels(self)
        for name in ("image", "label"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise ValueError(f"Parquet.{name} must be the name of a column, got {value!r}")

    def open(self, root: Path | None, split: str) -> ByteRanges | RowGroups:
        """The samples of "train" or "eval"; reads the index alone.

        Raises:
            ValueError: see the class.
        """
        require_split(split, self)
        place = self._place(root)
        arrays, files = self._index(place, split)
        if len(arrays["offsets"]):
            return ByteRanges(
                labels=arrays["labels"],
                channels=self.channels,
                files=files,
                file_of=arrays["file_of"],
                offsets=arrays["offsets"],
                sizes=arrays["sizes"],
                names=FilePaths(),
                place=place,
            )
        return RowGroups(
            labels=arrays["labels"],
            channels=self.channels,
            files=files,
            column=self.image,
            starts=arrays["starts"],
            file_of_group=arrays["file_of_group"],
            chunks=arrays["chunks"],
            place=place,
        )

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes: the largest label and one."""
        place = self._place(root)
        refuse_unfinished(place.folder)
        labels = {split: self._index(place, split)[0]["labels"] for split in splits_of(self)}
        counts = {f"num_{split}": len(values) for split, values in labels.items()}
        return {**counts, "num_classes": 1 + max(int(values.max()) for values in labels.values())}

    fingerprint = fingerprint_of_files

    def fingerprints(self, root: Path | None) -> dict[str, str]:
        """SHA-256 of each file, see `ByteRanges` and `RowGroups`."""
        found = preparation(self._place(root).folder)
        for split in splits_of(self):
            found |= self.open(root, split).fingerprints()
        return found

    def class_names(self, root: Path | None) -> list[str]:
        """Names of the classes, in the order of their labels, that the converter recorded, if any."""
        return recorded_classes(self._place(root).folder)

    def _place(self, root: Path | None) -> Place:
        layout = " and ".join(getattr(self, split) for split in splits_of(self))
        return place_of(require_root("Parquet", root, layout, whole=False))

    def _index(self, place: Place, split: str) -> tuple[dict[str, np.ndarray], list[Path]]:
        pattern = getattr(self, split)
        files = place.files(pattern)
        if not files:
            shown = place.shown(place.folder / pattern)
            raise ValueError(f"{shown}: no such file; write `{split}` in the reader for other names")
        state = {**place.state(files), f"columns {self.image}, {self.label}, chunks": (0, 0)}
        name = pattern.replace("*", "")
        return indexed(place.folder, name, state=state, make=lambda: self._made(place, files)), files

    def _made(self, place: Place, files: Sequence[Path]) -> dict[str, np.ndarray]:
        found, words = [], f"{place.shown(files[0])}: finding the images in it and its like, once"
        with showing_progress(words, len(files), unit="files", after_seconds=_QUIET_SECONDS) as add:
            for groups in place.map(lambda path: self._groups(place, path), files):
                found.append(groups)
                add(1)
        every = [group for groups in found for group in groups]
        counts = [len(group.labels) for group in every]
        file_of_group = np.repeat(np.arange(len(files), dtype=np.int32), [len(groups) for groups in found])
        plain = all(group.places is not None for group in every)
        places = np.concatenate([group.places for group in every]) if plain else np.zeros((0, 2), dtype=np.int64)
        return {
            "labels": np.concatenate([group.labels for group in every]),
            "starts": np.cumsum([0, *counts]),
            "file_of_group": file_of_group,
            "file_of": np.repeat(file_of_group, counts),
            "offsets": places[:, 0],
            "sizes": places[:, 1],
            "chunks": np.array([group.chunk for group in every], dtype=np.int64),
        }

    def _groups(self, place: Place, path: Path) -> list[_Group]:
        shown = place.shown(path)
        with place.opened(path) as source, _opened(source, shown) as file:
            groups: list[_Group] = []
            for number in range(file.num_row_groups):
                labels = _labels(file, number, self.label, shown)
                chunk, is_plain = _chunk(file, number, self.image, shown)
                plain = is_plain and not (groups and groups[-1].places is None)
                places = _places(source, chunk, _images(file, number, self.image, shown)) if plain else None
                groups.append(_Group(labels=labels, chunk=chunk, places=places))
        return groups


@dataclass(frozen=True, kw_only=True)
class _Group:
    """A group of rows: its labels, offset and size of its images' column, and those of each image where known."""

    labels: np.ndarray
    chunk: tuple[int, int]
    places: np.ndarray | None


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroups(EncodedSamples):
    """Samples of which nothing less than a group of rows can be read; the last groups are kept, 256 MiB of them.

    Args:
        files: in their order.
        column: of the images.
        starts: index of the first sample of each group, and the number of samples.
        file_of_group: place in `files` of each group.
        chunks: offset and size in bytes of each group's column of images.
        place: of the files.
    """

    files: Sequence[Path]
    column: str
    starts: np.ndarray
    file_of_group: np.ndarray
    chunks: np.ndarray
    place: Place
    _kept: OrderedDict[int, list[bytes]] = field(default_factory=OrderedDict, init=False, repr=False)
    _keeping: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def encoded(self, index: int) -> bytes:
        """The bytes of the image's file."""
        group = int(np.searchsorted(self.starts, index, side="right")) - 1
        with self._keeping:
            images = self._kept.get(group)
            if images is not None:
                self._kept.move_to_end(group)
        if images is None:
            images = self._read(group)
            with self._keeping:
                self._kept[group] = images
                while len(self._kept) > 1 and sum(sum(map(len, each)) for each in self._kept.values()) > _CACHE_BYTES:
                    self._kept.popitem(last=False)
        return images[index - int(self.starts[group])]

    @property
    def mirror(self) -> Mirror | None:
        """Of a URL."""
        return self.place.mirror

    def will_need(self, indices: Iterable[int]) -> None:
        """Fetch the groups of these samples ahead, where they come from a URL."""
        if self.mirror is not None:
            groups = np.searchsorted(self.starts, np.fromiter(indices, dtype=np.int64), side="right") - 1
            self.mirror.will_need(self._piece(group) for group in dict.fromkeys(groups.tolist()))

    def _piece(self, group: int) -> Piece:
        offset, size = self.chunks[group].tolist()
        return self.place.name(self.files[int(self.file_of_group[group])]), offset, size

    def name_of(self, index: int) -> str:
        """The file of a sample, and its row."""
        group = int(np.searchsorted(self.starts, index, side="right")) - 1
        shown = self.place.shown(self.files[int(self.file_of_group[group])])
        return f"{shown}, row {index - int(self.starts[self._first_group(group)])}"

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of each file: its labels, its footer, which has the size of each group, and its first image."""
        found = {}
        for number, path in enumerate(self.files):
            groups = np.flatnonzero(self.file_of_group == number)
            start, stop = int(self.starts[groups[0]]), int(self.starts[groups[-1] + 1])
            labels = self.labels[start:stop].astype("<i8").tobytes()
            found[self.place.name(path)] = sha256_of_parts([labels, _footer(self.place, path), self.encoded(start)])
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_kept", "_keeping")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _kept=OrderedDict(), _keeping=threading.Lock())

    def _first_group(self, group: int) -> int:
        """The first group of the file that has this one."""
        return int(np.searchsorted(self.file_of_group, self.file_of_group[group]))

    def _read(self, group: int) -> list[bytes]:
        path = self.files[int(self.file_of_group[group])]
        shown = self.place.shown(path)
        try:
            with self.place.opened(path, keep=True) as source, _opened(source, shown) as file:
                images = _images(file, group - self._first_group(group), self.column, shown)
        except ValueError as error:
            raise UnreadableImage(f"{error}") from error
        return [image.as_py() for image in images]


def _opened(source: Any, shown: str) -> Any:
    """An opened file as one of pyarrow's."""
    if find_spec("pyarrow") is None:
        raise ValueError(f"{shown}: Parquet is read with pyarrow; {install('parquet')}")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(source, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{shown}: {error}; damaged, cut off or no Parquet: copy it again") from error


def _column(file: Any, group: int, name: str, path: str) -> Any:
    """A column of a group of rows, as an array of pyarrow."""
    import pyarrow

    if name.removesuffix(".bytes") not in (names := file.schema_arrow.names) and name not in names:
        raise ValueError(f"{path}: no column {name!r}, it has {', '.join(names)}; write its name in the reader")
    try:
        return file.read_row_group(group, columns=[name], use_threads=False).column(0).combine_chunks()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: {error}; damaged or cut off: copy it again") from error


def _labels(file: Any, group: int, name: str, path: str) -> np.ndarray:
    labels = _column(file, group, name, path)
    if not len(labels):
        raise ValueError(f"{path}: row group {group} has no rows; remove the file, or write it again without")
    if labels.null_count or not str(labels.type).startswith(("int", "uint")) or labels.to_numpy().min() < 0:
        raise ValueError(f"{path}: column {name!r} must hold whole numbers from 0; a set without labels is not read")
    return labels.to_numpy().astype(np.int64)


def _images(file: Any, group: int, name: str, path: str) -> Any:
    leaves = [file.metadata.schema.column(number).path for number in range(file.metadata.num_columns)]
    images = _column(file, group, f"{name}.bytes" if f"{name}.bytes" in leaves else name, path)
    if str(images.type).startswith("struct"):
        images = images.field("bytes")
    if images.null_count or "binary" not in str(images.type):
        raise ValueError(f"{path}: column {name!r} must hold the bytes of an image in each row")
    return images


def _chunk(file: Any, group: int, name: str, path: str) -> tuple[tuple[int, int], bool]:
    """Offset and size in the file of a group's column of images, and whether it is uncompressed."""
    columns = [file.metadata.row_group(group).column(number) for number in range(file.metadata.num_columns)]
    column = next((each for each in columns if each.path_in_schema in (name, f"{name}.bytes")), None)
    if column is None:
        _column(file, group, name, path)
        raise ValueError(f"{path}: column {name!r} must hold the bytes of an image in each row")
    begin = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
    return (begin, column.total_compressed_size), column.compression == "UNCOMPRESSED"


def _places(source: Any, chunk: tuple[int, int], images: Any) -> np.ndarray | None:
    """Offset and size in the file of each image of a group; None where they do not lie there whole.

    Parquet's pages have no table of them: they are searched for in the column's bytes, and compared.
    """
    begin, size = chunk
    source.seek(begin)
    stored = source.read(size)
    places, behind = [], 0
    for image in images:
        data = image.as_py()
        needle = len(data).to_bytes(4, "little") + data[:_NEEDLE]
        at = stored.find(needle, behind)
        if at < 0:  # of equal images in a dictionary, one is stored
            at = stored.find(needle)
        if at < 0 or stored[at + 4 : at + 4 + len(data)] != data:
            return None
        behind = at + 4 + len(data)
        places.append((begin + at + 4, len(data)))
    return np.array(places, dtype=np.int64)


def _footer(place: Place, path: Path) -> bytes:
    with place.opened(path) as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return file.read(length)
