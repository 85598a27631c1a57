"""Facts of a data set: the keys of a file of `configs/datasets`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from recipes.arguments import younger
from recipes.schema.batch_and_rate import require
from recipes.schema.vocabulary import Component

__all__ = ["Dataset", "Source", "SourceFile", "StopAfter", "Validation"]


@dataclass(frozen=True, kw_only=True)
class StopAfter:
    """How many images a run may skip.

    Args:
        stop_after: the run ends if more different images than these cannot be decoded, at least 1.
    """

    stop_after: int

    def __post_init__(self) -> None:
        require(self.stop_after >= 1, f"StopAfter.stop_after must be at least 1, got {self.stop_after}")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Samples of the training split that are scored and never trained on.

    They are drawn once for a number of samples, by no seed: every recipe and run holds out the same ones, and a larger
    share holds out those of a smaller one too. See `recipes.planning.stream.held_out`.

    Args:
        fraction: their share of the training split, in (0, 1), rounded down to whole samples.
        by_class: hold out about this share of every class, but none of one with fewer than half of 1 / fraction.
    """

    fraction: float
    by_class: bool = younger(False)

    def __post_init__(self) -> None:
        require(0 < self.fraction < 1, f"Validation.fraction must be above 0 and below 1, got {self.fraction}")

    def split(self, num_samples: int) -> dict[str, int]:
        """num_train and num_eval of a training split of `num_samples`.

        Raises:
            ValueError: the share is less than one sample.

        >>> Validation(fraction=0.1).split(1_281_167)
        {'num_train': 1153051, 'num_eval': 128116}
        """
        num_eval = int(Fraction(repr(self.fraction)) * num_samples)
        if not num_eval:
            raise ValueError(f"Validation.fraction must hold out one of {num_samples:,} samples, got {self.fraction}")
        return {"num_train": num_samples - num_eval, "num_eval": num_eval}


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of a source.

    Args:
        name: below the source's URL, and in the folder where it is put; `.tar.gz` and `.tar` are unpacked there.
        sha256: of its bytes, in hexadecimal.
        content_sha256: of what a `.gz` holds; files at hand are refused if it differs, however they are compressed.
    """

    name: str
    sha256: str
    content_sha256: str = younger("")

    def __post_init__(self) -> None:
        plain = self.name and "/" not in self.name and not self.name.startswith(".")
        require(plain, f"SourceFile.name must be the name of a file without a folder, got {self.name!r}")
        for key, value in (("sha256", self.sha256), ("content_sha256", self.content_sha256 or self.sha256)):
            is_sum = re.fullmatch("[0-9a-f]{64}", value)
            require(is_sum, f"SourceFile.{key} must have 64 hexadecimal digits, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where `kilobatch data get` finds the files of a data set: at a URL, or in a package of Debian.

    Args:
        url: http:// or https://, without the files' names.
        files: what is fetched from there.
        debian: name of the package; then there is no URL.
        folder: of the data: in the package an absolute one; of a URL, one that unpacking makes, else left out.
    """

    url: str = ""
    files: tuple[SourceFile, ...] = ()
    debian: str = ""
    folder: str = ""

    def __post_init__(self) -> None:
        require(bool(self.url) != bool(self.debian), "Source has either a url or a debian, got both or none")
        if self.url:
            is_web = self.url.startswith(("http://", "https://"))
            require(is_web, f"Source.url must begin with http:// or https://, got {self.url!r}")
            require(bool(self.files), "Source.files must name at least one file beside a url")
            inside = not Path(self.folder).is_absolute() and ".." not in Path(self.folder).parts
            require(inside, f"Source.folder must lie below the folder of the files, got {self.folder!r}")
        else:
            # apt takes a name with `.` or `+` for a pattern, and removes a package if a `-` follows its name.
            known = re.fullmatch("[a-z0-9][a-z0-9-]*[a-z0-9]", self.debian)
            what = "the name of a package, of a to z, digits and `-` within"
            require(known, f"Source.debian must be {what}, got {self.debian!r}")
            require(Path(self.folder).is_absolute(), f"Source.folder must be absolute, got {self.folder!r}")


