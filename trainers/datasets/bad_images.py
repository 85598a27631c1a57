"""What happens to an image that cannot be decoded during a run: the key `on_bad_image` of a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from recipes.schema import Dataset
from recipes.schema.dataset import StopAfter
from trainers.augmentations.decoders import UndecodableImage
from trainers.datasets.held_out import open_split
from trainers.datasets.samples import EncodedSamples, Sample, UnreadableImage
from trainers.runs.errors import RunFailed


def open_samples(dataset: Dataset, split: str) -> Any:
    """The samples of a split as a run reads them: by the data set's `on_bad_image`.

    Args:
        dataset: with its reader and root.
        split: "train" or "eval".
    """
    samples = open_split(dataset, split)
    if dataset.on_bad_image == "refuse" or not isinstance(samples, EncodedSamples):
        return samples
    return SkippingSamples(samples=samples, split=split)


def can_skip(error: BaseException) -> bool:
    """Whether an error is that of an image that cannot be decoded; a file that cannot be read may be there later."""
    return isinstance(error, UnreadableImage) and isinstance(error.__cause__, UndecodableImage)


@dataclass(frozen=True, kw_only=True)
class SkippedImage:
    """An image in whose place another one was taken.

    Args:
        split: train or eval.
        index: of the sample.
        message: its file, and why it cannot be decoded.
    """

    split: str
    index: int
    message: str


class TooManyBadImages(RunFailed):
    """More images were skipped than `on_bad_image: {stop_after: n}` accepts. All ranks raise it together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SkippingSamples:
    """Samples of which one that cannot be decoded gives the next one that can, with its label.

        sample i  =  sample j, the first readable one of i, i + 1, ..., modulo the number of samples

    So it is the same sample in every epoch and on every rank. Its augmentation keeps the draws of sample i. Images are
    decoded whole, for damage may lie outside a crop. Threads may share it.

    Args:
        samples: stored as image files.
        split: their split.
    Attributes:
        skipped: the images that were skipped so far, by their index.
    """

    threads_pay: ClassVar[bool] = True

    samples: EncodedSamples
    split: str
    skipped: dict[int, SkippedImage] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        """The image and label of the first readable sample from `index` on.

        Raises:
            UnreadableImage: a file cannot be read, or no image of the split can be decoded.
        """
        return self._first(index, self.samples.__getitem__, noting=True)

    def name_of(self, index: int) -> str:
        """The file of the sample that was taken for `index`."""
        places = (number % len(self) for number in range(index, index + len(self)))
        return self.samples.name_of(next((place for place in places if place not in self.skipped), index))

    def size_of(self, index: int) -> tuple[int, int]:
        """Height and width, of the first sample from `index` on whose header can be read."""
        return self._first(index, self.samples.size_of, noting=False)

    def _first(self, index: int, read: Callable[[int], Any], *, noting: bool) -> Any:
        last: UnreadableImage | None = None
        for number in range(index, index + len(self)):
            number %= len(self)
            if number in self.skipped:
                continue
            try:
                return read(number)
            except UnreadableImage as error:
                if not can_skip(error):
                    raise
                last = error
                if noting:
                    self.skipped[number] = SkippedImage(split=self.split, index=number, message=str(error))
        raise UnreadableImage(f"no image of {self.split} can be decoded") from last


def limit_of(dataset: Dataset) -> int | None:
    """How many different images a run may skip; None where there is no limit."""
    policy = dataset.on_bad_image
    return policy.stop_after if isinstance(policy, StopAfter) else None
