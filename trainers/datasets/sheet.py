"""`kilobatch data sheet`: the first samples of an epoch as the model gets them, augmented and mixed, in one picture."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from recipes.errors import InputRefused
from recipes.planning.division import MicroBatch
from recipes.planning.stream import Stream
from recipes.planning.timeline import Timeline, timeline_of
from recipes.reports.wording import number
from recipes.schema import Dataset, Recipe
from trainers.augmentations.mixing import GroupMixing
from trainers.augmentations.normalize import Normalize
from trainers.datasets.bad_images import open_samples
from trainers.datasets.input_rates import pipeline_of
from trainers.datasets.inspection import class_called

ROWS = COLUMNS = 8
_LEAST = 96  # pixels of an image's longer side on the sheet; smaller images are enlarged by whole numbers
_GAP, _TEXT = 6, 14  # pixels
_INK, _PAPER = (33, 37, 41), (255, 255, 255)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One image of the sheet.

    Args:
        image_HWC: uint8, normalisation undone.
        caption: its class, or the classes that are mixed in it.
    """

    image_HWC: np.ndarray
    caption: str

    @property
    def picture(self) -> Image.Image:
        """Of 3 channels in colour, else the first channel in grey."""
        return Image.fromarray(self.image_HWC if self.image_HWC.shape[2] == 3 else self.image_HWC[:, :, 0])


def training_samples(recipe: Recipe, dataset: Dataset, *, epoch: int, count: int = ROWS * COLUMNS) -> list[Shown]:
    """The first samples of an epoch of the stream, in order, each as the model would get it.

    Args:
        recipe: with its augmentation built.
        dataset: its data set, whose data are there.
        epoch: counted from 0.
        count: of the samples, at most; no more than an epoch has.
    Raises:
        InputRefused: the recipe has no such epoch, its augmentation does not fit the data, an image cannot be read, or
            images that are to be mixed come out in several sizes.
    """
    timeline, first = timeline_of(recipe, dataset), epoch * dataset.num_train
    if first >= timeline.num_samples:
        last = -(-timeline.num_samples // dataset.num_train) - 1
        raise InputRefused(f"--epoch {epoch}: the recipe ends before; epochs count from 0, and the last is {last}")
    end, samples = recipe.augmentation.end, open_samples(dataset, "train")
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train, repeats=recipe.stream.repeats)
    shown = []
    last = min(first + min(count, dataset.num_train), timeline.num_samples)
    for start, part, segment in _parts(timeline, first, last):
        parts, mixes = recipe.augmentation.train, recipe.augmentation.mix
        if end is not None and start / dataset.num_train >= end.at:
            parts, mixes = recipe.augmentation.late, ()
        loader = _Loader(recipe, dataset, samples, parts)
        load = partial(_loaded, loader, stream, segment.image_size, bool(mixes))
        if mixes:
            mixing = GroupMixing(mixes=mixes, seed=recipe.seed, num_classes=dataset.num_classes)
            images, targets = mixing.load(part, samples=start, norm_span=segment.norm_span, load=load)
        else:
            images, targets = load(range(start + part.offset, start + part.offset + part.size))
        shown += [loader.shown(image_CHW, target) for image_CHW, target in zip(images, targets, strict=True)]
    return shown


def evaluated_samples(recipe: Recipe, dataset: Dataset, indices: Sequence[int] = range(ROWS * COLUMNS)) -> list[Shown]:
    """Samples of the evaluation set, by default the first ones, each as the model would get it.

    Args, Raises: see `training_samples`.
    """
    loader = _Loader(recipe, dataset, open_samples(dataset, "eval"), recipe.augmentation.eval)
    return [loader.shown(*loader(0, index, None)) for index in indices if index < dataset.num_eval]


def _parts(timeline: Timeline, first: int, last: int) -> Iterator[tuple[int, MicroBatch, Any]]:
    """Positions of the stream by update: where the update starts, its samples among them, and its segment."""
    while first < last:
        segment = timeline.segments[bisect_right(timeline.segments, first, key=lambda each: each.samples) - 1]
        offset = (first - segment.samples) % segment.global_batch_size
        size = min(last - first, segment.global_batch_size - offset)
        yield first - offset, MicroBatch(offset=offset, size=size, num_groups=1, first_group=0), segment
        first += size


