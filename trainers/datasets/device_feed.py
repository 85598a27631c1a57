"""Input micro-batches copied to a GPU: as bytes, through pinned memory, on a separate stream, one in advance."""

from __future__ import annotations

import logging
import math
import mmap
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from trainers.kernels.cuda.images import finished
from trainers.runs.errors import one_line

log = logging.getLogger("kilobatch")
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

        pinned host memory -> block on the GPU -> images: (x - shift) / scale, mirrored, channels last, of `dtype`

    The pixels that the pipeline has before its `finish` are copied, uint8 in most recipes; one kernel does the rest,
    with the same bits as the CPU. Mixed images (mixup, cutmix) are finished on the host and copied as float32.

    Workers write pixels into pinned memory from `room`, which the copy to the GPU reads. Without pinned memory, and for
    finished images, targets and other small arrays, the host first copies into the pinned half of a block.

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
        self._gpu, self._pins = gpu, True
        self._rooms: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()  # pinned, by address

    def room(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Memory for the pixels of a micro-batch: pinned, unless that failed before; called on any thread."""
        if self._pins:
            try:
                memory = self._gpu.pinned(math.prod(shape) * np.dtype(dtype).itemsize)
            except Exception as error:  # the system's limit of locked memory
                self._pins = False
                log.warning("pixels are not loaded into pinned memory, but copied there: %s", one_line(error))
            else:
                self._rooms[memory.ctypes.data] = memory
                return memory.view(dtype).reshape(shape)
        return np.empty(shape, dtype)

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
            pixels, mirrored, channels = images, np.zeros(len(images), np.uint8), images.shape[1]
            shift, scale = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        else:
            pixels, mirrored = images
            shift, scale = self.finish.shift_and_scale(pixels.shape[3])
        small, pinned = [micro_batch.targets, mirrored, shift, scale], pixels.ctypes.data in self._rooms
        arrays = self._free[0].send(small, pixels, pinned=pinned)
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
    """A pinned host buffer and a GPU buffer, for one micro-batch at a time."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._host, self._on_gpu = np.empty(0, np.uint8), ()
        self._sent: np.ndarray | None = None  # pinned pixels that the copy reads
        self._copied = self._read = None  # events: end of the copy, on its stream; last reader, on the compute stream

    def send(self, small: Sequence[np.ndarray], pixels: np.ndarray, *, pinned: bool) -> list[Any]:
        """Start the copy of arrays, of pinned pixels from where they are; read the result only after `follow`."""
        layouts, num_bytes = _layouts([*small, pixels])
        staged = layouts[-1].start if pinned else num_bytes
        if self._copied is not None:
            self._copied.synchronize()
        if staged > len(self._host) or num_bytes > len(self._on_gpu):
            self._reserve(staged, num_bytes)
        for array, layout in zip(small if pinned else [*small, pixels], layouts, strict=False):
            np.copyto(layout.of(self._host), array)
        self._copied = self._gpu.send(self._host[:staged], self._on_gpu[:staged], behind=self._read)
        self._sent = pixels if pinned else None
        if pinned:
            rest = pixels.reshape(-1).view(np.uint8)
            self._copied = self._gpu.send(rest, self._on_gpu[staged:num_bytes], behind=self._read)
        return [layout.of(self._on_gpu) for layout in layouts]

    def follow(self) -> None:
        """Make kernels launched from now on wait for the copy."""
        self._gpu.wait_event(self._copied)

    def leave(self) -> None:
        """All kernels that read the GPU buffer have been launched: the next copy waits for them."""
        self._read = self._gpu.record_event()

    def release(self) -> None:
        """Free all memory."""
        if len(self._host):
            if self._copied is not None:
                self._copied.synchronize()
            self._gpu.unpin(self._host)
            self._host, self._on_gpu, self._sent = np.empty(0, np.uint8), (), None

    def _reserve(self, staged: int, num_bytes: int) -> None:
        self.release()
        staged = -(-staged // mmap.PAGESIZE) * mmap.PAGESIZE
        room = np.empty(staged + mmap.PAGESIZE, np.uint8)
        host, there = room[-room.ctypes.data % mmap.PAGESIZE :][:staged], self._gpu.zeros(num_bytes, np.uint8)
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


def _layouts(arrays: Sequence[np.ndarray]) -> tuple[list[_Layout], int]:
    """The layout of each array within a block, and the bytes of all."""
    layouts, start = [], 0
    for array in arrays:
        stop = start + array.nbytes
        layouts.append(_Layout(start, stop, array.dtype, array.shape))
        start = -(-stop // _ALIGNED) * _ALIGNED
    return layouts, stop
