"""Tiny ImageNet, in the folders of its archive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainers.datasets.fingerprints import sha256_of_parts
from trainers.datasets.samples import FilePaths, ImageFiles, evenly, require_root, require_split

_LAYOUT = "train/CLASS/images/FILE, val/images/FILE and val/val_annotations.txt"
_NUM_READ = 4096  # images of a split whose bytes are in the fingerprint


@dataclass(frozen=True, kw_only=True)
class TinyImageNet:
    """Tiny ImageNet, as its archive unpacks: 100,000 and 10,000 JPEGs of 64x64 pixels in 200 classes.

        ROOT/train/CLASS/images/*.JPEG
        ROOT/val/images/*.JPEG, ROOT/val/val_annotations.txt      a line: file, tab, CLASS, tab, a box that is not used

    The classes are the folders of `train`, numbered from 0 in the order of their names; the samples are in the order of
    their paths, as bytes. Its `test` has no labels and is not read.

    Raises:
        ValueError: when opened: the folders or the table are not as described.

    Source: the layout of tiny-imagenet-200.zip of Stanford's course CS231n (not checked).
    """

    def open(self, root: Path | None, split: str) -> ImageFiles:
        """The samples of "train" or "eval".

        Raises:
            ValueError: see the class.
        """
        require_split(split)
        root = require_root("TinyImageNet", root, _LAYOUT)
        classes = self.class_names(root)
        label_of = {name: label for label, name in enumerate(classes)}
        if split == "train":
            folder, class_of = root / split, {}
            for name in classes:
                files = _names(root / split / name / "images")
                class_of |= {f"{name}/images/{file}": name for file in files}
        else:
            folder = root / "val" / "images"
            class_of = _annotated(root / "val" / "val_annotations.txt", _names(folder), classes)
        files = sorted(class_of, key=os.fsencode)
        paths = FilePaths()
        paths.extend(map(os.fsencode, files))
        labels = np.array([label_of[class_of[file]] for file in files], dtype=np.int32)
        return ImageFiles(folder=folder, paths=paths, labels=labels, channels=3)

    def class_names(self, root: Path | None) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return sorted(_names(require_root("TinyImageNet", root, _LAYOUT) / "train"), key=os.fsencode)

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes, counted from the folders."""
        opened = {split: self.open(root, split) for split in ("train", "eval")}
        counts = {f"num_{split}": len(samples) for split, samples in opened.items()}
        return {**counts, "num_classes": 1 + int(opened["train"].labels.max())}

    def fingerprint(self, root: Path | None) -> str:
        """SHA-256 over the names and labels of all images, and the bytes of 4,096 evenly spaced ones of each split."""
        words: list[str | bytes] = []
        for samples in (self.open(root, split) for split in ("train", "eval")):
            words += [f"{path} {label}" for path, label in zip(samples.paths, samples.labels, strict=True)]
            words += map(samples.encoded, evenly(len(samples), _NUM_READ))
        return sha256_of_parts(words)


def _names(folder: Path) -> list[str]:
    """What a folder holds, without names that begin with a dot."""
    found = [name for name in os.listdir(folder) if not name.startswith(".")] if folder.is_dir() else []
    if not found:
        raise ValueError(f"{folder}: no such folder, or nothing in it; Tiny ImageNet has {_LAYOUT}")
    return found


def _annotated(path: Path, files: list[str], classes: list[str]) -> dict[str, str]:
    """The class of each evaluation image, by the table."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; it has the classes of the images in val")
    class_of = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        file, name = (*line.split("\t"), "", "")[:2]
        if name not in classes:
            what = f"class {name!r} of {file!r} is no folder of train"
            raise ValueError(f"{path}:{number}: {what}; unpack the archive again")
        class_of[file] = name
    if odd := set(files) ^ set(class_of):
        raise ValueError(f"{path}: {min(odd)!r} is not both in this table and in images; unpack the archive again")
    return class_of
