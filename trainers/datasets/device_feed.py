"""Input micro-batches copied to a GPU: as bytes, through pinned memory, on a separate stream, one in advance."""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainers.kernels.cuda.images import finished

_ALIGNED = 16  # bytes; alignment of an array in a block


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A micro-batch whose copy to the GPU is in flight."""

    micro_batch: Any
    block: _Block
    arrays: list[Any]
    channels_first: bool


@dataclass(frozen=True, kw_only=True)
class _Prefetched:
    """The next update's first micro-batch, or the exception raised while it was loaded."""

    key: Any
    sent: _Sent | None = None
    error: Exception | None = None


class DeviceFeed:
    """Copies micro-batches to a GPU while it computes.

        host -> pinned block -> block on the GPU -> images: (x - shift) / scale, mirrored, channels last, of `dtype`

    The pixels that the pipeline has before its `finish` are copied, uint8 in most recipes; one kernel does the rest,
    with the same bits as the CPU. Mixed images (mixup, cutmix) are finished on the host and copied as float32.

    There are two blocks. The copy to the GPU runs on a separate stream, concurrently with computation but after the
    kernel that last read the block there; the host overwrites a pinned block once the copy from it has ended. The next
    update's first micro-batch is loaded and sent while this update is computed. Nothing else is loaded early: within an
    update the host runs ahead of the GPU anyway.

    Args:
        gpu: this worker's `trainers.communicators.gpu.Gpu`, or an object with its methods.
        load: (epoch, index, image_size=None) -> `Pixels`, label.
        finish: of the same pipeline.
        dtype: of images as forward gets them.
    """

    def __init__(self, gpu: Any, *, load: Callable[..., tuple[Any, int]], finish: Any, dtype: Any) -> None:
        self.load, self.finish = load, finish
        self._dtype = dtype
        self._blocks = _Block(gpu), _Block(gpu)
        self._free = deque(self._blocks)
        self._prefetched: _Prefetched | None = None

    def take(self, key: Any, load: Callable[[], Any]) -> Any:
        """A `LoadedMicroBatch` with its arrays on the GPU: the one prefetched under this key, else one loaded now.

        Raises:
            Exception: what was raised while it was prefetched.
        """
        prefetched = self._prefetched
        if prefetched is None or prefetched.key != key:  # another key: an update is done again
            return self._finished(self._send(load()))
        self._prefetched = None
        if prefetched.error is not None:
            raise prefetched.error
        return self._finished(prefetched.sent)

    def prefetch(self, key: Any, load: Callable[[], Any]) -> None:
        """Load and send the micro-batch of this key; `take` returns it, or raises what went wrong here."""
        if self._prefetched is None:
            try:
                self._prefetched = _Prefetched(key=key, sent=self._send(load()))
            except Exception as error:
                self._prefetched = _Prefetched(key=key, error=error)

    def drop(self) -> None:
        """Drop what was prefetched, and free all memory."""
        self._prefetched = None
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
        in_flight = replace(micro_batch, images_NCHW=None, targets=None)
        return _Sent(micro_batch=in_flight, block=self._free.popleft(), arrays=arrays, channels_first=whole)

    def _finished(self, sent: _Sent) -> Any:
        targets, *arrays, pixels = sent.arrays
        sent.block.follow()
        images = finished(pixels, *arrays, channels_first=sent.channels_first, dtype=self._dtype)
        targets = targets.copy()
        sent.block.leave()
        self._free.append(sent.block)
        return replace(sent.micro_batch, images_NCHW=images, targets=targets)


class _Block:
    """A pinned host buffer and a GPU buffer of the same size, for one micro-batch at a time."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._host, self._on_gpu = np.empty(0, np.uint8), None
        self._copied = self._read = None  # events: end of the copy, on its stream; last reader, on the compute stream

    def send(self, arrays: Sequence[Any]) -> list[Any]:
        """Start the copy of arrays, and of tuples of arrays, which are stacked; read the result only after `follow`."""
        layouts, num_bytes = _layouts(arrays)
        if self._copied is not None:
            self._copied.synchronize()
        if num_bytes > len(self._host):
            self._reserve(num_bytes)
        for array, layout in zip(arrays, layouts, strict=True):
            part = layout.of(self._host)
            np.stack(array, out=part) if isinstance(array, tuple) else np.copyto(part, array)
        self._copied = self._gpu.send(self._host[:num_bytes], self._on_gpu[:num_bytes], behind=self._read)
        return [layout.of(self._on_gpu) for layout in layouts]

    def follow(self) -> None:
        """Make kernels launched from now on wait for the copy."""
        self._gpu.follow(self._copied)

    def leave(self) -> None:
        """All kernels that read the GPU buffer have been launched: the next copy waits for them."""
        self._read = self._gpu.mark()

    def release(self) -> None:
        """Free all memory."""
        if len(self._host):
            if self._copied is not None:
                self._copied.synchronize()
            self._gpu.unpin(self._host)
            self._host, self._on_gpu = np.empty(0, np.uint8), None

    def _reserve(self, num_bytes: int) -> None:
        self.release()
        num_bytes = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        room = np.empty(num_bytes + mmap.PAGESIZE, np.uint8)
        host, there = room[-room.ctypes.data % mmap.PAGESIZE :][:num_bytes], self._gpu.zeros(num_bytes, np.uint8)
        self._gpu.pin(host)  # whole pages: a page cannot be pinned twice
        self._host, self._on_gpu = host, there
        self.leave()  # kernels of the GPU memory's previous owner may still read it


@dataclass(frozen=True)
class _Layout:
    """Where an array lies within a block, its type and shape."""

    start: int
    stop: int
    dtype: Any
    shape: tuple[int, ...]

    def of(self, block: Any) -> Any:
        return block[self.start : self.stop].view(self.dtype).reshape(self.shape)


def _layouts(arrays: Sequence[Any]) -> tuple[list[_Layout], int]:
    """The layout of each array within a block, and the bytes of all."""
    layouts, start = [], 0
    for array in arrays:
        dtype, shape = np.result_type(*{row.dtype for row in array}), (len(array), *array[0].shape)
        stop = start + dtype.itemsize * math.prod(shape)
        layouts.append(_Layout(start, stop, dtype, shape))
        start = -(-stop // _ALIGNED) * _ALIGNED
    return layouts, start
