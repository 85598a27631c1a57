"""The iterator behind the updater: this worker's part of every update, in the order of the stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import chainer
import numpy as np

from recipes.planning.division import Division, MicroBatch
from recipes.planning.planner import Plan
from recipes.planning.stream import Stream
from recipes.planning.timeline import Segment
from trainers.mixing import GroupMixing, LoadPositions

# (epoch, index, image_size=None) -> float32 CHW image as the model gets it, label
LoadImage = Callable[..., tuple[np.ndarray, int]]


@dataclass(frozen=True, kw_only=True)
class LoadedMicroBatch:
    """Samples of one forward, loaded.

    Args:
        part: its place in the update.
        images_NCHW: float32, or what CHAINER_DTYPE says.
        targets: int32 (samples,), labels; where the recipe mixes, float32 (samples, classes), mixtures of labels.
        epochs, indices: int64 (samples,): which augmentation of which sample, see `Stream.at`.
    """

    part: MicroBatch
    images_NCHW: np.ndarray
    targets: np.ndarray
    epochs: np.ndarray
    indices: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SeenSample:
    """A line of the trace in the making: position in the update, index in the data set, SHA-256 of the image."""

    position: int
    index: int
    digest: bytes


@dataclass(frozen=True, kw_only=True)
class UpdateShare:
    """One worker's share of one update; the micro-batches are loaded as they are asked for.

    Args:
        update: its number.
        segment: the segment it belongs to.
        division: of the update.
        samples: position in the stream where the update starts.
        micro_batches: an iterator, to be used once.
        seen: filled while the micro-batches are loaded, where a trace is wanted.
    """

    update: int
    segment: Segment
    division: Division
    samples: int
    micro_batches: Iterator[LoadedMicroBatch]
    seen: list[SeenSample] = field(default_factory=list)


class StreamIterator(chainer.dataset.Iterator):
    """Cuts the stream of samples into updates and gives this worker its share of each.

    Its whole state is the number of the next update, so a resumed run, or one on another number of workers, goes on
    with the very samples an uninterrupted one would see.

    Args:
        plan: the timeline and its division; may be replaced by one with other micro-batches.
        rank: this worker.
        stream: order of the samples.
        load: gives one augmented sample.
        mixing: mixes them, where the recipe does.
        trace: note index and digest of every sample.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        rank: int,
        stream: Stream,
        load: LoadImage,
        mixing: GroupMixing | None = None,
        trace: bool = False,
    ) -> None:
        self.plan = plan
        self._rank = rank
        self._stream = stream
        self._load = load
        self._mixing = mixing
        self._trace = trace
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
        """The share that `next` gave last once more, its samples loaded anew."""
        timeline, update = self.plan.timeline, self.update - 1
        seen: list[SeenSample] = []
        division = self.plan.division_of(update)
        parts = division.micro_batches(self._rank)
        samples = timeline.samples_at(update)
        segment = timeline.segment_of(update)
        load = partial(self._load_positions, image_size=segment.image_size)
        return UpdateShare(
            update=update,
            segment=segment,
            division=division,
            samples=samples,
            micro_batches=(self._loaded(part, samples, division.norm_span, seen, load) for part in parts),
            seen=seen,
        )

    def _loaded(
        self, part: MicroBatch, samples: int, norm_span: int, seen: list[SeenSample], load: LoadPositions
    ) -> LoadedMicroBatch:
        start = samples + part.offset
        epochs, indices = self._stream.samples(start, part.size)
        if self._mixing is None:
            images, targets = load(range(start, start + part.size))
        else:
            images, targets = self._mixing.load(part, samples=samples, norm_span=norm_span, load=load)
        if self._trace:
            for place, (index, image) in enumerate(zip(indices, images, strict=True)):
                digest = hashlib.sha256(np.ascontiguousarray(image)).digest()
                seen.append(SeenSample(position=part.offset + place, index=int(index), digest=digest))
        return LoadedMicroBatch(
            part=part,
            images_NCHW=images.astype(chainer.get_dtype(), copy=False),
            targets=targets,
            epochs=epochs,
            indices=indices,
        )

    def _load_positions(self, positions: Sequence[int], *, image_size: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Images as the pipeline gives them, and labels int32 (samples,)."""
        epochs, indices = self._stream.at(positions)
        loaded = [
            self._load(int(epoch), int(index), image_size=image_size)
            for epoch, index in zip(epochs, indices, strict=True)
        ]
        return np.stack([image for image, _ in loaded]), np.array([label for _, label in loaded], dtype=np.int32)

    def serialize(self, serializer: chainer.Serializer) -> None:
        """Read or write the number of the next update."""
        self.update = int(serializer("update", self.update))
