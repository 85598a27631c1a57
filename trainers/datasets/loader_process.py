"""A loader worker that is a process of its own: for samples whose loading holds Python's lock.

Sample ids go in over a socket; images come back in memory that both processes share and no file names.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from recipes.errors import listed
from trainers.augmentations.pipeline import Pixels
from trainers.datasets.augmented import AugmentedSamples, Split, StackedSamples
from trainers.runs.errors import RankFailed
from trainers.runs.mpi_ranks import KERNEL_THREADS, THREADS, killed_with_parent, without_launcher

log = logging.getLogger("kilobatch")
COMMAND = "load-samples"
_ALIGNED = 64  # bytes; where an image begins in the shared memory
_END_SECONDS = 2.0  # that a process may take to end once its socket is closed
_MOST_NAMED = 16


class LoaderProcess:
    """Loads samples in another process, which is started anew once if it dies.

    It is a fresh Python, not a fork of this one: a fork after MPI, OpenCV or CUDA have begun may hang. The kernel kills
    it when the thread that started it, or this process, ends for any reason.

    Args:
        request: plain data by which it opens the same recipe; of `trainers.launch.load_samples`.
        name: of the worker, for messages.
    """

    def __init__(self, request: dict[str, Any], *, name: str) -> None:
        self._request, self._name = request, name
        self._deaths = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._mapped: mmap.mmap | bytes = b""

    def load(
        self, load: AugmentedSamples, samples: Sequence[tuple[int, int]], image_size: int | None
    ) -> Sequence[tuple[Any, int]]:
        """What `load` gives for each sample; single images lie in the shared memory, until the next call.

        Raises:
            Exception: what was raised there.
            RankFailed: the process died for the second time.
        """
        asked = {"split": load.split, "pixels": load.pixels, "samples": samples, "image_size": image_size}
        while True:
            try:
                if self._process is None:
                    self._start()
                self._socket.send(asked)
                answer = self._socket.recv()
            except (EOFError, ConnectionError):
                self._died(samples)
                continue
            if isinstance(answer, BaseException):
                raise answer
            fields, is_stacked, skipped = answer
            if skipped:
                load.samples.skipped.update(skipped)
            loaded = [self._sample(*each) for each in fields]
            return StackedSamples(*_copied(*loaded[0])) if is_stacked else loaded

    def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()
        os.close(self._memory)
        self._process = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._memory = os.memfd_create("kilobatch loader")
        self._mapped = b""  # nothing is there yet
        environment = without_launcher() | dict.fromkeys((*THREADS, KERNEL_THREADS), "1")
        command = [sys.executable, "-P", "-m", "kilobatch", COMMAND, str(theirs.fileno()), str(self._memory)]
        with theirs:
            self._process = subprocess.Popen(
                killed_with_parent(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._memory),
            )
        self._socket = Connection(ours.detach())
        self._socket.send(self._request)

    def _died(self, samples: Sequence[tuple[int, int]]) -> None:
        """Say so, or raise at the second death."""
        process = self._process
        assert process is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        code = process.returncode
        self.close()
        named = listed((str(index) for _, index in samples), most=_MOST_NAMED)
        how = f"{self._name}, process {process.pid}, {_end_text(code)}; it had samples {named}"
        self._deaths += 1
        if self._deaths > 1:
            raise RankFailed(
                f"{how}. It was started again before, and died once more: one of these samples may end it, or memory "
                "ran out (take fewer --loader-workers); --loader-workers 0 loads within the rank"
            )
        log.warning("%s; it is started again", how)

    def _sample(self, start: int, dtype: str, shape: tuple[int, ...], mirrored: Any, label: Any) -> tuple[Any, Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if start + size > len(self._mapped):
            self._mapped = mmap.mmap(self._memory, 0, prot=mmap.PROT_READ)
        image = np.frombuffer(self._mapped, dtype=np.uint8, count=size, offset=start).view(dtype).reshape(shape)
        return image if mirrored is None else Pixels(image, mirrored), label


def serve(
    socket_number: int,
    memory_number: int,
    open_samples: Callable[[dict[str, Any]], Callable[[Split, bool], AugmentedSamples]],
) -> None:
    """Load samples for a `LoaderProcess` until it closes the socket.

    Args:
        socket_number, memory_number: file descriptors.
        open_samples: the request -> (split, pixels) -> its samples.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):  # meant for the rank, which goes on
        signal.signal(number, signal.SIG_IGN)
    connection, memory = Connection(socket_number), _Memory(memory_number)
    with suppress(EOFError, ConnectionError):
        request, samples_of, problem = connection.recv(), None, None
        try:
            samples_of = open_samples(request)
        except BaseException as error:
            problem = _portable(error)
        while True:
            asked = connection.recv()
            try:
                if problem is not None:
                    raise problem
                load = samples_of(asked["split"], asked["pixels"])
                fields = memory.put(load.several(asked["samples"], asked["image_size"], lambda: None))
                answer = *fields, getattr(load.samples, "skipped", None)
            except BaseException as error:
                answer = _portable(error)
            connection.send(answer)


class _Memory:
    """The shared memory, from the side that writes; it grows to the most that was put into it at once."""

    def __init__(self, number: int) -> None:
        self._number, self._mapped = number, None

    def put(self, loaded: Sequence[tuple[Any, int]]) -> tuple[list[tuple[Any, ...]], bool]:
        """Write images; where each begins, its type and shape, whether it is to be mirrored, and its label.

        Returns:
            these, and whether they are one array of all samples, with arrays in place of single values.
        """
        is_stacked = isinstance(loaded, StackedSamples)
        fields, start = [], 0
        arrays = []
        for image, label in [(loaded.images, loaded.labels)] if is_stacked else loaded:
            pixels, mirrored = (image, None) if isinstance(image, np.ndarray) else image
            fields.append((start, pixels.dtype.str, pixels.shape, mirrored, label if is_stacked else int(label)))
            arrays.append(pixels)
            start = -(-(start + pixels.nbytes) // _ALIGNED) * _ALIGNED
        if self._mapped is None or start > len(self._mapped):
            os.ftruncate(self._number, start)
            self._mapped = mmap.mmap(self._number, start)
        for (begin, *_), pixels in zip(fields, arrays, strict=True):
            whole = np.frombuffer(self._mapped, np.uint8, count=pixels.nbytes, offset=begin)
            np.copyto(whole.view(pixels.dtype).reshape(pixels.shape), pixels)
        return fields, is_stacked


def _copied(images: Any, labels: np.ndarray) -> tuple[Any, np.ndarray]:
    """Out of the shared memory."""
    return (
        images.copy() if isinstance(images, np.ndarray) else Pixels(images.pixels_HWC.copy(), images.mirrored)
    ), labels


def _portable(error: BaseException) -> BaseException:
    """The same error, as it can be sent to another process, with the traceback from here."""
    text = "".join(traceback.format_exception(error))
    try:
        sent = pickle.loads(pickle.dumps(error))
        assert str(sent) == str(error)
    except Exception:  # a class of the user's own that cannot be made from its `args`
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(f"raised in a loader worker:\n{text}")
    return sent


def _end_text(code: int | None) -> str:
    if code is None:
        return "hung up"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
