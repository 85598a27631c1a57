"""A folder of class folders of image files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from recipes.errors import listed, printable_line
from trainers.datasets.fingerprints import fingerprint_of_files, sha256_of_parts
from trainers.datasets.index_file import indexed, state_of
from trainers.datasets.manifest import preparation, refuse_unfinished
from trainers.datasets.place import Place, place_of
from trainers.datasets.progress_bar import showing_progress
from trainers.datasets.samples import (
    IMAGE_SUFFIXES,
    FilePaths,
    ImageFiles,
    evenly,
    require_channels,
    require_names,
    require_root,
    require_split,
    splits_of,
    written_otherwise,
)

_NUM_READ = 16  # files of a class whose bytes are in the fingerprint
_LISTERS = 4  # threads: a network file system answers several at once; here more would wait for each other
SCORED = ("val", "valid", "validation", "test")  # folders of the evaluation split, as others call them too
_INSTEAD = ", or write `validation: {fraction: 0.1}` in the data set's file to score samples of train"
_QUIET_SECONDS = 2.0  # of listing, before it shows its progress
_MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """Your own images: `ROOT/train/CLASS/FILE` and `ROOT/val/CLASS/FILE`, turned as stored (not by EXIF).

    The classes are the folders, numbered from 0 in the order of their names as bytes; both splits must have the same.
    The samples are in the order of their paths below the split, as bytes. Names that begin with a dot are passed over;
    a link that leads out of ROOT is refused. Transparency is dropped.

    The paths and sizes of the files are in an index, which is made once and again when the time of change of a class
    folder differs: a file that is added, removed, renamed or replaced changes it, one that is written over in place
    does not.

    Args:
        train: folder of the training split, below ROOT; `.`, without `eval`: the classes are folders of ROOT.
        eval: folder of the evaluation split, below ROOT; null if there is none.
        channels: 3 for colour, 1 for grey; images of the other kind are converted.
        others: what happens to files that are not called .jpg, .jpeg, .png, .webp, .bmp or .gif, and to folders within
            those of classes: `refuse` names them, `skip` passes over them and all that is in them.
    Raises:
        ValueError: `train` or `eval` is empty, absolute or leads upwards, or they are equal; `channels` is not 1 or 3;
            `others` is another word. When opened: the folder is not as described.

    Source: the layout of ImageNet's class folders, as torchvision.datasets.ImageFolder reads it.
    """

    train: str = "train"
    eval: str | None = "val"
    channels: int = 3
    # The samples are the same, so it is not in the representation, which is in the fingerprint.
    others: Literal["refuse", "skip"] = field(default="refuse", repr=False, metadata={"younger": True})

    def __post_init__(self) -> None:
        require_names(self, whole=self.eval is None)
        require_channels(self)
        if self.others not in ("refuse", "skip"):
            raise ValueError(f"ImageFolder.others must be refuse or skip, got {self.others!r}")

    def open(self, root: Path | None, split: str) -> ImageFiles:
        """The samples of "train" or "eval", from the index of that split; reads no image.

        Raises:
            ValueError: there is no root; a folder is missing or empty; the splits have different classes; a file is no
                image by its name; a link leads out of the root. Reading a sample: the file is not a readable image.
        """
        require_split(split, self)
        place, name = self._place(root), getattr(self, split)
        classes = self._classes(place)
        index = self._index(place, name, classes)
        label_of = {name: label for label, name in enumerate(classes)}
        labels = np.array([label_of[name] for name in _in_order(classes)], dtype=np.int32)
        return ImageFiles(
            folder=place.folder / name,
            paths=FilePaths.of_arrays(index),
            labels=np.repeat(labels, index["counts"]),
            channels=self.channels,
            mirror=place.mirror,
        )

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes, counted from the folders."""
        place = self._place(root)
        refuse_unfinished(place.folder)
        classes = self._classes(place)
        counts = {
            f"num_{split}": int(self._index(place, getattr(self, split), classes)["counts"].sum())
            for split in splits_of(self)
        }
        return {**counts, "num_classes": len(classes)}

    fingerprint = fingerprint_of_files

    def fingerprints(self, root: Path | None) -> dict[str, str]:
        """SHA-256 of each `SPLIT/CLASS`: names and sizes of its files, by the index, and the bytes of some.

        Read are every file of a class of up to 16, and 16 evenly spaced ones of a larger class.
        """
        place = self._place(root)
        mirror, classes, found = place.mirror, self._classes(place), preparation(place.folder)
        for split in (getattr(self, name) for name in splits_of(self)):
            index = self._index(place, split, classes)

            def bytes_of(name: str, split: str = split) -> bytes:
                return (
                    (place.folder / split / name).read_bytes() if mirror is None else mirror.read(_below(split, name))
                )

            paths, sizes, start = FilePaths.of_arrays(index), index["sizes"].tolist(), 0
            if mirror is not None:
                mirror.will_need((_below(split, paths[number]), 0, None) for number in _all_read(index["counts"]))
            for name, count in zip(_in_order(classes), index["counts"].tolist(), strict=True):
                samples = range(start, start + count)
                found[_below(split, name)] = sha256_of_parts(_identity(bytes_of, paths, sizes, samples))
                start += count
        return found

    def class_names(self, root: Path | None) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return self._classes(self._place(root))

    def other_files(self, root: Path | None) -> list[str]:
        """Paths below the root of files that are no images by their names, and of folders in classes, with a slash."""
        return self._others(self._place(root))

    def _others(self, place: Place) -> list[str]:
        found = []
        for split in (getattr(self, name) for name in splits_of(self)):
            classes, beside = _class_folders(place.folder, split)
            found += [_below(split, name) for name in beside]
            found += [_below(split, os.fsdecode(path)) for path in _index(place, split, classes).get("others", ())]
        return found

    def _refuse_others(self, place: Place) -> None:
        others = self._others(place)
        what = f"not files called {', '.join(IMAGE_SUFFIXES)}: {listed(map(printable_line, others), most=_MOST_NAMED)}"
        way_out = "move them away, or write `others: skip` in the reader"
        raise ValueError(f"{place.shown(place.folder)}: {what}; {way_out}")

    def _index(self, place: Place, split: str, classes: list[str]) -> dict[str, np.ndarray]:
        index = _index(place, split, classes)
        if self.others == "refuse" and len(index.get("others", ())):  # an index of an older version has none
            self._refuse_others(place)
        if not index["counts"].all():
            name = _in_order(classes)[int(index["counts"].argmin())]
            raise ValueError(f"{place.folder / split / name}: no image in this class; remove the folder or fill it")
        return index

    def _place(self, root: Path | None) -> Place:
        layout = " and ".join(f"{getattr(self, split)}/CLASS/FILE" for split in splits_of(self))
        return place_of(require_root("ImageFolder", root, layout, whole=False))

    def _classes(self, place: Place) -> list[str]:
        """Names of the class folders, in the order of their labels."""
        root = place.folder
        train, beside = _class_folders(root, self.train, instead=_flat_in_words(root))
        evaluation, more = train, []
        if self.eval is not None:
            evaluation, more = _class_folders(root, self.eval, instead=_scored_in_words(root))
        if self.others == "refuse" and (beside or more):
            self._refuse_others(place)
        if train != evaluation:
            name = min(set(train) ^ set(evaluation), key=os.fsencode)
            there, missing = (self.train, self.eval) if name in train else (self.eval, self.train)
            if twin := written_otherwise(name, evaluation if name in train else train):
                what = f"class {ascii(name)} is in {there}, and {ascii(twin)} in {missing}"
                raise ValueError(f"{root}: {what}: the same letters, written in other bytes; rename one of them")
            raise ValueError(
                f"{root}: class {name!r} is in {there} but not in {missing}: both splits must have the same classes"
            )
        return train


