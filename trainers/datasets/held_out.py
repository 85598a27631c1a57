"""The splits of a data set, also where the samples that are scored are held out of the training split."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.planning.stream import held_out
from recipes.schema import Dataset
from trainers.datasets.samples import EncodedSamples, Sample

_NAMED = 5  # classes, of more that have no sample


def open_split(dataset: Dataset, split: str) -> Any:
    """The samples of "train" or "eval". If the data set has `validation`, both are parts of the reader's "train"."""
    if dataset.validation is None:
        return dataset.reader.open(dataset.root, split)
    samples = dataset.reader.open(dataset.root, "train")
    labels = None
    if dataset.validation.by_class:
        if not hasattr(samples, "labels"):
            raise ValueError(f"{dataset.name}: validation.by_class needs samples with `labels`, an array; write false")
        labels = np.asarray(samples.labels, np.int64)
    trained, scored = held_out(len(samples), dataset.validation.split(len(samples))["num_eval"], labels)
    indices = trained if split == "train" else scored
    if not isinstance(samples, EncodedSamples):
        return ChosenSamples(samples=samples, indices=indices)
    labels = samples.labels[indices]
    return ChosenFiles(samples=samples, indices=indices, labels=labels, channels=samples.channels)


def contradictions(dataset: Dataset) -> Iterator[str]:
    """In words, what the data set's file says and the reader finds otherwise: counts, where fewer classes are accepted,
    and names of classes.
    """
    said = {key: getattr(dataset, key) for key in ("num_train", "num_eval", "num_classes")}
    if dataset.validation is not None:
        said = {"num_train": dataset.num_train + dataset.num_eval, "num_classes": dataset.num_classes}
    for key, count in dataset.reader.facts(dataset.root).items():
        if key in said and (count > said[key] or (count < said[key] and key != "num_classes")):
            words = f"{key} and num_eval together" if dataset.validation is not None and key == "num_train" else key
            yield f"{words}: {said[key]:,}, and there are {count:,}"
    if dataset.classes:
        for label, (said_name, name) in enumerate(zip(dataset.classes, dataset.class_names(), strict=False)):
            if said_name != name:
                yield f"classes: label {label} is {said_name!r}, and there it is {name!r}"
                break


def label_gaps(dataset: Dataset, *splits: Any) -> list[str]:
    """In words, the classes below the largest label of which no split has a sample; empty if there are none, if classes
    have names, or if a split keeps no array of labels.
    """
    if dataset.class_names() or not all(hasattr(samples, "labels") for samples in splits):
        return []
    used = {*np.unique(np.concatenate([samples.labels for samples in splits])).tolist()}
    largest = max(used)
    if (lacking := largest + 1 - len(used)) <= 0:
        return []
    unused = (str(label) for label in itertools.count() if label not in used)
    first = list(itertools.islice(unused, min(lacking, _NAMED)))
    more = f" and {lacking - len(first):,} more" if lacking > len(first) else ""
    what = f"class {first[0]} has" if lacking == 1 else f"classes {', '.join(first)}{more} have"
    way_out = "subtract 1 from the labels" if first == ["0"] else "number the classes from 0 without gaps"
    meant = (
        f"or, if it is meant, write `num_classes: {dataset.num_classes}` in the data set's file, or names as `classes`"
    )
    here = f"labels count from 0, up to {largest:,} here, and {what} no sample, but an output of the model"
    return [f"{here}; {way_out}, {meant}"]


class _FetchesAhead:
    """What samples at a URL have, for some of them."""

    @property
    def mirror(self) -> Any:
        """Of a URL, where the samples come from; else None."""
        return getattr(self.samples, "mirror", None)

    def will_need(self, indices: Iterable[int]) -> None:
        """Fetch these samples ahead, where they come from a URL."""
        self.samples.will_need(int(self.indices[index]) for index in indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenFiles(_FetchesAhead, EncodedSamples):
    """Some samples of a split that is stored as image files.

    Args:
        samples: the whole split.
        indices: of the chosen ones, in order.
    """

    samples: EncodedSamples
    indices: np.ndarray

    def encoded(self, index: int) -> bytes:
        """The bytes of the image's file."""
        return self.samples.encoded(int(self.indices[index]))

    def name_of(self, index: int) -> str:
        """The file of a sample."""
        return self.samples.name_of(int(self.indices[index]))


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenSamples(_FetchesAhead):
    """Some samples of a split that is not stored as image files. They lack the attributes that the split lacks.

    Args:
        samples: the whole split.
        indices: of the chosen ones, in order.
    """

    samples: Any
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[int(self.indices[index])]

    @property
    def where(self) -> Callable[[np.ndarray], Any]:
        """See `SamplesInMemory.where`."""
        where = self.samples.where
        return lambda indices: where(self.indices[indices])

    def name_of(self, index: int) -> str:
        """The file of a sample; without one, its number in the whole split."""
        return getattr(self.samples, "name_of", "sample {}".format)(int(self.indices[index]))

    @property
    def labels(self) -> np.ndarray:
        """One integer a sample."""
        return self.samples.labels[self.indices]

    @property
    def threads_pay(self) -> bool:
        """Whether several threads are to read."""
        return self.samples.threads_pay

    @property
    def own(self) -> Any:
        """The user's own object."""
        return self.samples.own

    @property
    def require_readable(self) -> Callable[[int], None]:
        """A quick check that refuses a broken file."""
        check = self.samples.require_readable
        return lambda index: check(int(self.indices[index]))
