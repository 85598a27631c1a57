"""`kilobatch data bench`: how many images a second this machine reads, decodes and augments, and what bounds it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from recipes.errors import InputRefused
from recipes.reports.wording import counted, number
from recipes.schema import Dataset, Recipe
from trainers.augmentations import HorizontalFlip, RandomResizedCrop, decoders
from trainers.augmentations.pipeline import Pipeline
from trainers.datasets.augmented import SMALL, AugmentedSamples
from trainers.datasets.bad_images import can_skip, open_samples
from trainers.datasets.samples import UnreadableImage, evenly
from trainers.runs.cores import usable_cores
from trainers.runs.errors import RankFailed

ROUNDS = 5
_IMAGES = 256  # of a round, at most
_HELD_BYTES = 500_000_000  # of decoded images at once
_BATCH = 32
_WHOLE = "whole batches"


def measure_input(
    dataset: Dataset, recipe: Recipe | None, *, target: float, rounds: int = ROUNDS, num_images: int = _IMAGES
) -> dict[str, Any]:
    """Images a second by stage, on one thread and on one for each core; medians of rounds that take the stages in turn.

    A round takes other images than the one before and reads them once before it: stages find files in the system's
    cache. `first_read` is the rate of that, from the disk unless the files were cached already.

    Args:
        dataset: whose data are there.
        recipe: whose training augmentation is applied, at its largest image size; None: a random crop of 224, a flip.
        target: images a second whose cores are computed.
        rounds: at least 1.
        num_images: of a round, at most.
    Returns:
        stages (name -> images_per_second on "one_core" and "all_cores"), cores, bound, first_read, target,
        cores_for_target, decoder, rounds, images.
    Raises:
        InputRefused: the recipe's augmentation does not fit the data, or an image cannot be used.
    """
    try:
        return _measured(dataset, recipe, target=target, rounds=rounds, num_images=num_images)
    except RankFailed as error:  # an image that cannot be read, or is too small for a crop
        raise InputRefused(f"{error}; `kilobatch data verify` names all that cannot be read") from error


def _measured(
    dataset: Dataset, recipe: Recipe | None, *, target: float, rounds: int, num_images: int
) -> dict[str, Any]:
    samples = dataset.reader.open(dataset.root, "train")
    cores = usable_cores()
    held = max(cores, int(_HELD_BYTES / _largest_bytes(open_samples(dataset, "train"), dataset.channels)))
    chosen = evenly(len(samples), rounds * min(num_images, held))
    first_reads, seconds = [], {}
    with _threads(cores) as on_all:
        for turn in range(rounds):
            stages = _Stages(dataset, samples, recipe, chosen[turn::rounds] or chosen)
            first_reads.append(stages.count / _seconds(stages.calls["read"], stages.count, on_all))
            stages.prepare()
            calls = [
                (name, on, where)
                for name in stages.calls
                for on, where in (("one_core", _alone), ("all_cores", on_all))
            ]
            for name, on, where in calls[turn % len(calls) :] + calls[: turn % len(calls)]:
                taken = _seconds(stages.calls[name], stages.count, where) / stages.count
                seconds.setdefault(name, {}).setdefault(on, []).append(taken)
    medians = {name: {on: statistics.median(taken) for on, taken in each.items()} for name, each in seconds.items()}
    parts = {name: each["one_core"] for name, each in medians.items() if name != _WHOLE}
    a_core = 1 / (medians[_WHOLE]["all_cores"] * cores)  # images a second of one of several cores at work
    return {
        "dataset": dataset.name,
        "recipe": None if recipe is None else recipe.name,
        "decoder": decoders.in_use(),
        "cores": cores,
        "rounds": rounds,
        "images": len(chosen),
        "stages": {name: {on: 1 / taken for on, taken in each.items()} for name, each in medians.items()},
        "first_read": statistics.median(first_reads),
        "bound": max(parts, key=parts.__getitem__),
        "target": target,
        "cores_for_target": target / a_core,
    }


# (call, places of images) -> None: divides the places over some threads
Threads = Callable[[Callable[[range], None], range], None]


class _Stages:
    """The stages for some samples: each a call that takes a range of places among them."""

    def __init__(self, dataset: Dataset, samples: Any, recipe: Recipe | None, indices: Sequence[int]) -> None:
        parts = (RandomResizedCrop(size=224), HorizontalFlip())
        self._size = None
        if recipe is not None:
            parts = recipe.augmentation.train
            self._size = recipe.image_size and max(recipe.image_size.sizes)
        self._pipeline = pipeline_of(parts, dataset)
        self._dataset, self._samples, self._indices = dataset, samples, indices
        self._augmented = AugmentedSamples(samples, self._pipeline, "train")
        self._is_encoded = hasattr(samples, "encoded")
        self.count = len(indices)
        self.calls: dict[str, Callable[[range], None]] = {"read": partial(_each, self._read)}
        self.calls |= {"decode": partial(_each, self._decode)} if self._is_encoded else {}
        self.calls |= {"augment": partial(_each, self._augment)}
        self.calls |= {"finish": partial(_in_batches, self._finish), _WHOLE: partial(_in_batches, self._load)}

    def prepare(self) -> None:
        """Hold what the stages after reading begin with; in place of an image that is skipped, the next one."""
        places = range(self.count)
        if self._is_encoded:
            self._indices, self._files, self._decoded = zip(*map(self._readable, places), strict=True)
        else:
            self._files = self._decoded = [*map(self._read, places)]
        self._pixels = [*map(self._augment, places)]

    def _readable(self, place: int) -> tuple[int, bytes, np.ndarray]:
        """The first sample from that of a place on that can be decoded, as in a run; its file and its pixels."""
        start = self._indices[place]
        for index in (*range(start, len(self._samples)), *range(start)):
            try:
                with self._samples.naming(index):
                    file = self._samples.encoded(index)
                    return index, file, decoders.decode(file, self._samples.channels)
            except UnreadableImage as error:
                if self._dataset.on_bad_image == "refuse" or not can_skip(error):
                    raise
                last = error
        raise last

    def _read(self, place: int) -> Any:
        index = self._indices[place]
        return self._samples.encoded(index) if self._is_encoded else self._samples[index][0]

    def _decode(self, place: int) -> np.ndarray:
        with self._samples.naming(self._indices[place]):
            return decoders.decode(self._files[place], self._samples.channels)

    def _augment(self, place: int) -> Any:
        index = self._indices[place]
        return self._pipeline.pixels(self._decoded[place], epoch=0, index=index, image_size=self._size)

    def _finish(self, places: range) -> Iterable[np.ndarray]:
        pixels, finish = [self._pixels[place] for place in places], self._pipeline.finish
        if all(each.pixels_HWC.size <= SMALL for each in pixels):
            return finish.images(pixels)
        return [finish.image(*each) for each in pixels]

    def _load(self, places: range) -> Iterable[np.ndarray]:
        """All of it, as a run does."""
        wanted = [(0, self._indices[place]) for place in places]
        return [image for image, _ in self._augmented.several(wanted, self._size, lambda: None)]


def pipeline_of(parts: Sequence[Any], dataset: Dataset, *, seed: int = 0) -> Pipeline:
    """The augmentations of a recipe for a data set.

    Raises:
        InputRefused: they normalise by the numbers of another data set.
    """
    try:
        return Pipeline(parts=parts, dataset=dataset, seed=seed)
    except ValueError as error:
        way_out = "name the recipe's data set, and the folder of its files by --data"
        raise InputRefused(f"the recipe's augmentation does not fit {dataset.name}: {error}; {way_out}") from error


def _each(call: Callable[[int], Any], places: range) -> None:
    for place in places:
        call(place)


def _in_batches(load: Callable[[range], Iterable[np.ndarray]], places: range) -> None:
    for first in range(0, len(places), _BATCH):
        np.stack(list(load(places[first : first + _BATCH])))


def _alone(call: Callable[[range], None], places: range) -> None:
    call(places)


@contextmanager
def _threads(cores: int) -> Iterator[Threads]:
    """Threads, one a core, that share the images."""
    with ThreadPoolExecutor(cores) as pool:

        def on_all(call: Callable[[range], None], places: range) -> None:
            for done in [pool.submit(call, places[first::cores]) for first in range(cores)]:
                done.result()

        yield on_all


def _seconds(call: Callable[[range], None], count: int, where: Threads) -> float:
    start = time.perf_counter()
    where(call, range(count))
    return time.perf_counter() - start


def _largest_bytes(samples: Any, channels: int) -> int:
    """Bytes of the largest of some decoded images."""
    some = evenly(len(samples), 16)
    if hasattr(samples, "size_of"):
        return max(math.prod(samples.size_of(index)) * channels for index in some)
    return max(samples[index][0].nbytes for index in some)


def rates_text(rates: dict[str, Any]) -> str:
    """The rates for a terminal."""
    by = f"recipe {rates['recipe']}" if rates["recipe"] else "a random crop of 224 and a flip"
    cores = counted(rates["cores"], "core")
    wide = max(map(len, rates["stages"]))
    lines = [
        f"{rates['dataset']}, {by}, decoder {rates['decoder']}: images/s, medians of {rates['rounds']} rounds",
        f"{'':{wide}}  {'one core':>10}  {cores:>10}",
    ]
    for name, each in rates["stages"].items():
        lines.append(f"{name:{wide}}  {number(round(each['one_core'])):>10}  {number(round(each['all_cores'])):>10}")
    needed = rates["cores_for_target"]
    lines.append(f"first read of the files: {number(round(rates['first_read']))} images/s, from the disk if not cached")
    lines.append(f"{rates['bound']} takes longest; {number(rates['target'])} images/s need {needed:.1f} such cores")
    return "\n".join(lines)
