"""This worker's samples of every update, in the order of the stream: loaded, augmented, mixed, in micro-batches."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import chainer
import numpy as np

from recipes.planning.division import Division, MicroBatch
from recipes.planning.planner import Plan
from recipes.planning.stream import Stream
from recipes.planning.timeline import Segment
from trainers.augmentations.mixing import GroupMixing
from trainers.datasets.bad_images import SkippingSamples
from trainers.datasets.device_feed import DeviceFeed
from trainers.datasets.loader_workers import LoadedAhead, LoaderWorkers, LoadImages, Loading

_FETCHED_AHEAD = 512  # samples whose files are fetched before they are loaded


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
        images_NCHW: of CHAINER_DTYPE, float32 by default; `Pixels` of arrays until a feed has made images of them.
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
        load: (epoch, index, image_size=None) -> one augmented sample, float32 CHW, and its label.
        workers: load ahead, across updates; None loads on the thread that asks.
        mixing: mixes samples, where the recipe does.
        trace: note index and digest of every sample.
        feed: sends the micro-batches to the GPU; None on a CPU.
        late: the end of augmentation, and `load` for updates that start there or later, which are not mixed.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        rank: int,
        stream: Stream,
        load: LoadImages,
        workers: LoaderWorkers | None = None,
        mixing: GroupMixing | None = None,
        trace: bool = False,
        feed: DeviceFeed | None = None,
        late: tuple[float, LoadImages] | None = None,
    ) -> None:
        self.plan = plan
        self._rank = rank
        self._stream = stream
        self._load, self._late = load, late
        if feed is not None and mixing is None:  # of mixed images, pixels are finished before they are sent
            self._load = feed.load
            self._late = late and (late[0], replace(late[1], pixels=True))
        self._ahead = LoadedAhead(workers or LoaderWorkers(), self._loading, self._parts_after)
        self._dtype = chainer.get_dtype()  # of this thread
        self._fetching: deque[tuple[int, MicroBatch]] = deque()  # micro-batches whose files are being fetched
        self._to_fetch: Iterator[tuple[int, MicroBatch]] = iter(())
        self._mixing = mixing
        self._trace = trace
        self._feed = feed
        self.update = 0
        self.previous_epoch_detail: float | None = None

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
        self._ahead.drop()
        if self._feed is not None:
            self._feed.drop()

    def _micro_batches(self, update: int, seen: list[TracedSample]) -> Iterator[LoadedMicroBatch]:
        for part in self.plan.division_of(update).micro_batches(self._rank):
            key = update, part
            load = partial(self._ahead.take, key)
            micro_batch = load() if self._feed is None else self._feed.take(key, load)
            seen.extend(micro_batch.seen)
            yield micro_batch

    def _prefetch(self) -> None:
        update = self.update
        if update < self.plan.timeline.num_updates:
            for part in self.plan.division_of(update).micro_batches(self._rank)[:1]:
                self._feed.prefetch((update, part), partial(self._ahead.take, (update, part)))

    def _parts_after(self, key: tuple[int, MicroBatch]) -> Iterator[tuple[int, MicroBatch]]:
        """This worker's micro-batches after one, each with its update, to the end of the run."""
        update, part = key
        parts = self.plan.division_of(update).micro_batches(self._rank)
        parts = parts[parts.index(part) + 1 :]
        while True:
            yield from ((update, part) for part in parts)
            update += 1
            if update == self.plan.timeline.num_updates:
                return
            parts = self.plan.division_of(update).micro_batches(self._rank)

    def _loading(self, key: tuple[int, MicroBatch]) -> Loading:
        update, part = key
        timeline, division = self.plan.timeline, self.plan.division_of(update)
        samples, norm_span = timeline.samples_at(update), division.norm_span
        start = samples + part.offset
        positions: Sequence[int] = range(start, start + part.size)
        load_image, mixing = self._load, self._mixing
        if self._late is not None and timeline.epoch_at(update) >= self._late[0]:
            load_image, mixing = self._late[1], None
        if mixing is not None:
            positions = mixing.needed(part, samples=samples, norm_span=norm_span)
        needed = list(zip(*(numbers.tolist() for numbers in self._stream.at(positions)), strict=True))
        self._fetch_ahead(key)
        epochs, indices = self._stream.samples(start, part.size)

        def finish(images: Any, labels: np.ndarray) -> LoadedMicroBatch:
            targets = labels
            if mixing is not None:
                take = _Rows(images, labels)
                images, targets = mixing.load(part, samples=samples, norm_span=norm_span, load=take)
            seen = tuple(self._seen(part, indices, images)) if self._trace else ()
            if isinstance(images, np.ndarray) and self._feed is None:
                images = images.astype(self._dtype, copy=False)
            return LoadedMicroBatch(
                part=part, images_NCHW=images, targets=targets, epochs=epochs, indices=indices, seen=seen
            )

        size = timeline.segment_of(update).image_size
        room = {} if self._feed is None or mixing is not None else {"room": self._feed.room}
        return Loading(load_image, needed, image_size=size, key="augmentation.train", finish=finish, **room)

    def _fetch_ahead(self, key: tuple[int, MicroBatch]) -> None:
        """Have files fetched of samples that follow a micro-batch, where they come from a URL."""
        samples = getattr(self._load, "samples", None)
        samples = samples.samples if isinstance(samples, SkippingSamples) else samples
        if getattr(samples, "mirror", None) is None:
            return
        if key not in self._fetching:  # the first, or an update is done again
            self._fetching, self._to_fetch = deque([key]), self._parts_after(key)
        while self._fetching[0] != key:
            self._fetching.popleft()
        while sum(part.size for _, part in islice(self._fetching, 1, None)) < _FETCHED_AHEAD:
            following = next(self._to_fetch, None)
            if following is None:
                return
            update, part = following
            start = self.plan.timeline.samples_at(update) + part.offset
            samples.will_need(self._stream.samples(start, part.size)[1].tolist())
            self._fetching.append(following)

    def _seen(self, part: MicroBatch, indices: np.ndarray, images: Any) -> Iterator[TracedSample]:
        finished = images if isinstance(images, np.ndarray) else map(self._feed.finish.image, *images)
        for number, (index, image) in enumerate(zip(indices, finished, strict=True)):
            digest = hashlib.sha256(np.ascontiguousarray(image)).digest()
            yield TracedSample(position=part.offset + number, index=int(index), digest=digest)


class _Rows:
    """Gives the rows of arrays from first to last, as many as it is asked for."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self._arrays, self._given = arrays, 0

    def __call__(self, wanted: Sequence[int]) -> tuple[np.ndarray, ...]:
        start, self._given = self._given, self._given + len(wanted)
        return tuple(array[start : self._given] for array in self._arrays)
