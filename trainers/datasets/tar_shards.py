"""Tar archives of images, as WebDataset writes them."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from trainers.datasets.byte_ranges import ByteRanges
from trainers.datasets.fingerprints import fingerprint_of_files
from trainers.datasets.index_file import indexed
from trainers.datasets.manifest import preparation, recorded_classes, refuse_unfinished
from trainers.datasets.place import Place, place_of
from trainers.datasets.progress_bar import showing_progress
from trainers.datasets.samples import (
    IMAGE_SUFFIXES,
    FilePaths,
    require_channels,
    require_names,
    require_root,
    require_split,
    splits_of,
)

_IMAGES = tuple(suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES)
_QUIET_SECONDS = 2.0
_BLOCK = 1 << 20  # bytes that are read at once behind the end
_AT_LEAST = 8192  # bytes of a request to a URL: the headers between two images and the class
_MOST_DIGITS = 18  # of a class, in 64 bits


@dataclass(frozen=True, kw_only=True)
class TarShards:
    """Images in tar archives, uncompressed: `ROOT/train-*.tar` and `ROOT/val-*.tar`, as WebDataset has them.

        KEY.jpg, and KEY.cls        the class, a whole number from 0 as text, in the same archive
        CLASS/FILE.jpg              where no image has a .cls: classes are numbered by name, as bytes

    Images are called .jpg, .jpeg, .png, .webp, .bmp or .gif. Where there are .cls, KEY is the path up to the first dot
    of its last part; else FILE may have dots. Members with other endings are passed over, and so is KEY.seg.png beside
    KEY.jpg. The samples are in the order of the archives' names as bytes, and in an archive in the order of its images.
    A sample is one read at its offset; the offsets are in an index, which is made once and again when the size or time
    of an archive changes. At a URL a sample is one request for its range of bytes, and the index one small request an
    image.

    Args:
        train: names of the archives of the training split, below ROOT; * stands for any characters.
        eval: names of the archives of the evaluation split, likewise; null if there is none.
        channels: 3 for colour, 1 for grey; images of the other kind are converted.
    Raises:
        ValueError: `train` or `eval` is empty or leads out of the root, or they are equal; `channels` is not 1 or 3.
            When opened: there is no archive; one is damaged, cut off, compressed, several in one file, or has a member
            that is sparse, a link or a device; an image has no class, as with a dot in what should be its key; a .cls
            has no image; two images, or two .cls, have one key.

    Source: the layout of https://github.com/webdataset/webdataset (not checked).
    Differs: WebDataset reads the archives one after the other and shuffles in a buffer.
    """

    train: str = "train-*.tar"
    eval: str | None = "val-*.tar"
    channels: int = 3

    def __post_init__(self) -> None:
        require_names(self)
        require_channels(self)

    def open(self, root: Path | None, split: str) -> ByteRanges:
        """The samples of "train" or "eval"; reads the index alone.

        Raises:
            ValueError: see the class.
        """
        require_split(split, self)
        place = self._place(root)
        found = {each: self._index(place, each) for each in splits_of(self)}
        if len({tuple(arrays["classes"]) for arrays, _ in found.values()}) > 1:
            raise ValueError(f"{root}: {self.train} and {self.eval} have other classes; both must have the same")
        arrays, files = found[split]
        return ByteRanges(
            labels=arrays["labels"],
            channels=self.channels,
            files=files,
            file_of=arrays["file_of"],
            offsets=arrays["offsets"],
            sizes=arrays["sizes"],
            names=FilePaths.of_arrays(arrays),
            place=place,
        )

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes: of .cls the largest and one."""
        refuse_unfinished(self._place(root).folder)
        opened = {split: self.open(root, split) for split in splits_of(self)}
        counts = {f"num_{split}": len(samples) for split, samples in opened.items()}
        return {**counts, "num_classes": 1 + max(int(samples.labels.max()) for samples in opened.values())}

    fingerprint = fingerprint_of_files

    def fingerprints(self, root: Path | None) -> dict[str, str]:
        """SHA-256 of each archive, see `ByteRanges`."""
        found = preparation(self._place(root).folder)
        for split in splits_of(self):
            found |= self.open(root, split).fingerprints()
        return found

    def class_names(self, root: Path) -> list[str]:
        """Names of the classes, in the order of their labels; with .cls those that the converter recorded, if any."""
        place = self._place(root)
        found = [os.fsdecode(name) for name in self._index(place, "train")[0]["classes"]]
        return found or recorded_classes(place.folder)

    def _place(self, root: Path | None) -> Place:
        layout = " and ".join(getattr(self, split) for split in splits_of(self))
        return place_of(require_root("TarShards", root, layout, whole=False))

    def _index(self, place: Place, split: str) -> tuple[dict[str, np.ndarray], list[Path]]:
        pattern = getattr(self, split)
        files = place.files(pattern)
        if not files:
            shown = place.shown(place.folder / pattern)
            raise ValueError(f"{shown}: no such archive; write `{split}` in the reader for other names")
        name, state = pattern.replace("*", ""), place.state(files)
        make, is_current = (lambda: _arrays(place, files)), lambda index: [*index.get("suffixes", ())] == [*_IMAGES]
        return indexed(place.folder, name, state=state, make=make, is_current=is_current), files


@dataclass(frozen=True, kw_only=True)
class _Member:
    name: str
    offset: int
    size: int
    label: int | str


