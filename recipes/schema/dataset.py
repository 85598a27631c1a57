"""Facts of a data set: the keys of a file of `configs/datasets`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from recipes.schema.batch_and_rate import require
from recipes.schema.vocabulary import Component

__all__ = ["Dataset", "StopAfter"]


@dataclass(frozen=True, kw_only=True)
class StopAfter:
    """How many images a run may skip.

    Args:
        stop_after: the run ends if more different images than these cannot be decoded, at least 1.
    """

    stop_after: int

    def __post_init__(self) -> None:
        require(self.stop_after >= 1, f"StopAfter.stop_after must be at least 1, got {self.stop_after}")


def url_of(root: Path | str) -> str | None:
    """The URL of a root that is one, also after `Path` took one of its slashes; None for a folder.

    >>> url_of(Path("s3://bucket/imagenet")), url_of(Path("data/imagenet"))
    ('s3://bucket/imagenet', None)
    """
    found = re.match("([a-z][a-z0-9+]+):/+(.*)", str(root))
    return None if found is None else f"{found[1]}://{found[2]}"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Facts of a data set and how to read it: a file of `configs/datasets`.

    Args:
        name: name of the data set. Left out: the name of the file.
        title: what it is, in one line.
        source: where its facts come from.
        num_train: training samples, at least 1. Left out, as the next two: the reader counts.
        num_eval: samples that are scored, at least 1.
        num_classes: classes, at least 1.
        channels: colour channels of an image, at least 1.
        mean: mean of each channel, of pixel values scaled to 0..1, in [0, 1].
        std: standard deviation of each channel, of pixel values scaled to 0..1, in (0, 1].
        reader: the component that opens it; null where there is none yet.
        root: folder of its files, or a URL that fsspec opens, such as s3://bucket/imagenet, without credentials; a
            relative folder counts from the data set's file. `--data` gives another.
        obtain: how to get that folder, in one line; shown if the data are not found.
        on_bad_image: what happens to an image that cannot be decoded. `refuse`: the run ends and names it. `skip`: the
            next readable sample takes its place, the same in every epoch and on any ranks. `{stop_after: n}`: as skip,
            for up to n different images.
        lacks: names of methods that are not built: a kind named here is accepted and cannot be opened.
    """

    name: str
    title: str = ""
    source: Any = None
    num_train: int
    num_eval: int
    num_classes: int
    channels: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    reader: Annotated[object, Component("datasets")] | None = None
    root: Path | None = None
    obtain: str = ""
    on_bad_image: Literal["refuse", "skip"] | StopAfter = "refuse"
    lacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_train", "num_eval", "num_classes", "channels"):
            require(getattr(self, name) >= 1, f"Dataset.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and len(values) != self.channels:
                what = f"one number a channel, {self.channels} in all, got a list of {len(values)}"
                raise ValueError(f"Dataset.{name} must be {what}")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise ValueError(f"Dataset.std must be above 0, got {self.std}")
        for name in ("mean", "std"):
            if not all(0 <= value <= 1 for value in getattr(self, name) or ()):
                what = "from 0 to 1, of pixel values scaled to 0..1: divide those of 0..255 by 255"
                raise ValueError(f"Dataset.{name} must be {what}, got {getattr(self, name)}")