def _loaded(
    loader: _Loader, stream: Stream, image_size: int | None, stacked: bool, positions: Sequence[int]
) -> tuple[Any, Any]:
    """Images and labels at positions of the stream; `stacked`: in two arrays, as mixes need them."""
    keys = zip(*map(np.ndarray.tolist, stream.at(positions)), strict=True)
    images, labels = zip(*(loader(*key, image_size) for key in keys), strict=True)
    if not stacked:
        return images, labels
    if len(shapes := dict.fromkeys("x".join(map(str, image.shape)) for image in images)) > 1:
        what = f"images of one update come out as {', '.join(list(shapes)[:2])}, which cannot be mixed"
        raise InputRefused(f"{what}; bring all to one size: Resize and CenterCrop, or RandomResizedCrop")
    return np.stack(images), np.stack(labels)


class _Loader:
    """Loads samples of a split as a run does, and undoes the normalisation for the eye."""

    def __init__(self, recipe: Recipe, dataset: Dataset, samples: Any, parts: Sequence[Any]) -> None:
        self._samples = samples
        self._pipeline = pipeline_of(parts, dataset, seed=recipe.seed)
        self._names = dataset.class_names()
        self._shift, self._scale = np.zeros(dataset.channels), np.full(dataset.channels, 255.0)
        for normalize in (part for part in self._pipeline.parts if isinstance(part, Normalize)):
            self._shift, self._scale = normalize.shift_and_scale(dataset.channels)

    def __call__(self, epoch: int, index: int, image_size: int | None) -> tuple[np.ndarray, int]:
        try:
            image_HWC, label = self._samples[index]
            return self._pipeline(image_HWC, epoch=epoch, index=index, image_size=image_size), label
        except ValueError as error:
            raise InputRefused(f"sample {index} cannot be shown: {error}") from error

    def shown(self, image_CHW: np.ndarray, target: Any) -> Shown:
        """The image in 0..255, and its class or, where several are mixed, their shares."""
        image_HWC = image_CHW.transpose(1, 2, 0) * self._scale + self._shift
        shares = (
            {int(target): 1.0} if np.ndim(target) == 0 else {int(k): float(target[k]) for k in np.flatnonzero(target)}
        )
        largest = sorted(shares.items(), key=lambda pair: -pair[1])[:2]
        names = [class_called(self._names, label) for label, _ in largest]
        words = [f"{name} {share:.2f}" for name, (_, share) in zip(names, largest, strict=True)]
        caption = names[0] if len(words) == 1 else ", ".join(words)
        return Shown(image_HWC=image_HWC.round().clip(0, 255).astype(np.uint8), caption=caption)


def sheet(shown: Sequence[Shown], *, title: str) -> Image.Image:
    """Images in rows of eight, each with its caption below.

    Args:
        shown: at least one.
        title: above all.
    """
    longest = max(max(each.image_HWC.shape[:2]) for each in shown)
    enlarged = max(1, -(-_LEAST // longest))
    side, font = longest * enlarged, ImageFont.load_default(_TEXT)
    cell_width, cell_height = side + _GAP, side + _TEXT + 2 * _GAP
    rows, top = -(-len(shown) // COLUMNS), _TEXT + 3 * _GAP
    paper = Image.new("RGB", (COLUMNS * cell_width + _GAP, top + rows * cell_height), _PAPER)
    draw = ImageDraw.Draw(paper)
    draw.text((_GAP, _GAP), title, fill=_INK, font=font)
    for place, each in enumerate(shown):
        row, column = divmod(place, COLUMNS)
        left, above = _GAP + column * cell_width, top + row * cell_height
        height, width, _ = each.image_HWC.shape
        paper.paste(each.picture.resize((width * enlarged, height * enlarged), Image.Resampling.NEAREST), (left, above))
        draw.text((left, above + side + 1), _fitting(each.caption, font, side), fill=_INK, font=font)
    return paper


def _fitting(text: str, font: Any, width: int) -> str:
    """The text, shortened to a width in pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def save_sheet(image: Image.Image, path: Path) -> list[Path]:
    """Write it in the format of the suffix; returns the files written.

    Raises:
        ValueError: Pillow writes no such format.
        OSError: the file cannot be written.
    """
    image.save(path)
    return [path]


def title_of(recipe: Recipe, *, epoch: int | None, count: int) -> str:
    """What the sheet shows, in a line."""
    where = "evaluation" if epoch is None else f"epoch {number(epoch)}"
    return f"{recipe.name}, {where}: the first {count} samples as the model gets them"
