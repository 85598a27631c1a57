"""This worker's samples of every update, in the order of the stream: loaded, augmented, mixed, in micro-batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import Any

import chainer
import numpy as np

from recipes.planning.division import Division, MicroBatch
from recipes.planning.planner import Plan
from recipes.planning.stream import Stream
from recipes.planning.timeline import Segment
from trainers.augmentations.mixing import GroupMixing
from trainers.datasets.device_feed import DeviceFeed
from trainers.kernels.threads import shared
from trainers.runs.errors import UnfitImage

# (epoch, index, image_size=None) -> float32 CHW image as the model gets it, label
LoadImage = Callable[..., tuple[np.ndarray, int]]


@dataclass(frozen=True, kw_only=True)
class TracedSample:
    """A sample in the trace: position in the update, index in the data set, SHA-256 of the image."""

    position: int
    index: int
    digest: bytes


@dataclass(frozen=True, kw_only=True)
class LoadedMicroBatch:
    """Samples of one forward, loaded.

    Args:
        part: its place in the update.
        images_NCHW: of CHAINER_DTYPE, float32 by default; a tuple of `Pixels` until a feed has made images of them.
        targets: int32 (samples,), labels; where the recipe mixes, float32 (samples, classes), mixtures of labels.
        epochs, indices: int64 (samples,): which augmentation of which sample, see `Stream.at`.
        seen: one for each sample, with a trace.
    """

    part: MicroBatch
    images_NCHW: Any
    targets: Any
    epochs: np.ndarray
    indices: np.ndarray
    seen: tuple[TracedSample, ...]

    @property
    def by_group(self) -> list[LoadedMicroBatch]:
        """The same samples in micro-batches of one norm group each, without a trace, which the update has already."""
        arrays = ("images_NCHW", "targets", "epochs", "indices")
        starts = [(part, part.offset - self.part.offset) for part in self.part.by_group]
        return [
            replace(self, part=part, seen=(), **{name: getattr(self, name)[s : s + part.size] for name in arrays})
            for part, s in starts
        ]


@dataclass(frozen=True, kw_only=True)
class UpdateShare:
    """One worker's share of one update; the micro-batches are loaded one by one.

    Args:
        update: its number.
        segment: the segment it belongs to.
        division: of the update.
        samples: position in the stream where the update starts.
        micro_batches: an iterator, to be used once.
        seen: filled while the micro-batches are loaded, with a trace.
        prefetch: sends the next update's first micro-batch to the GPU; to be called once all of this update has been
            launched. None on a CPU.
    """

    update: int
    segment: Segment
    division: Division
    samples: int
    micro_batches: Iterator[LoadedMicroBatch]
    seen: list[TracedSample] = field(default_factory=list)
    prefetch: Callable[[], None] | None = None


class StreamIterator(chainer.dataset.Iterator):
    """Cuts the stream of samples into updates and gives this worker its share of each.

    Its whole state is the number of the next update, so a resumed run, also on another number of workers, sees the same
    samples as an uninterrupted one.

    Args:
        plan: the timeline and its division; may be replaced by one with other micro-batches.
        rank: this worker.
        stream: order of the samples.
        load: gives one augmented sample.
        threads_load: whether several threads should call `load` at once.
        mixing: mixes samples, where the recipe does.
        trace: note index and digest of every sample.
        feed: sends the micro-batches to the GPU; None on a CPU.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        rank: int,
        stream: Stream,
        load: LoadImage,
        threads_load: bool = False,
        mixing: GroupMixing | None = None,
        trace: bool = False,
        feed: DeviceFeed | None = None,
    ) -> None:
        self.plan = plan
        self._rank = rank
        self._stream = stream
        self._load = load if feed is None or mixing is not None else feed.load
        self._threads_load = threads_load
        self._mixing = mixing
        self._trace = trace
        self._feed = feed
        self.update = 0
        self.previous_epoch_detail: float | None = None

    @property
    def batch_size(self) -> int:
        """Samples of the next update over all workers."""
        return self.plan.timeline.segment_of(self.update).global_batch_size

    @property
    def epoch_detail(self) -> float:
        """Epochs consumed, as a float."""
        return self.plan.timeline.epoch_at(self.update)

    @property
    def epoch(self) -> int:
        """Whole epochs consumed."""
        return int(self.epoch_detail)

    @property
    def is_new_epoch(self) -> bool:
        """Whether the last update reached another epoch."""
        return self.previous_epoch_detail is not None and int(self.previous_epoch_detail) < self.epoch

    def __next__(self) -> UpdateShare:
        if self.update >= self.plan.timeline.num_updates:
            raise StopIteration
        self.previous_epoch_detail = self.epoch_detail
        self.update += 1
        return self.again()

    def again(self) -> UpdateShare:
        """The share that `next` returned last, for doing that update again; its samples are loaded anew."""
        timeline, update = self.plan.timeline, self.update - 1
        seen: list[TracedSample] = []
        return UpdateShare(
            update=update,
            segment=timeline.segment_of(update),
            division=self.plan.division_of(update),
            samples=timeline.samples_at(update),
            micro_batches=self._micro_batches(update, seen),
            seen=seen,
            prefetch=None if self._feed is None else self._prefetch,
        )

    def limit(self, micro_batch_size: int) -> None:
        """From now on give micro-batches of at most `micro_batch_size` samples; frees the memory for larger ones."""
        self.plan = self.plan.limited(micro_batch_size)
        self.finalize()

    def finalize(self) -> None:
        """Free memory."""
        if self._feed is not None:
            self._feed.drop()

    def _micro_batches(self, update: int, seen: list[TracedSample]) -> Iterator[LoadedMicroBatch]:
        for part in self.plan.division_of(update).micro_batches(self._rank):
            load = partial(self._loaded, update, part)
            micro_batch = load() if self._feed is None else self._feed.take((update, part), load)
            seen.extend(micro_batch.seen)
            yield micro_batch

    def _prefetch(self) -> None:
        update = self.update
        if update < self.plan.timeline.num_updates:
            for part in self.plan.division_of(update).micro_batches(self._rank)[:1]:
                self._feed.prefetch((update, part), partial(self._loaded, update, part))

    def _loaded(self, update: int, part: MicroBatch) -> LoadedMicroBatch:
        timeline = self.plan.timeline
        samples = timeline.samples_at(update)
        start = samples + part.offset
        epochs, indices = self._stream.samples(start, part.size)
        load = partial(self._load_positions, image_size=timeline.segment_of(update).image_size)
        if self._mixing is None:
            images, targets = load(range(start, start + part.size))
        else:
            norm_span = self.plan.division_of(update).norm_span
            images, targets = self._mixing.load(part, samples=samples, norm_span=norm_span, load=load)
        seen = tuple(self._seen(part, indices, images)) if self._trace else ()
        if self._feed is None:
            images = images.astype(chainer.get_dtype(), copy=False)
        return LoadedMicroBatch(
            part=part, images_NCHW=images, targets=targets, epochs=epochs, indices=indices, seen=seen
        )

    def _seen(self, part: MicroBatch, indices: np.ndarray, images: Any) -> Iterator[TracedSample]:
        finished = images if isinstance(images, np.ndarray) else starmap(self._feed.finish.image, images)
        for number, (index, image) in enumerate(zip(indices, finished, strict=True)):
            digest = hashlib.sha256(np.ascontiguousarray(image)).digest()
            yield TracedSample(position=part.offset + number, index=int(index), digest=digest)

    def _load_positions(self, positions: Sequence[int], *, image_size: int | None) -> tuple[Any, np.ndarray]:
        """Images as the pipeline gives them, stacked unless they are `Pixels`, and labels int32 (samples,)."""
        samples = list(zip(*(numbers.tolist() for numbers in self._stream.at(positions)), strict=True))
        loaded = load_all(partial(self._load, image_size=image_size), samples, threads=self._threads_load)
        images, labels = zip(*loaded, strict=True)
        whole = stacked(images, "augmentation.train") if isinstance(images[0], np.ndarray) else images
        return whole, np.array(labels, dtype=np.int32)

    def serialize(self, serializer: chainer.Serializer) -> None:
        """Read or write the number of the next update."""
        self.update = int(serializer("update", self.update))


