"""Updates on the axis of samples: where each starts, how large it is, where the run ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lr_schedules import BatchRamp
from recipes.schema.positions import first_sample_at, next_multiple

if TYPE_CHECKING:
    from recipes.schema import Dataset, Recipe


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive updates of one global batch size, norm span and image size.

    Args:
        update: number of its first update, from 0.
        num_updates: updates in it, at least 1.
        samples: position in the stream where its first update starts.
        global_batch_size: samples an update.
        norm_span: samples whose batch-normalisation statistics are shared.
        image_size: side of training images in pixels; None where the recipe does not say it.
    """

    update: int
    num_updates: int
    samples: int
    global_batch_size: int
    norm_span: int
    image_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All updates of a run.

    Args:
        num_train: samples of the training set.
        segments: in order, without gaps.
    """

    num_train: int
    segments: tuple[Segment, ...]

    @property
    def num_updates(self) -> int:
        return self.segments[-1].update + self.segments[-1].num_updates

    @property
    def num_samples(self) -> int:
        """Samples consumed by the whole run: the last update is whole."""
        return self.samples_at(self.num_updates)

    def segment_of(self, update: int) -> Segment:
        """The segment of an update; the last one for the end of the run."""
        return self.segments[bisect_right(self.segments, update, key=lambda s: s.update) - 1]

    def samples_at(self, update: int) -> int:
        """Samples consumed before an update, from 0 to `num_updates`."""
        segment = self.segment_of(update)
        return segment.samples + (update - segment.update) * segment.global_batch_size

    def epoch_at(self, update: int) -> float:
        """The time of an update: samples consumed before it over samples of the training set."""
        return self.samples_at(update) / self.num_train

    def first_update_at(self, epoch: float) -> int:
        """The first update that starts at or after `epoch`; `num_updates` where none does."""
        sample = first_sample_at(epoch, self.num_train)
        segment = self.segments[max(0, bisect_right(self.segments, sample, key=lambda s: s.samples) - 1)]
        steps = max(0, -(-(sample - segment.samples) // segment.global_batch_size))
        return segment.update + min(steps, segment.num_updates)

    def update_of(self, sample: int) -> int:
        """The update that takes a sample of the stream, counted from 0; `num_updates` or more after the end."""
        segment = self.segments[bisect_right(self.segments, sample, key=lambda s: s.samples) - 1]
        return segment.update + (sample - segment.samples) // segment.global_batch_size

    def next_due(self, every: float | Literal["update"], *, after: int, offset: float = 0.0) -> int:
        """After how many updates a thing that is done every so often is due next: evaluations, checkpoints.

        It is due after the first update that reaches each multiple of `every`, and after the last update of the run.

        Args:
            every: epochs, above 0, or `update` for every update.
            after: updates done, from 0 to `num_updates` - 1.
            offset: epochs from which multiples count; at an offset above 0 it is due too, and never before.
        """
        done = self.epoch_at(after)
        if offset and done < offset:
            reached = self.first_update_at(offset)
        elif every == "update":
            reached = after + 1
        else:
            reached = self.first_update_at(next_multiple(done, every, offset))
        return min(max(reached, after + 1), self.num_updates)

    def all_due(self, every: float | Literal["update"], *, offset: float = 0.0) -> Iterator[int]:
        """Every number of updates after which it is due, see `next_due`."""
        update = 0
        while update < self.num_updates:
            update = self.next_due(every, after=update, offset=offset)
            yield update


def timeline_of(recipe: Recipe, dataset: Dataset) -> Timeline:
    """The updates of a recipe on its data set; see `timeline`."""
    return timeline(
        global_batch_size=recipe.batch.global_,
        norm_span=recipe.batch.norm_span,
        epochs=recipe.epochs,
        num_train=dataset.num_train,
        image_size=recipe.image_size,
    )


def timeline(
    *,
    global_batch_size: BatchRamp,
    norm_span: BatchRamp,
    epochs: float,
    num_train: int,
    image_size: BatchRamp | None = None,
) -> Timeline:
    """Cut a run into updates.

    A segment starts at the first update whose first sample lies at or after its boundary, so that the last update
    before a boundary is whole; the last update of the run is the first that reaches `epochs`.

    Args:
        global_batch_size: samples an update, by epoch.
        norm_span: samples of a norm group, by epoch; read where the global batch is read.
        epochs: length of the run, above 0.
        num_train: samples of the training set, at least 1.
        image_size: side of training images, by epoch; read likewise.

    >>> akiba = timeline(global_batch_size=BatchRamp(boundaries=(0.0,), sizes=(32768,)),
    ...                  norm_span=BatchRamp(boundaries=(0.0,), sizes=(32,)), epochs=90, num_train=1281167)
    >>> akiba.num_updates
    3519
    """
    ramps = [global_batch_size, norm_span, *([image_size] if image_size else [])]
    boundaries = sorted({0.0, *(boundary for ramp in ramps for boundary in ramp.boundaries)})
    end = first_sample_at(epochs, num_train)
    segments: list[Segment] = []
    update = samples = 0
    for boundary, next_boundary in zip(boundaries, [*boundaries[1:], epochs], strict=True):
        stop = min(first_sample_at(next_boundary, num_train), end)
        size = global_batch_size(boundary)
        num_updates = max(0, -(-(stop - samples) // size))
        if num_updates:
            segments.append(
                Segment(
                    update=update,
                    num_updates=num_updates,
                    samples=samples,
                    global_batch_size=size,
                    norm_span=norm_span(boundary),
                    image_size=image_size and image_size(boundary),
                )
            )
        update += num_updates
        samples += num_updates * size
    return Timeline(num_train=num_train, segments=tuple(segments))