def url_of(root: Path | str) -> str | None:
    """The URL of a root that is one, also after `Path` took one of its slashes; None for a folder.

    >>> url_of(Path("s3://bucket/imagenet")), url_of(Path("file:///data")), url_of(Path("data/imagenet"))
    ('s3://bucket/imagenet', 'file:///data', None)
    """
    found = re.match("([a-z][a-z0-9+]+):/+(.*)", str(root))
    if found is None:
        return None
    return f"{found[1]}://{'/' if found[1] == 'file' else ''}{found[2]}"  # a file's has no host


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Facts of a data set and how to read it: a file of `configs/datasets`.

    Args:
        name: name of the data set. Left out: the name of the file.
        title: what it is, in one line.
        source: where its facts come from.
        num_train: samples that are trained on, at least 1. Left out, as the next two: the reader counts.
        num_eval: samples that are scored, at least 1.
        num_classes: classes, at least 1.
        classes: their names, in the order of their labels, where the reader knows none: reports and predictions show
            them. Where it does, other names than its own are refused. [] for none.
        channels: colour channels of an image, at least 1; those of its reader too, where that leaves its own out.
        mean: mean of each channel, of pixel values scaled to 0..1, in [0, 1].
        std: standard deviation of each channel, of pixel values scaled to 0..1, in (0, 1].
        subset_of: data set of which these are some classes or images; `{kind: Normalize, with: imagenet}` then means
            this one too, with the mean and std given here.
        reader: the component that opens it; null where there is none yet.
        validation: the samples that are scored, drawn from the training split, for data that have no other:
            `{fraction: 0.1}`. null: the reader's evaluation split.
        root: folder of its files, or a URL that fsspec opens, such as s3://bucket/imagenet, without credentials; a
            relative folder counts from the data set's file. `--data` gives another.
        obtain: how to get that folder, in one line; shown if the data are not found.
        sources: where `kilobatch data get` finds the files; they are tried in this order. Nothing else uses them.
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
    classes: tuple[str, ...] = younger(())
    channels: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    subset_of: str = younger("")
    reader: Annotated[object, Component("datasets")] | None = None
    validation: Validation | None = None
    root: Path | None = None
    obtain: str = ""
    sources: tuple[Source, ...] = ()
    on_bad_image: Literal["refuse", "skip"] | StopAfter = "refuse"
    lacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_train", "num_eval", "num_classes", "channels"):
            require(getattr(self, name) >= 1, f"Dataset.{name} must be at least 1, got {getattr(self, name)}")
        if self.classes:
            what = f"{self.num_classes} different names, or []"
            require(len({*self.classes}) == self.num_classes == len(self.classes), f"Dataset.classes must be {what}")
        has_eval = self.validation is not None or getattr(self.reader, "eval", "") is not None
        require(has_eval, "Dataset.validation must be `{fraction: 0.1}`, say: the reader has `eval: null`, got null")
        if self.validation is not None:
            num_eval = self.validation.split(self.num_train + self.num_eval)["num_eval"]
            what = f"{num_eval:,}, {self.validation.fraction} of it and num_train together"
            require(self.num_eval == num_eval, f"Dataset.num_eval must be {what}, got {self.num_eval}")
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

    def class_names(self) -> list[str]:
        """The names of the classes in the order of their labels, of the reader if it knows them; else none."""
        found = self.reader.class_names(self.root) if hasattr(self.reader, "class_names") else ()
        return list(found or self.classes)

    def holding_out(self, fraction: float) -> Dataset:
        """This data set with a share of its training split in place of the samples that are scored.

        Raises:
            ValueError: the share is less than one sample.
        """
        validation = Validation(fraction=fraction)
        return replace(self, validation=validation, **validation.split(self.num_train))
