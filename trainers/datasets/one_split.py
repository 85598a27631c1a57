"""One split of a data set alone: the files of the other need not be there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainers.datasets.samples import splits_of
from trainers.runs.identity import is_of_the_user


@dataclass(frozen=True, kw_only=True)
class OneSplit:
    """A reader that opens one split, whichever is asked for, with the labels of a run.

    Args:
        reader: of the split, which it calls `train`; of readers that have no key for a split, of both.
        labels: the run's label of each class of the data; None: they are the run's own.
    """

    reader: Any
    labels: tuple[int, ...] | None = None

    def open(self, root: Path | None, split: str) -> Any:
        """The samples."""
        samples = self.reader.open(root, split if splits_of(self.reader) == ("train", "eval") else "train")
        if self.labels is None:
            return samples
        return replace(samples, labels=np.array(self.labels, samples.labels.dtype)[samples.labels])

    def class_names(self, root: Path | None) -> list[str]:
        """Names of the classes of the data, in the order of the reader's labels; none where it has none."""
        return list(self.reader.class_names(root)) if hasattr(self.reader, "class_names") else []


def reader_of_one(reader: Any, split: str) -> Any:
    """A reader of the files of one split, as `train`; the reader itself, where it has no key for each of them."""
    if is_of_the_user(reader) or getattr(reader, "eval", None) is None:
        return reader
    return replace(reader, train=getattr(reader, split), eval=None)