def load_all(load: Callable[[int, int], Any], samples: Sequence[tuple[int, int]], *, threads: bool) -> list[Any]:
    """The result of `load` for each sample, in order.

    Decoding and resizing release the GIL, so threads load in parallel. The random numbers of a sample do not depend on
    the thread that loads it.

    Args:
        load: (epoch, index) -> sample.
        samples: epoch and index of each.
        threads: whether to use several threads, see `trainers.training.build.Parts`.
    Raises:
        Exception: what `load` raises for one of them.
    """
    loaded: list[Any] = [None] * len(samples)

    def load_range(start: int, stop: int) -> None:
        for number in range(start, stop):
            loaded[number] = load(*samples[number])

    shared(load_range, len(samples), worth=threads)
    return loaded


def stacked(images_CHW: Sequence[np.ndarray], key: str) -> np.ndarray:
    """Images as one array, NCHW.

    Args:
        images_CHW: as a pipeline gives them.
        key: of the recipe, that the pipeline is made of.
    Raises:
        UnfitImage: they have different sizes.
    """
    try:
        return np.stack(images_CHW)
    except ValueError:
        one, other = list(dict.fromkeys(image.shape for image in images_CHW))[:2]
        raise UnfitImage(
            f"images of {one} and {other}, channels, height and width, cannot be computed together; bring all to one "
            f"size in {key}: RandomResizedCrop, or Resize and CenterCrop"
        ) from None
