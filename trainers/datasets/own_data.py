"""A user's own class of samples as a reader: `__len__` and `load(index)` are enough."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainers.datasets.fingerprints import sha256_of_parts
from trainers.datasets.samples import Sample, evenly, require_root, require_split

_NUM_READ = 256  # samples of a split whose bytes are in the fingerprint


class WrongSample(ValueError):
    """`load` returned something else than an image and its label."""


def is_own_data(cls: object) -> bool:
    """Whether it is a class of samples: `__len__`, `load(index)`, and `split` among its constructor's arguments."""
    return (
        isinstance(cls, type)
        and all(callable(getattr(cls, name, None)) for name in ("__len__", "load"))
        and "split" in inspect.signature(cls).parameters
    )


def reader_methods(cls: type) -> dict[str, Any]:
    """What makes a dataclass, whose fields are the constructor's other arguments, a reader of such samples.

    The constructor gets `split`, "train" or "eval", and, if it has the argument, `root`, the folder of the data.
    """
    parameters = inspect.signature(cls).parameters

    def open_split(self: Any, root: Path | None, split: str) -> OwnSamples:
        """The samples of "train" or "eval"."""
        require_split(split)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if "root" in parameters:
            needs_root = parameters["root"].default is inspect.Parameter.empty
            given["root"] = require_root(cls.__name__, root, "its files") if needs_root else root
        return OwnSamples(own=cls(split=split, **given), reader=self, root=root, split=split)

    def facts(self: Any, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and, if the class has it as an attribute, num_classes."""
        opened = {split: self.open(root, split) for split in ("train", "eval")}
        counts = {f"num_{split}": len(samples) for split, samples in opened.items()}
        num_classes = getattr(opened["train"].own, "num_classes", None)
        return counts | ({} if num_classes is None else {"num_classes": int(num_classes)})

    def fingerprint(self: Any, root: Path | None) -> str:
        """SHA-256 over the fields, the number of samples, and up to 256 evenly spaced samples of each split."""
        return sha256_of_parts([repr(self), *_parts(self.open(root, "train")), *_parts(self.open(root, "eval"))])

    reads_folder = "root" in parameters
    methods = {"open": open_split, "facts": facts, "fingerprint": fingerprint}
    return methods | {"reads_folder": reads_folder, "is_own": True}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OwnSamples:
    """One split of a user's own class, each sample checked; another process makes the class anew.

    Args:
        own: an instance of the class.
        reader, root, split: what it was opened by.
    """

    own: Any
    reader: Any
    root: Path | None
    split: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.reader, self.root, self.split)

    @property
    def threads_pay(self) -> bool:
        """The attribute of that name of the class: whether `load` takes long, lets other threads run, and may."""
        return bool(getattr(self.own, "threads_pay", False))

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, index: int) -> Sample:
        """The image and its label.

        Raises:
            WrongSample: `load` returned something else.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        sample = self.own.load(index)
        image, label = sample if isinstance(sample, tuple) and len(sample) == 2 else (None, None)
        is_image = isinstance(image, np.ndarray) and image.ndim == 3 and image.dtype == np.uint8
        is_label = isinstance(label, int | np.integer) and label >= 0
        if not (is_image and is_label):
            found = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else type(sample).__name__
            raise WrongSample(
                f"{type(self.own).__name__}.load({index}) returned {found} and label {label!r}; it must return an "
                "image, uint8 (height, width, channels), and its label, a whole number from 0"
            )
        return image.copy(), int(label)  # the next `load` may use its memory again


def _opened(reader: Any, root: Path | None, split: str) -> OwnSamples:
    return reader.open(root, split)


def _parts(samples: OwnSamples) -> Iterator[str | bytes]:
    yield str(len(samples))
    for image_HWC, label in map(samples.__getitem__, evenly(len(samples), _NUM_READ)):
        yield from (f"{image_HWC.shape} {label}", image_HWC.tobytes())
