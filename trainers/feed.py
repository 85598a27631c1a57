"""Micro-batches on their way to a GPU: as bytes, through pinned memory, on a stream of their own, one ahead."""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainers.kernels import cuda_images

_ALIGNED = 16  # bytes; what an array begins at


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A micro-batch whose arrays are being copied."""

    micro_batch: Any
    block: _Block
    arrays: list[Any]
    channels_first: bool


@dataclass(frozen=True, kw_only=True)
class _Ahead:
    """What the next update begins with, or what went wrong with it."""

    key: Any
    sent: _Sent | None = None
    error: Exception | None = None


class Feed:
    """Brings micro-batches to a GPU beside what it computes.

        host -> pinned block -> block on the GPU -> images: (x - shift) / scale, mirrored, channels last, of `dtype`

    What crosses are the pixels that the pipeline has before its `finish`, uint8 from most recipes, and one kernel does
    the rest, to the bits of the CPU. Mixed images have been finished to be mixed: float32 crosses.

    There are two blocks. The copy into one runs on a stream of its own, behind the kernel that read the block last and
    beside whatever is computed; the host writes to a block when the copy out of it has ended. The first micro-batch of
    the next update is loaded and sent while this one is computed. Nothing else is loaded early: within an update the
    host is ahead of the GPU as it is.

    Args:
        gpu: of this worker, or whatever has the methods of `trainers.communicators.gpu.Gpu`.
        load: (epoch, index, image_size=None) -> `Pixels`, label.
        finish: of the same pipeline.
        dtype: of images as forward gets them.
    """

    def __init__(self, gpu: Any, *, load: Callable[..., tuple[Any, int]], finish: Any, dtype: Any) -> None:
        self.load, self.finish = load, finish
        self._dtype = dtype
        self._blocks = _Block(gpu), _Block(gpu)
        self._free = deque(self._blocks)
        self._ahead: _Ahead | None = None

    def take(self, key: Any, load: Callable[[], Any]) -> Any:
        """A `LoadedMicroBatch` with its arrays on the GPU: the one sent ahead by this key, else one loaded now.

        Raises:
            Exception: whatever went wrong when it was sent ahead.
        """
        ahead = self._ahead
        if ahead is None or ahead.key != key:  # another one: an update that is done again
            return self._finished(self._send(load()))
        self._ahead = None
        if ahead.error is not None:
            raise ahead.error
        return self._finished(ahead.sent)

    def look_ahead(self, key: Any, load: Callable[[], Any]) -> None:
        """Load and send what `take` will be asked for by this key; what goes wrong is raised there."""
        if self._ahead is None:
            try:
                self._ahead = _Ahead(key=key, sent=self._send(load()))
            except Exception as error:
                self._ahead = _Ahead(key=key, error=error)

    def drop(self) -> None:
        """Forget what was sent ahead, and give all memory back."""
        self._ahead = None
        for block in self._blocks:
            block.release()
        self._free = deque(self._blocks)

    def _send(self, micro_batch: Any) -> _Sent:
        images = micro_batch.images_NCHW
        whole = isinstance(images, np.ndarray)
        if whole:
            rows, mirrored, channels = images, [False] * len(images), images.shape[1]
            shift, scale = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        else:
            rows, mirrored = zip(*images, strict=True)
            shift, scale = self.finish.shift_and_scale(rows[0].shape[2])
        arrays = self._free[0].send([micro_batch.targets, np.array(mirrored, np.uint8), shift, scale, rows])
        on_its_way = replace(micro_batch, images_NCHW=None, targets=None)
        return _Sent(micro_batch=on_its_way, block=self._free.popleft(), arrays=arrays, channels_first=whole)

    def _finished(self, sent: _Sent) -> Any:
        targets, *arrays, pixels = sent.arrays
        sent.block.follow()
        images = cuda_images.finished(pixels, *arrays, channels_first=sent.channels_first, dtype=self._dtype)
        targets = targets.copy()
        sent.block.leave()
        self._free.append(sent.block)
        return replace(sent.micro_batch, images_NCHW=images, targets=targets)


class _Block:
    """Pinned memory of the host, and as much of the GPU, for one micro-batch at a time."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._host, self._there = np.empty(0, np.uint8), None
        self._copied = self._read = None  # marks: of the own stream, and of the one that computes

    def send(self, arrays: Sequence[Any]) -> list[Any]:
        """Begin to copy arrays, and tuples of arrays, which are stacked; on the GPU they can be read after `follow`."""
        places, num_bytes = _places(arrays)
        if self._copied is not None:
            self._copied.synchronize()
        if num_bytes > len(self._host):
            self._reserve(num_bytes)
        for array, place in zip(arrays, places, strict=True):
            part = place.of(self._host)
            np.stack(array, out=part) if isinstance(array, tuple) else np.copyto(part, array)
        self._copied = self._gpu.send(self._host[:num_bytes], self._there[:num_bytes], behind=self._read)
        return [place.of(self._there) for place in places]

    def follow(self) -> None:
        """What is asked of the GPU from now on finds what was sent."""
        self._gpu.follow(self._copied)

    def leave(self) -> None:
        """What was asked of the GPU so far is all that reads what was sent."""
        self._read = self._gpu.mark()

    def release(self) -> None:
        """Give all memory back."""
        if len(self._host):
            if self._copied is not None:
                self._copied.synchronize()
            self._gpu.unpin(self._host)
            self._host, self._there = np.empty(0, np.uint8), None

    def _reserve(self, num_bytes: int) -> None:
        self.release()
        num_bytes = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        room = np.empty(num_bytes + mmap.PAGESIZE, np.uint8)
        host, there = room[-room.ctypes.data % mmap.PAGESIZE :][:num_bytes], self._gpu.zeros(num_bytes, np.uint8)
        self._gpu.pin(host)  # whole pages: what else is pinned has others
        self._host, self._there = host, there
        self.leave()  # memory of the GPU may still be read by whoever had it before


@dataclass(frozen=True)
class _Place:
    """Where an array lies within a block."""

    start: int
    stop: int
    dtype: Any
    shape: tuple[int, ...]

    def of(self, block: Any) -> Any:
        return block[self.start : self.stop].view(self.dtype).reshape(self.shape)


def _places(arrays: Sequence[Any]) -> tuple[list[_Place], int]:
    """One for each, and the bytes of all."""
    places, start = [], 0
    for array in arrays:
        dtype, shape = np.result_type(*{row.dtype for row in array}), (len(array), *array[0].shape)
        stop = start + dtype.itemsize * math.prod(shape)
        places.append(_Place(start, stop, dtype, shape))
        start = -(-stop // _ALIGNED) * _ALIGNED
    return places, start