def _class_folders(root: Path, split: str, *, instead: str = "") -> tuple[list[str], list[str]]:
    """Names of the class folders, in the order of their labels, and of the files beside them."""
    folder = root / split
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; the images must lie in {folder}/CLASS/FILE{instead}")
    _refuse_escape(folder, root)
    entries = list(_entries(folder, root))
    classes, beside = ([entry.name for entry in entries if entry.is_dir() == is_class] for is_class in (True, False))
    if not classes:
        raise ValueError(f"{folder}: no class folder; the images must lie in {folder}/CLASS/FILE")
    return sorted(classes, key=os.fsencode), sorted(beside, key=os.fsencode)


def reader_of(folder: Path) -> ImageFolder:
    """The reader of a folder that no file describes, by the folders in it; it passes over files that are no images."""
    if is_flat(folder):
        return ImageFolder(train=".", eval=None, others="skip")
    scored = next((name for name in SCORED if has_folders(folder / name)), None)
    return ImageFolder(eval=scored, others="skip")


def is_flat(root: Path) -> bool:
    """Whether the folders of a folder are classes: they hold images, and `train`, if it is there, no folders."""
    if not root.is_dir() or has_folders(root / "train"):
        return False
    folders = (entry for entry in sorted(root.iterdir()) if entry.is_dir() and not entry.name.startswith("."))
    return any(_is_image(name) for folder in folders for name in os.listdir(folder))


def has_folders(folder: Path) -> bool:
    """Whether there are folders, as of classes, in a folder; no if it is none."""
    return folder.is_dir() and any(entry.is_dir() for entry in folder.iterdir() if not entry.name.startswith("."))


