"""Workers that load the samples of a rank ahead of time, on threads or in processes, in a known order."""

from __future__ import annotations

import functools
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from trainers.augmentations.pipeline import Pixels
from trainers.datasets.augmented import StackedSamples
from trainers.datasets.samples import innermost
from trainers.runs.errors import UnfitImage
from trainers.runs.identity import is_of_the_user

# All images of a micro-batch, an array (or `Pixels` of arrays), int32 labels -> what becomes of them
Finish = Callable[[Any, np.ndarray], Any]

AHEAD_BYTES = 256 << 20  # of images that a rank has loaded ahead; then it adds no micro-batch
_TIMED = 8  # samples that each thread loads for the choice between threads and processes
_SHORT_SECONDS = 0.0005  # a sample that takes less needs no workers
_WORTH = 1.3  # times as fast as one thread two must be, else processes load
_ENOUGH = 4  # chunks ahead for each worker, at least, so that none is idle


class LoadImages(Protocol):
    """What loads samples; `trainers.datasets.augmented.AugmentedSamples`."""

    def __call__(self, epoch: int, index: int, image_size: int | None = None) -> tuple[Any, int]:
        """One image, or its pixels, and its label."""

    def several(
        self, wanted: Sequence[tuple[int, int]], image_size: int | None, moved: Callable[[], None]
    ) -> Sequence[tuple[Any, int]]:
        """Those of each (epoch, index); `moved` is called after some."""

    def chunk(self, image_size: int | None) -> int:
        """Samples that a worker takes at a time."""


class LoadsSamples(Protocol):
    """Loads samples elsewhere, such as in a process; one thread uses it."""

    def load(self, load: LoadImages, samples: Sequence[tuple[int, int]], image_size: int | None) -> list[Any]:
        """What `load` gives for each sample; arrays may be overwritten by the next call."""

    def close(self) -> None:
        """Free it."""


