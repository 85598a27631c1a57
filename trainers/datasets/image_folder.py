"""A folder of class folders of JPEG and PNG files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from trainers.datasets.samples import FilePaths, ImageFiles, require_split, sha256_of

_SUFFIXES = (".jpeg", ".jpg", ".png")
_NUM_READ = 16  # files of a class whose bytes are in the fingerprint


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """Your own images: `ROOT/train/CLASS/FILE` and `ROOT/val/CLASS/FILE`, JPEG or PNG, turned as stored (not by EXIF).

    The classes are the folders, numbered from 0 in the order of their names as bytes; both splits must have the same.
    The samples are in the order of their paths below the split, as bytes. Names that begin with a dot are passed over;
    a file that is not called .jpg, .jpeg or .png is refused, and so is a link that leads out of ROOT.
    Transparency is dropped.

    Args:
        train: folder of the training split, below ROOT.
        eval: folder of the evaluation split, below ROOT.
        channels: 3 for colour, 1 for grey; images of the other kind are converted.
    Raises:
        ValueError: `train` or `eval` is empty, absolute or leads upwards, or they are equal; `channels` is not 1 or 3.
            When opened: the folder is not as described.

    Source: the layout of ImageNet's class folders, as torchvision.datasets.ImageFolder reads it.
    """

    train: str = "train"
    eval: str = "val"
    channels: int = 3

    def __post_init__(self) -> None:
        for name in ("train", "eval"):
            folder = getattr(self, name)
            path = PurePosixPath(folder) if isinstance(folder, str) else None
            if path is None or path.is_absolute() or not path.parts or ".." in path.parts:
                raise ValueError(f"ImageFolder.{name} must be a folder below the data set's root, got {folder!r}")
        if PurePosixPath(self.train) == PurePosixPath(self.eval):
            raise ValueError(f"ImageFolder.eval must be another folder than train, got {self.eval!r}")
        if self.channels not in (1, 3) or isinstance(self.channels, bool):
            raise ValueError(f"ImageFolder.channels must be 1 or 3, got {self.channels!r}")

    def open(self, root: Path | None, split: str) -> ImageFiles:
        """The samples of "train" or "eval". Lists that split, reads no image.

        Raises:
            ValueError: there is no root; a folder is missing or empty; the splits have different classes; a file is no
                image by its name; a link leads out of the root. Reading a sample: the file is not a readable image.
        """
        require_split(split)
        classes, folder = self._classes(root), getattr(self, split)
        label_of = {name: label for label, name in enumerate(classes)}
        paths, labels, counts = FilePaths(), [], []
        for name, images in _images(root, folder, classes):
            paths.extend(_join(name, image) for image in images)
            labels.append(label_of[name])
            counts.append(len(images))
        return ImageFiles(
            folder=root / folder,
            paths=paths,
            labels=np.repeat(np.array(labels, dtype=np.int32), counts),
            channels=self.channels,
        )

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes, counted from the folders."""
        classes = self._classes(root)
        counts = {
            f"num_{split}": sum(len(images) for _, images in _images(root, getattr(self, split), classes))
            for split in ("train", "eval")
        }
        return {**counts, "num_classes": len(classes)}

    def fingerprint(self, root: Path | None) -> str:
        """SHA-256 over `fingerprints`, in order, and the fields."""
        return sha256_of([repr(self), *(word for pair in self.fingerprints(root).items() for word in pair)])

    def fingerprints(self, root: Path | None) -> dict[str, str]:
        """SHA-256 of each `SPLIT/CLASS`: names and sizes of its files, and the bytes of some.

        Read are every file of a class of up to 16, and 16 evenly spaced ones of a larger class.
        """
        classes = self._classes(root)
        return {
            f"{split}/{name}": sha256_of(_identity(os.fsencode(root / split / name), images))
            for split in (self.train, self.eval)
            for name, images in _images(root, split, classes)
        }

    def class_names(self, root: Path | None) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return self._classes(root)

    def _classes(self, root: Path | None) -> list[str]:
        """Names of the class folders, in the order of their labels."""
        if root is None:
            layout = f"{self.train}/CLASS/FILE and {self.eval}/CLASS/FILE"
            raise ValueError(
                f"ImageFolder needs the folder of the data: type --data FOLDER, where FOLDER holds {layout}, or write "
                "its root in the data set's file"
            )
        train, evaluation = _class_folders(root, self.train), _class_folders(root, self.eval)
        if train != evaluation:
            name = min(set(train) ^ set(evaluation), key=os.fsencode)
            there, missing = (self.train, self.eval) if name in train else (self.eval, self.train)
            raise ValueError(
                f"{root}: class {name!r} is in {there} but not in {missing}: both splits must have the same classes"
            )
        return train


def _class_folders(root: Path, split: str) -> list[str]:
    folder = root / split
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; the images must lie in {folder}/CLASS/FILE")
    _refuse_escape(folder, root)
    entries = list(_entries(folder, root))
    for entry in entries:
        if not entry.is_dir():
            raise ValueError(f"{entry.path}: a file beside the class folders; move it away")
    if not entries:
        raise ValueError(f"{folder}: no class folder; the images must lie in {folder}/CLASS/FILE")
    return sorted((entry.name for entry in entries), key=os.fsencode)


def _images(root: Path, split: str, classes: list[str]) -> Iterator[tuple[str, list[bytes]]]:
    """Each class of `root/split` with the names of its images, in the order of their paths' bytes."""
    for name in sorted(classes, key=lambda name: _join(name, b"")):
        folder = root / split / name
        images = sorted(os.fsencode(_image_name(entry)) for entry in _entries(folder, root))
        if not images:
            raise ValueError(f"{folder}: no image in this class; remove the folder or fill it")
        yield name, images


def _identity(folder: bytes, images: list[bytes]) -> Iterator[str | bytes]:
    read = {len(images) * number // _NUM_READ for number in range(_NUM_READ)}
    for number, image in enumerate(images):
        path = folder + b"/" + image
        yield from (image, str(os.stat(path).st_size))
        if number in read:
            with open(path, "rb") as file:
                yield hashlib.file_digest(file, "sha256").digest()


def _join(name: str, image: bytes) -> bytes:
    return os.fsencode(name) + b"/" + image


def _image_name(entry: os.DirEntry) -> str:
    if not entry.name.lower().endswith(_SUFFIXES) or not entry.is_file():
        raise ValueError(f"{entry.path}: not a file with one of the suffixes {', '.join(_SUFFIXES)}; move it away")
    return entry.name


def _entries(folder: Path, root: Path) -> Iterator[os.DirEntry]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                if entry.is_symlink():
                    _refuse_escape(entry.path, root)
                yield entry


def _refuse_escape(path: str | Path, root: Path) -> None:
    # Path.resolve() raises where links loop.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise ValueError(f"{path}: leads out of {root}; copy the data there, or name the folder that holds all of it")