def _flat_in_words(root: Path) -> str:
    if not is_flat(root):
        return ""
    keys = 'the keys `reader: {kind: ImageFolder, train: ".", eval: null}` and `validation: {fraction: 0.1}`'
    return f"; if its folders are the classes, a data set's file needs {keys}; `kilobatch recipes new` writes one"


def _scored_in_words(root: Path) -> str:
    found = next((name for name in SCORED if has_folders(root / name)), None)
    return _INSTEAD if found is None else f"; if they lie in {found}, write `eval: {found}` in the reader"


def _below(split: str, name: str) -> str:
    """The path below the root of what lies in a split."""
    return name if split == "." else f"{split}/{name}"


def _in_order(classes: list[str]) -> list[str]:
    """The classes in the order of their paths' bytes."""
    return sorted(classes, key=lambda name: os.fsencode(name) + b"/")


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def _index(place: Place, split: str, classes: list[str]) -> dict[str, np.ndarray]:
    """paths and bounds of `FilePaths`, sizes of all files in bytes, counts of each class, in the order of paths.

    Beside them others: CLASS/FILE of files that are no images by their names, and CLASS/FOLDER/ of folders.
    """
    root, mirror = place.folder, place.mirror
    folder, ordered = root / split, _in_order(classes)
    state = {name: state_of(folder / name) for name in ordered} if mirror is None else {mirror.version: (0, 0)}

    def contents_of(name: str) -> tuple[list[tuple[bytes, int]], list[bytes]]:
        """Names and sizes of the images of a class, and what else is in it."""
        if mirror is None:
            entries = [(entry.name, entry.stat().st_size, entry.is_file()) for entry in _entries(folder / name, root)]
        else:
            entries = [
                (file.rpartition("/")[2], mirror.sizes[file], True) for file in mirror.names_in(_below(split, name))
            ]
        images, others = [], []
        for file, size, is_file in entries:
            if is_file and _is_image(file):
                images.append((os.fsencode(file), size))
            else:
                others.append(os.fsencode(f"{name}/{file}" if is_file else f"{name}/{file}/"))
        return sorted(images), sorted(others)

    def make() -> dict[str, np.ndarray]:
        paths, sizes, counts, others = FilePaths(), [], [], []
        words = f"{folder}: listing its classes, once"
        with (
            showing_progress(words, len(ordered), unit="classes", after_seconds=_QUIET_SECONDS) as add,
            ThreadPoolExecutor(_LISTERS) as threads,
        ):
            for name, (found, rest) in zip(ordered, threads.map(contents_of, ordered), strict=True):
                others += rest
                paths.extend(os.fsencode(name) + b"/" + file for file, _ in found)
                sizes.append(np.array([size for _, size in found], dtype=np.int64))
                counts.append(len(found))
                add(1)
        arrays = {"sizes": np.concatenate(sizes), "counts": np.array(counts), "others": np.array(others, np.bytes_)}
        return {**paths.arrays(), **arrays}

    def is_current(index: dict[str, np.ndarray]) -> bool:  # older versions knew fewer names of images
        return not any(_is_image(os.fsdecode(name)) for name in index.get("others", ()))

    found = indexed(root, split, state=state, make=make, is_current=is_current)
    _refuse_elsewhere(found, folder)
    return found


def _refuse_elsewhere(index: dict[str, np.ndarray], folder: Path) -> None:
    """Refuse an index that came with the data and has other paths than CLASS/FILE, which may lead out of the root."""
    slashes, bounds = np.flatnonzero(index["paths"] == ord("/")), index["bounds"]
    if len(slashes) != len(bounds) - 1 or (slashes <= bounds[:-1]).any() or (slashes >= bounds[1:] - 1).any():
        raise ValueError(f"{folder}: its index beside it names other files than CLASS/FILE; remove .kilobatch-index-*")


def _identity(
    bytes_of: Callable[[str], bytes], paths: FilePaths, sizes: list[int], samples: range
) -> Iterator[str | bytes]:
    read = {samples[number] for number in evenly(len(samples), _NUM_READ)}
    for index in samples:
        path = os.fsencode(paths[index])
        yield from (path.rpartition(b"/")[2], str(sizes[index]))
        if index in read:
            yield hashlib.sha256(bytes_of(paths[index])).digest()


def _all_read(counts: np.ndarray) -> Iterator[int]:
    ends = np.cumsum(counts).tolist()
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        yield from (start + number for number in evenly(stop - start, _NUM_READ))


def _entries(folder: Path, root: Path) -> Iterator[os.DirEntry]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                if entry.is_symlink():
                    if not os.path.exists(entry.path):
                        raise ValueError(f"{entry.path}: a link that leads nowhere; remove it")
                    _refuse_escape(entry.path, root)
                yield entry


def _refuse_escape(path: str | Path, root: Path) -> None:
    # Path.resolve() raises where links loop.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise ValueError(f"{path}: leads out of {root}; copy the data there, or name the folder that holds all of it")