def _arrays(place: Place, files: Sequence[Path]) -> dict[str, np.ndarray]:
    members, words = [], f"{place.shown(files[0])}: finding the images in it and its like, once"
    with showing_progress(words, len(files), unit="archives", after_seconds=_QUIET_SECONDS) as add:
        for found in place.map(lambda path: list(_images(place, path)), files):
            members.append(found)
            add(1)
    flat = [member for each in members for member in each]
    kinds = {type(member.label) for member in flat}
    if len(kinds) > 1:
        odd = next(member.name for member in flat if isinstance(member.label, str))
        what = f"{odd} has no .cls, and other images have one; add what is missing"
        raise ValueError(f"{place.shown(files[0].parent)}: {what}")
    classes = sorted({member.label for member in flat}, key=os.fsencode) if kinds == {str} else []
    label_of = {name: label for label, name in enumerate(classes)}
    names = FilePaths()
    names.extend(os.fsencode(member.name) for member in flat)
    return {
        "labels": np.array([label_of.get(member.label, member.label) for member in flat], dtype=np.int64),
        "file_of": np.repeat(np.arange(len(files), dtype=np.int32), [len(each) for each in members]),
        "offsets": np.array([member.offset for member in flat], dtype=np.int64),
        "sizes": np.array([member.size for member in flat], dtype=np.int64),
        "classes": np.array([os.fsencode(name) for name in classes], dtype=np.bytes_),
        "suffixes": np.array(_IMAGES),
        **names.arrays(),
    }


def _images(place: Place, file: Path) -> Iterator[_Member]:
    """The images of an archive, in order."""
    path = place.shown(file)
    found: list[tarfile.TarInfo] = []
    classes: dict[str, int] = {}
    dotted: set[str] = set()  # of a .cls whose KEY ends before that dot
    try:
        with place.opened(file, at_least=_AT_LEAST) as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
            end = place.size(file)
            for member in archive:
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    what = "a link, a device or a file with holes"
                    raise ValueError(f"{path}: {member.name!r} is {what}; pack it as a plain file")
                if member.offset_data + member.size > end:
                    raise ValueError(f"{path}: cut off within {member.name!r}; copy it again")
                stem, _, ending = _last(member).partition(".")
                if ending.lower() in _IMAGES or (stem and ending.rpartition(".")[2].lower() in _IMAGES):
                    found.append(member)
                elif ending == "cls":
                    opened.seek(member.offset_data)  # tarfile itself seeks to where the next one begins
                    text = opened.read(min(member.size, _MOST_DIGITS + 1))
                    if _key(member) in classes:
                        raise ValueError(f"{path}: {member.name!r} is there twice; leave one out")
                    classes[_key(member)] = _label(text, path, member.name)
                elif stem and ending.endswith(".cls"):
                    dotted.add(_key(member))
                archive.members = []  # else it keeps all of them
            opened.seek(archive.offset)
            _require_end(opened, path)
    except tarfile.TarError as error:
        raise ValueError(f"{path}: {error}; damaged, cut off or compressed: unpack it, or copy it again") from error
    images: dict[str, tarfile.TarInfo] = {}
    whole = {_key(member) for member in found}
    for member in found:
        key = _key(member)
        folder, slash, name = key.rpartition("/")
        if "." in name and (classes or key in dotted):
            if key not in dotted and folder + slash + name.partition(".")[0] in whole:
                continue  # KEY.seg.png beside KEY.jpg and KEY.cls
            what = "has no class, for a key ends at the first dot of a name"
            raise ValueError(f"{path}: {member.name!r} {what}; rename it and its .cls, with - for that dot")
        if key in images:
            raise ValueError(f"{path}: {member.name!r} and {images[key].name!r} have one key; rename one")
        images[key] = member
    if alone := next((key for key in classes if key not in images), None):
        what = f"has no image of that name ({', '.join(_IMAGES)}) in this archive"
        raise ValueError(f"{path}: {f'{alone}.cls'!r} {what}; add it, or leave the .cls out")
    if not images:
        raise ValueError(f"{path}: holds no image ({', '.join(_IMAGES)})")
    for key, member in images.items():
        label = classes.get(key, PurePosixPath(member.name).parent.name)
        if label == "":
            raise ValueError(f"{path}: {member.name!r} has no .cls beside it, and lies in no folder of a class")
        yield _Member(name=member.name, offset=member.offset_data, size=member.size, label=label)


def _last(member: tarfile.TarInfo) -> str:
    return member.name.rpartition("/")[2]


def _key(member: tarfile.TarInfo) -> str:
    """The path without its last ending."""
    return member.name.removesuffix(f".{_last(member).rpartition('.')[2]}")


def _require_end(opened: BinaryIO, path: str) -> None:
    """Refuse an archive where `tarfile` stopped elsewhere than at its end: at a damaged header it does so silently.

    Raises:
        ValueError: there is no block of zeros, or other bytes follow it.
    """
    at = opened.tell()
    if opened.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise ValueError(f"{path}: damaged or cut off at byte {at}, where a header or the end should be; copy it again")
    while block := opened.read(_BLOCK):
        if block.strip(b"\0"):
            what = f"goes on behind its end, byte {at}, as after `cat`"
            raise ValueError(f"{path}: {what}; keep the archives apart, or join them by `tar --concatenate`")


def _label(text: bytes, path: str, name: str) -> int:
    if not text.strip().isdigit() or len(text) > _MOST_DIGITS:
        raise ValueError(f"{path}: {name!r} holds {text[:20]!r}, where a class is a whole number from 0")
    return int(text)
