"""`kilobatch data verify`: reads and decodes every image of a data set, and names all that a run could not use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import listed, printable_line
from recipes.reports.wording import counted, number
from recipes.schema import Dataset
from trainers.datasets.held_out import contradictions, label_gaps, open_split
from trainers.datasets.inspection import SPLITS, class_called
from trainers.datasets.samples import channels_first
from trainers.runs.cores import usable_cores

_AT_ONCE = 32  # images that a thread takes
_SMALL, _LARGE = 8, 10_000  # pixels of a side: images beyond are named, though they can be read


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One image that is named.

    Args:
        split: train or eval.
        index: of the sample.
        name: its file, with its place where it lies within a larger one.
        cause: what is wrong or unusual.
    """

    split: str
    index: int
    name: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What the check found.

    Args:
        dataset: its name.
        checked: images.
        bad: images that cannot be used, in the order of the samples.
        unusual: images that can be used, and are named because they are very small or large.
        others: files and folders that the reader refuses, because they are no images by their names.
        wrong_counts: what the data set's file says and its data do not.
        untrained: classes with samples that are scored and none that is trained on; a run can use them.
        label_gaps: see `trainers.datasets.held_out.label_gaps`; a run can use them.
    """

    dataset: str
    checked: int
    bad: list[Finding]
    unusual: list[Finding]
    others: list[str]
    wrong_counts: list[str]
    untrained: list[str]
    label_gaps: list[str]

    @property
    def holds(self) -> bool:
        """Whether a run can use all of it."""
        return not self.unusable and not self.wrong_counts

    @property
    def unusable(self) -> list[str]:
        """Names of the images and other files that a run could not use."""
        return [*(finding.name for finding in self.bad), *self.others]

    def as_tree(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"holds": self.holds}


def verify_images(dataset: Dataset, advance: Callable[[int], None], *, others: Sequence[str] = ()) -> Verified:
    """Read and decode every image, on a thread a core.

    Args:
        dataset: whose data are there.
        advance: called with the number of further images that were checked.
        others: files and folders that are no images by their names, and that the data set refuses.
    """
    bad, unusual, checked = [], [], 0
    opened = {split: open_split(dataset, split) for split in SPLITS}
    for split, samples in opened.items():
        checked += len(samples)
        for found, done in _on_threads(_Check(dataset, samples, split), len(samples)):
            advance(done)
            bad += [finding for is_bad, finding in found if is_bad]
            unusual += [finding for is_bad, finding in found if not is_bad]
    wrong_counts = [f"the data set's file says {words}" for words in contradictions(dataset)]
    return Verified(
        dataset=dataset.name,
        checked=checked,
        bad=bad,
        unusual=unusual,
        others=[*others],
        wrong_counts=wrong_counts,
        untrained=_untrained(dataset, **opened),
        label_gaps=label_gaps(dataset, *opened.values()),
    )


def _untrained(dataset: Dataset, *, train: Any, eval: Any) -> list[str]:
    if not (hasattr(train, "labels") and hasattr(eval, "labels")):
        return []
    names = dataset.class_names()
    return [class_called(names, label) for label in np.setdiff1d(eval.labels, train.labels).tolist()]


def num_images(dataset: Dataset) -> int:
    """Images of both splits, by the reader."""
    facts = dataset.reader.facts(dataset.root)
    return facts["num_train"] + (facts["num_eval"] if dataset.validation is None else 0)


def _on_threads(check: _Check, count: int) -> Iterator[tuple[list[tuple[bool, Finding]], int]]:
    """What was found in each few samples, in order, and how many these are."""
    ranges = [range(start, min(start + _AT_ONCE, count)) for start in range(0, count, _AT_ONCE)]
    pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="verify")
    try:
        for indices, found in zip(ranges, pool.map(check, ranges), strict=True):
            yield found, len(indices)
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C only what has begun is finished


class _Check:
    """Finds in some samples those that cannot be used (True) and those that are unusual (False)."""

    def __init__(self, dataset: Dataset, samples: Any, split: str) -> None:
        self._dataset, self._samples, self._split = dataset, samples, split

    def __call__(self, indices: range) -> list[tuple[bool, Finding]]:
        found = []
        for index in indices:
            cause, is_bad = self._cause(index)
            if cause:
                name = getattr(self._samples, "name_of", "sample {}".format)(index)
                cause = cause.removeprefix(f"{name}: ")
                found.append((is_bad, Finding(split=self._split, index=index, name=name, cause=cause)))
        return found

    def _cause(self, index: int) -> tuple[str, bool]:
        """What is wrong (True) or unusual (False) with a sample; empty where nothing is."""
        try:
            image_HWC, label = self._samples[index]
        except ValueError as error:  # UnreadableImage, or what a reader of one's own raises
            return str(error), True
        except Exception as error:
            return f"{type(error).__name__}: {error}", True
        if image_HWC.ndim != 3 or image_HWC.shape[2] != self._dataset.channels:
            channels = counted(self._dataset.channels, "channel")
            way_out = channels_first(image_HWC.shape, self._dataset.channels)
            return f"an array of {image_HWC.shape}, and the data set has {channels}{way_out}", True
        if image_HWC.dtype != np.uint8 and not (image_HWC.min() >= 0 and image_HWC.max() <= 255):  # or NaN
            return f"pixels of {image_HWC.dtype} outside 0..255", True
        if not 0 <= label < self._dataset.num_classes:
            return f"label {label}, and the data set has {self._dataset.num_classes} classes", True
        height, width, _ = image_HWC.shape
        can_vary = hasattr(self._samples, "encoded")
        if can_vary and (min(height, width) < _SMALL or max(height, width) > _LARGE):
            return f"{height} x {width} pixels", False
        return "", False


def write_names(names: Sequence[str], path: Path) -> list[Path]:
    """Write names of files, one in a line; returns the files written.

    A name that has a line break or begins with a quotation mark is a JSON string, which begins with one.
    """
    quoted = (json.dumps(name) if name.startswith('"') or {*"\r\n"} & {*name} else name for name in names)
    path.write_bytes(b"".join(os.fsencode(name) + b"\n" for name in quoted))
    return [path]


def verified_text(verified: Verified) -> str:
    """What the check found, for a terminal: every image that is named on a line of its own."""
    lines = [f"{finding.name}: {finding.cause}" for finding in verified.bad]
    lines += [f"{finding.name}: {finding.cause}; it can be read" for finding in verified.unusual]
    lines += [f"{name}: no image by its name, and refused" for name in verified.others]
    lines += verified.wrong_counts
    lines += verified.label_gaps
    if verified.untrained:
        lines.append(f"eval has classes {listed(verified.untrained)}, of which train has no sample")
    images = f"{counted(verified.checked, 'image')} of {verified.dataset}"
    bad = f"{number(len(verified.bad))} cannot be used" if verified.bad else "all can be used"
    more = f"; no images by their names: {number(len(verified.others))}" if verified.others else ""
    return "\n".join(printable_line(line) for line in [*lines, f"{images}: {bad}{more}"])
