"""Images and labels in NumPy's files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainers.datasets.fingerprints import fingerprint_of_files, sha256_of_parts
from trainers.datasets.manifest import preparation, refuse_unfinished
from trainers.datasets.place import Place, place_of
from trainers.datasets.remote import CannotFetch, Mirror, Piece
from trainers.datasets.samples import SamplesInMemory, require_names, require_root, require_split, splits_of

_WHOLE_BYTES = 2**30  # arrays of more bytes are not read whole for the fingerprint
_NUM_READ = 4096  # images of a larger array whose bytes are in the fingerprint
_HEADER_BYTES = 1024  # of a file, at most, mostly
_THREADS_PAY_BYTES = 64 * 64 * 3


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Images of one size in NumPy's files: `SPLIT_images.npy` and `SPLIT_labels.npy`, or both in `SPLIT.npz`.

        images      uint8, (samples, height, width, channels), or (samples, height, width) where they are grey
        labels      whole numbers from 0, (samples,)

    SPLIT is `train` or `val`. `.npy` is mapped into memory: an access reads that image alone, so it may be larger than
    memory; at a URL an access is one request for its range of bytes. `.npz` has the arrays `images` and `labels` and is
    read whole. The order is that of the arrays.

    Args:
        train: SPLIT of the training samples: `images`, uint8 (samples, height, width, channels), or (samples, height,
            width) where they are grey; `labels`, whole numbers from 0, (samples,).
        eval: SPLIT of the evaluation samples, of the same form; null if there is none.
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
        place = self._place(root)
        name, images, labels = _load(place, getattr(self, split))
        if images.shape[:1] == (0,):
            raise ValueError(f"{name('images')}: holds no samples")
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
            what, form = f"{images.dtype} of shape {images.shape}", "(samples, height, width, channels)"
            raise ValueError(f"{name('images')}: {what}; images are uint8, {form}: convert them")
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or labels.min() < 0:
            what = f"{labels.dtype} of shape {labels.shape}"
            what += f", down to {labels.min()}" if labels.size and labels.min() < 0 else ""
            raise ValueError(f"{name('labels')}: {what}; labels are {len(images):,} whole numbers from 0")
        return ArraySamples(
            images_NHWC=images.reshape(*images.shape[:3], -1),
            labels=np.array(labels),
            reader=self,
            root=root,
            split=split,
        )

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes: the largest label and one."""
        refuse_unfinished(self._place(root).folder)
        opened = {split: self.open(root, split) for split in splits_of(self)}
        counts = {f"num_{split}": len(samples) for split, samples in opened.items()}
        return {**counts, "num_classes": 1 + max(int(samples.labels.max()) for samples in opened.values())}

    fingerprint = fingerprint_of_files

    def fingerprints(self, root: Path | None) -> dict[str, str]:
        """SHA-256 of each split: its shape, its labels and its images; of more than 1 GiB, 4,096 evenly spaced ones."""
        opened = {getattr(self, split): self.open(root, split) for split in splits_of(self)}
        return {
            **preparation(self._place(root).folder),
            **{name: sha256_of_parts(_identity(samples)) for name, samples in opened.items()},
        }

    def _place(self, root: Path | None) -> Place:
        layout = "train_images.npy, train_labels.npy, val_images.npy, val_labels.npy"
        return place_of(require_root("Arrays", root, layout, whole=False))


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
        return math.prod(self.images_NHWC.shape[1:]) >= _THREADS_PAY_BYTES

    @property
    def mirror(self) -> Mirror | None:
        """Of a URL, where images are fetched one by one."""
        return getattr(self.images_NHWC, "mirror", None)

    def will_need(self, indices: Iterable[int]) -> None:
        """Fetch these samples ahead, where they come from a URL."""
        if self.mirror is not None:
            self.mirror.will_need(map(self.images_NHWC.piece, indices))


@dataclass(frozen=True)
class ArrayAtUrl:
    """The array of a `.npy` file at a URL; each item along its first axis is fetched when it is asked for.

    Args:
        mirror: of the URL.
        name: of the file.
        start: its first value, in bytes from the start of the file.
    """

    mirror: Mirror
    name: str
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> np.ndarray:
        return np.frombuffer(self.mirror.read(*self.piece(index)), self.dtype).reshape(self.shape[1:])

    def reshape(self, *shape: int) -> ArrayAtUrl:
        """The same values in another shape; its last axis may be -1."""
        known = math.prod(shape[:-1])
        return replace(self, shape=(*shape[:-1], math.prod(self.shape) // known if shape[-1] < 0 else shape[-1]))

    def piece(self, index: int) -> Piece:
        """Where an item lies."""
        size = self.nbytes // len(self)
        return self.name, self.start + range(len(self))[index] * size, size


def _load(place: Place, split: str) -> tuple[Callable[[str], str], Any, np.ndarray]:
    """What to call an array in messages, images and labels."""
    archive = place.folder / f"{split}.npz"
    paths = {part: place.folder / f"{split}_{part}.npy" for part in ("images", "labels")}
    if not (has_archive := bool(place.files(archive.name))):
        for path in paths.values():
            if not place.files(path.name):
                raise ValueError(
                    f"{place.shown(path)}: no such file, nor {archive.name} with the arrays images and labels"
                )
    path = archive
    try:
        if has_archive:
            with np.load(place.fetched(archive)) as arrays:
                return f"{place.shown(archive)}: {{}}".format, arrays["images"], arrays["labels"]
        loaded = []
        for part, path in paths.items():
            at_url = part == "images" and place.mirror is not None
            loaded.append(_at_url(place, path) if at_url else np.load(place.fetched(path), mmap_mode="r"))
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, CannotFetch):
            raise
        what, way_out = f"{type(error).__name__}: {error}", "damaged or cut off: make it again"
        if isinstance(error, KeyError):
            what, way_out = error.args[0], f"np.savez({archive.name!r}, images=..., labels=...) makes such a file"
        raise ValueError(f"{place.shown(path)}: {what}; {way_out}") from error
    return (lambda part: place.shown(paths[part])), *loaded


def _at_url(place: Place, path: Path) -> ArrayAtUrl:
    """The array of a file, by its header.

    Raises:
        ValueError: it is no such file, is cut off, or holds something else than numbers in C order.
    """
    with place.opened(path, at_least=_HEADER_BYTES) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, in_columns, dtype = read(file)
        array = ArrayAtUrl(place.mirror, place.name(path), file.tell(), shape, dtype)
    if dtype.hasobject or (in_columns and len(shape) > 1):
        raise ValueError(f"{dtype} in {'Fortran' if in_columns else 'C'} order; store numbers in C order")
    if array.start + array.nbytes != place.size(path):
        raise ValueError(f"{place.size(path)} bytes, where its header says {array.start + array.nbytes}")
    return array


def _identity(samples: ArraySamples) -> Iterator[str | bytes]:
    images = samples.images_NHWC
    count = len(images) if images.nbytes <= _WHOLE_BYTES else _NUM_READ
    chosen = [len(images) * number // count for number in range(count)]
    samples.will_need(chosen)
    yield from (str(images.shape), samples.labels.astype("<i8").tobytes())
    for index in chosen:
        yield images[index].tobytes()
