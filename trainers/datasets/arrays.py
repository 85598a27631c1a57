"""Images and labels in NumPy's files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainers.datasets.manifest import preparation, refuse_unfinished
from trainers.datasets.samples import SamplesInMemory, require_names, require_root, require_split, sha256_of, splits_of

_WHOLE_BYTES = 2**30  # arrays of more bytes are not read whole for the fingerprint
_NUM_READ = 4096  # images of a larger array whose bytes are in the fingerprint
_THREADS_PAY_BYTES = 64 * 64 * 3


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Images of one size in NumPy's files: `SPLIT_images.npy` and `SPLIT_labels.npy`, or both in `SPLIT.npz`.

        images      uint8, (samples, height, width, channels), or (samples, height, width) where they are grey
        labels      whole numbers from 0, (samples,)

    SPLIT is `train` or `val`. `.npy` is mapped into memory: an access reads that image alone, so it may be larger than
    memory. `.npz` has the arrays `images` and `labels` and is read whole. The order is that of the arrays.

    Args:
        train, eval: SPLIT of either; `eval` is null if there is none.
    Raises:
        ValueError: `train` or `eval` is empty or leads out of the root, or they are equal. When opened: a file is
            missing, damaged, or holds other arrays.

    Source: none.
    """

    train: str = "train"
    eval: str | None = "val"

    def __post_init__(self) -> None:
        require_names(self)

    def open(self, root: Path | None, split: str) -> ArraySamples:
        """The samples of "train" or "eval".

        Raises:
            ValueError: see the class.
        """
        require_split(split, self)
        root = self._root(root)
        name, images, labels = _load(root, getattr(self, split))
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or not len(images):
            what = f"{images.dtype} of shape {images.shape}"
            raise ValueError(f"{name('images')}: {what}; images are uint8, (samples, height, width, channels)")
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or labels.min() < 0:
            what = f"{labels.dtype} of shape {labels.shape}"
            raise ValueError(f"{name('labels')}: {what}; labels are {len(images):,} whole numbers from 0")
        return ArraySamples(
            images_NHWC=images if images.ndim == 4 else images[..., np.newaxis],
            labels=np.array(labels),
            reader=self,
            root=root,
            split=split,
        )

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes: the largest label and one."""
        root = self._root(root)
        refuse_unfinished(root)
        opened = {split: self.open(root, split) for split in splits_of(self)}
        counts = {f"num_{split}": len(samples) for split, samples in opened.items()}
        return {**counts, "num_classes": 1 + max(int(samples.labels.max()) for samples in opened.values())}

    def fingerprint(self, root: Path | None) -> str:
        """SHA-256 over `fingerprints`, in order, and the fields."""
        return sha256_of([repr(self), *(word for pair in self.fingerprints(root).items() for word in pair)])

    def fingerprints(self, root: Path | None) -> dict[str, str]:
        """SHA-256 of each split: its shape, its labels and its images; of more than 1 GiB, 4,096 evenly spaced ones."""
        root = self._root(root)
        opened = {getattr(self, split): self.open(root, split) for split in splits_of(self)}
        return {**preparation(root), **{name: sha256_of(_identity(samples)) for name, samples in opened.items()}}

    def _root(self, root: Path | None) -> Path:
        return require_root("Arrays", root, "train_images.npy, train_labels.npy, val_images.npy, val_labels.npy")


@dataclass(frozen=True, kw_only=True, eq=False)
class ArraySamples(SamplesInMemory):
    """One split of `Arrays`; another process opens it again, and gets no copy of the images.

    Args:
        reader, root, split: what it was opened by.
    """

    reader: Arrays
    root: Path
    split: str

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reader.open, (self.root, self.split)

    @property
    def threads_pay(self) -> bool:
        """Whether an image is so large that its augmentation takes long."""
        return self.images_NHWC[0].size >= _THREADS_PAY_BYTES


def _load(root: Path, split: str) -> tuple[Callable[[str], str], np.ndarray, np.ndarray]:
    """What to call an array in messages, images and labels."""
    archive = root / f"{split}.npz"
    paths = {part: root / f"{split}_{part}.npy" for part in ("images", "labels")}
    if not archive.is_file():
        for path in paths.values():
            if not path.is_file():
                raise ValueError(f"{path}: no such file, nor {archive.name} with the arrays images and labels")
    path = archive
    try:
        if archive.is_file():
            with np.load(archive) as arrays:
                return f"{archive}: {{}}".format, arrays["images"], arrays["labels"]
        loaded = []
        for path in paths.values():
            loaded.append(np.load(path, mmap_mode="r"))
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: {what}; damaged, cut off, or without one of its arrays: make it again") from error
    return (lambda part: str(paths[part])), *loaded


def _identity(samples: ArraySamples) -> Iterator[str | bytes]:
    images = samples.images_NHWC
    count = len(images) if images.nbytes <= _WHOLE_BYTES else _NUM_READ
    yield from (str(images.shape), samples.labels.astype("<i8").tobytes())
    for number in range(count):
        yield images[len(images) * number // count].tobytes()