class Loading:
    """The samples of a micro-batch that are being loaded, each put in its place.

    Args:
        load: gives a sample.
        samples: epoch and index of each, at least one.
        image_size: of this update.
        key: of the recipe, that the images are made by, for messages.
        finish: called once all are there, by the worker that loaded the last one.
        room: (shape, type) -> memory for the pixels of all samples.
    """

    def __init__(
        self,
        load: LoadImages,
        samples: Sequence[tuple[int, int]],
        *,
        image_size: int | None = None,
        key: str,
        finish: Finish,
        room: Callable[..., np.ndarray] = np.empty,
    ) -> None:
        self.load, self.samples, self.image_size = load, samples, image_size
        self.dropped = False
        self._key, self._finish, self._room = key, finish, room
        self._images: np.ndarray | None = None
        self._mirrored: np.ndarray | None = None  # of `Pixels`
        self._of_other_type: dict[int, np.ndarray] = {}
        self._labels = np.empty(len(samples), dtype=np.int32)
        self._shapes: list[tuple[int, ...] | None] = [None] * len(samples)
        self._errors: dict[int, BaseException] = {}
        self._missing, self._lock, self._done = len(samples), threading.Lock(), threading.Event()
        self._result: Any = None
        self._bytes = 0

    @functools.cached_property
    def chunk(self) -> int:
        """Samples that a worker takes at a time."""
        return self.load.chunk(self.image_size)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Start and stop of the samples that a worker takes at a time."""
        starts = range(0, len(self.samples), self.chunk)
        return ((start, min(start + self.chunk, len(self.samples))) for start in starts)

    def run(self, start: int, stop: int, load_samples: Callable[..., Sequence[Any]]) -> None:
        """Load some of the samples; what goes wrong is raised by `result`."""
        try:
            self._put(start, load_samples(self.load, self.samples[start:stop], self.image_size))
        except BaseException as error:  # also of an exit: the thread goes on
            self._errors[start] = error
        with self._lock:
            self._missing -= stop - start
            last = not self._missing
        if last:
            try:
                if not self._errors:
                    self._result = self._finish(self._whole(), self._labels)
            except BaseException as error:
                self._errors[len(self.samples)] = error
            self._images = None
            self._done.set()

    def result(self) -> Any:
        """What `finish` made of all samples.

        Raises:
            Exception: of the first sample that failed; it is that of `load` or `finish`.
            UnfitImage: the images have different sizes.
        """
        self._done.wait()
        if self._errors:
            raise self._first_error()
        return self._result

    def _first_error(self) -> BaseException:
        """The error of the first sample; forgets all, since their frames keep images alive."""
        errors, self._errors = self._errors, {}
        return errors[min(errors)]

    @property
    def sample_bytes(self) -> int:
        """Bytes of one image; 0 until the first is there."""
        return self._bytes

    def _put(self, start: int, loaded: Sequence[Any]) -> None:
        if isinstance(loaded, StackedSamples):
            self._put_stacked(slice(start, start + len(loaded)), loaded)
            return
        for number, (image, label) in enumerate(loaded, start):
            self._labels[number] = label
            pixels = image if isinstance(image, np.ndarray) else image.pixels_HWC
            if self._images is None:
                self._reserve(pixels, mirrored=pixels is not image)
            if self._mirrored is not None:
                self._mirrored[number] = image.mirrored
            self._shapes[number] = pixels.shape
            if pixels.dtype != self._images.dtype:
                self._of_other_type[number] = pixels.copy()
            elif pixels.shape == self._images.shape[1:]:
                self._images[number] = pixels

    def _put_stacked(self, some: slice, loaded: StackedSamples) -> None:
        self._labels[some] = loaded.labels
        images, mirrored = loaded.images if isinstance(loaded.images, Pixels) else (loaded.images, None)
        self._shapes[some] = [images.shape[1:]] * len(images)
        if len(images) == len(self.samples) and self._room is np.empty:
            self._images, self._bytes = images, images[0].nbytes
            self._mirrored = None if mirrored is None else mirrored.astype(np.uint8)
            return
        if self._images is None:
            self._reserve(images[0], mirrored=mirrored is not None)
        self._images[some] = images
        if mirrored is not None:
            self._mirrored[some] = mirrored

    def _reserve(self, pixels: np.ndarray, *, mirrored: bool) -> None:
        with self._lock:
            if self._images is None:
                self._bytes, many = pixels.nbytes, len(self.samples)
                self._mirrored = np.zeros(many, np.uint8) if mirrored else None
                self._images = self._room((many, *pixels.shape), pixels.dtype)

    def _whole(self) -> np.ndarray | Pixels:
        """The images of all samples."""
        if len(shapes := list(dict.fromkeys(self._shapes))) > 1:
            crop = "" if self._key == "augmentation.eval" else "RandomResizedCrop, or "
            axes = "channels, height and width" if self._mirrored is None else "height, width and channels"
            raise UnfitImage(
                f"images of {shapes[0]} and {shapes[1]}, {axes}, cannot be computed together; "
                f"bring all to one size in {self._key}: {crop}Resize and CenterCrop"
            )
        images = self._images
        if self._of_other_type:  # a reader may give bytes and floats
            images = images.astype(np.float32)
            for number, pixels in self._of_other_type.items():
                images[number] = pixels
        return images if self._mirrored is None else Pixels(images, self._mirrored)


class LoaderWorkers:
    """Workers of one rank, which load in the order in which they are asked.

    What they load depends neither on their number nor on their kind: a sample's random numbers are keyed.

    Args:
        num_workers: 0 loads on the thread that asks, when it wants the result.
        place: makes a place for each worker where it loads, called on its thread; None: that thread itself.
        moved: called after each image on a thread, and after a few of another place.
    """

    def __init__(
        self,
        num_workers: int = 0,
        *,
        place: Callable[[int], LoadsSamples] | None = None,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_workers = num_workers
        self._moved = moved
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threads = [
            threading.Thread(
                target=_work, args=(self._tasks, number, place, moved), name=f"loader {number}", daemon=True
            )
            for number in range(num_workers)
        ]
        for thread in threads:
            thread.start()
        self._close = weakref.finalize(self, _end, self._tasks, threads)  # also when the program ends

    def begin(self, loading: Loading) -> None:
        """Have it loaded, after all that was begun before."""
        if self.num_workers:
            for start, stop in loading.chunks():
                self._tasks.put((loading, start, stop))

    def result(self, loading: Loading) -> Any:
        """See `Loading.result`."""
        if not self.num_workers:
            loading.run(0, len(loading.samples), lambda load, *what: load.several(*what, self._moved))
        return loading.result()

    def close(self) -> None:
        """End all workers; what they have begun is given up."""
        self._close()

    def __enter__(self) -> LoaderWorkers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def choose_workers(
    loads: Sequence[Any], *, kind: str | None, number: int | None, threads: int, on_gpu: bool, image_size: int | None
) -> tuple[str, int]:
    """What loads the samples of a rank: threads or processes, and how many of them; 0: the rank's own thread.

    Left out, there are as many as the rank has threads, where that pays: loading releases Python's lock (`threads_pay`
    of the samples), or code of the user's own takes long. Processes run such code, which may use its memory again or
    hold what belongs to one thread; threads do where all of it says `threads_pay` and two load 1.3 times as fast.

    Args:
        loads: `AugmentedSamples` of both splits.
        kind, number: what the user asks for.
        threads: of the rank.
        on_gpu: so that a core is free while the rank computes.
        image_size: of training.
    """
    pays = all(getattr(load.samples, "threads_pay", False) for load in loads)
    samples = (innermost(load.samples) for load in loads)
    parts = [getattr(each, "own", each) for each in samples] + [part for load in loads for part in load.pipeline.parts]
    own = list(filter(is_of_the_user, parts))
    worth = kind or ((threads > 1 or on_gpu) and (pays or own))
    number = threads if number is None and worth else number or 0
    if number == 0 or kind is not None or not own:
        return kind or "threads", number
    alone = _seconds(loads[0], image_size, at_once=1)
    if alone < _SHORT_SECONDS:
        return "threads", 0
    if not all(getattr(part, "threads_pay", False) for part in own):
        return "processes", number
    return "threads" if alone / _seconds(loads[0], image_size, at_once=2) > _WORTH else "processes", number


def _seconds(load: LoadImages, image_size: int | None, *, at_once: int) -> float:
    """Seconds a sample, of a few that are loaded by so many threads at once."""
    size = {} if image_size is None else {"image_size": image_size}

    def some(start: int) -> None:
        for index in range(start, start + _TIMED):
            load(0, index % len(load.samples), **size)

    some(0)
    others = [threading.Thread(target=some, args=(number * _TIMED,)) for number in range(1, at_once)]
    began = time.perf_counter()
    for thread in others:
        thread.start()
    some(0)
    for thread in others:
        thread.join()
    return (time.perf_counter() - began) / (at_once * _TIMED)


def _work(
    tasks: queue.SimpleQueue[Any],
    number: int,
    place: Callable[[int], LoadsSamples] | None,
    moved: Callable[[], None],
) -> None:
    """What the thread of a worker does until it is given None."""
    elsewhere = None if place is None else place(number)

    def load_samples(load: LoadImages, samples: Sequence[tuple[int, int]], image_size: int | None) -> Sequence[Any]:
        if elsewhere is None:
            return load.several(samples, image_size, moved)
        loaded = elsewhere.load(load, samples, image_size)
        moved()
        return loaded

    def do(loading: Loading, start: int, stop: int) -> None:  # of its own, so that an idle worker holds no images
        if not loading.dropped:
            loading.run(start, stop, load_samples)

    try:
        while (task := tasks.get()) is not None:
            do(*task)
            del task
    finally:
        if elsewhere is not None:
            elsewhere.close()


def _end(tasks: queue.SimpleQueue[Any], threads: Sequence[threading.Thread]) -> None:
    with suppress(queue.Empty):  # the workers take from it too, so its length says nothing
        while True:
            tasks.get_nowait()
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        thread.join()


class LoadedAhead:
    """Micro-batches that are loaded before they are asked for, since their order is known.

    Args:
        workers: which load them; with none nothing is loaded ahead.
        loading_of: key -> its samples.
        keys_after: key -> the keys that will be asked for after it, in order.
    """

    def __init__(
        self,
        workers: LoaderWorkers,
        loading_of: Callable[[Any], Loading],
        keys_after: Callable[[Any], Iterator[Hashable]],
    ) -> None:
        self._workers, self._loading_of, self._keys_after = workers, loading_of, keys_after
        self._ahead: deque[tuple[Hashable, Loading]] = deque()
        self._following: Iterator[Hashable] = iter(())
        self._sample_bytes = 0  # of the last images; 0 before there were any

    def take(self, key: Hashable) -> Any:
        """The result of a key, which is loaded now if it was not expected.

        Raises:
            Exception: see `Loading.result`.
        """
        while self._ahead and self._ahead[0][0] != key:  # an update is done again, or something was left out
            self._ahead.popleft()[1].dropped = True
        if not self._ahead:
            self._following = self._keys_after(key)
            self._begin(key)
        loading = self._ahead.popleft()[1]
        while self._has_room(loading):
            following = next(self._following, None)
            if following is None:
                break
            self._begin(following)
        result = self._workers.result(loading)
        self._sample_bytes = loading.sample_bytes
        return result

    def drop(self) -> None:
        """Give up, and free, all that was loaded ahead."""
        for _, loading in self._ahead:
            loading.dropped = True
        self._ahead.clear()

    def _begin(self, key: Hashable) -> None:
        loading = self._loading_of(key)
        self._workers.begin(loading)
        self._ahead.append((key, loading))

    def _has_room(self, current: Loading) -> bool:
        """Whether to load another one ahead; always one, also if it is large or its size is not known yet."""
        if not self._workers.num_workers or not self._ahead:
            return self._workers.num_workers > 0
        samples = sum(len(loading.samples) for _, loading in self._ahead)
        enough = max(2 * len(current.samples), _ENOUGH * current.chunk * self._workers.num_workers)
        return samples < enough and 0 < samples * self._sample_bytes < AHEAD_BYTES
