"""What a profile shows of a GPU: ranges on the timeline of Nsight Systems, and the time of kernels by class."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainers.runs.phase_clock import PhaseClock

KERNEL_CLASSES = {  # of kernels, by what their names hold: the first that fits
    "loss": ("cross_entropy", "mean_loss", "crossent", "softmax", "nll_loss"),
    "exchange": ("nccl",),
    "transfer": ("htod", "dtoh"),  # of the host's memory, beside kernels
    "normalisation": ("moments", "totals", "slopes", "normalized", "gradient_sums", "input_gradient")
    + ("batch_norm", "batchnorm", "bn_", "moved_averages"),
    "optimizer": ("momentum_", "adam_", "rmsprop_", "ratios", "multi_tensor"),
    "pooling": ("pool",),
    "convolution": ("conv", "wgrad", "dgrad", "fprop", "xmma", "gemm", "cutlass", "cudnn", "sm90", "sm80", "nhwc"),
    "relu and sum": ("relu", "add", "clamp", "threshold"),
    "copy": ("copy", "memcpy", "memset", "fill", "cast", "narrowed", "gathered", "finish"),
}


def milliseconds_by_class(kernels: Iterable[tuple[str, float, int]]) -> dict[str, tuple[float, int]]:
    """Milliseconds and number of launches of each class, the longest first, from (name, milliseconds, launches).

    >>> milliseconds_by_class([("sm90_xmma_fprop", 2.0, 3), ("moments", 3.0, 1), ("gradient_sums", 1.5, 1)])
    {'normalisation': (4.5, 2), 'convolution': (2.0, 3)}
    >>> milliseconds_by_class([("Memcpy HtoD (Pinned -> Device)", 1.0, 2), ("Memcpy DtoD (Device -> Device)", 0.5, 1)])
    {'transfer': (1.0, 2), 'copy': (0.5, 1)}
    """
    sums: dict[str, list[Any]] = defaultdict(lambda: [0.0, 0])
    for name, milliseconds, launches in kernels:
        small = name.lower()
        kind = next((kind for kind, words in KERNEL_CLASSES.items() if any(word in small for word in words)), "other")
        sums[kind][0] += milliseconds
        sums[kind][1] += launches
    return {kind: tuple(each) for kind, each in sorted(sums.items(), key=lambda item: -item[1][0])}


def nsys_command(folder: Path) -> str:
    """The command that shows kernels and ranges of the profiled updates, to be put before `kilobatch train`."""
    how = "--trace=cuda,nvtx,cudnn --capture-range=cudaProfilerApi --capture-range-end=stop"
    return f"nsys profile {how} -o {folder / 'nsys'}"


class GpuProfile:
    """Marks phases, micro-batches and buckets as NVTX ranges, and sums kernels by class with a PyTorch for GPUs.

    PyTorch's profiler sees the kernels of every library.

    Args:
        clock: whose phases become ranges.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self._clock, self._profiler = clock, None

    def begin(self) -> None:
        """The profiled updates begin: nsys records from here on."""
        from cupy.cuda import nvtx, profiler

        self._clock.ranges = nvtx
        profiler.start()
        try:
            import torch
            from torch.profiler import ProfilerActivity, profile
        except ImportError:
            return
        if not torch.cuda.is_available():  # PyTorch for CPUs: AssertionError "No activities specified"
            return
        with _without_warnings():
            self._profiler = profile(activities=[ProfilerActivity.CUDA])
            self._profiler.start()

    def end(self) -> dict[str, tuple[float, int]]:
        """They have ended; returns milliseconds and launches by class, nothing without such a PyTorch."""
        from cupy.cuda import Device, profiler

        Device().synchronize()
        self._clock.ranges = None
        profiler.stop()
        if self._profiler is None:
            return {}
        with _without_warnings():
            self._profiler.stop()
            events = self._profiler.key_averages()
        given = [(event.key, _microseconds(event) / 1e3, event.count) for event in events]
        return milliseconds_by_class(each for each in given if each[1] > 0)


def _microseconds(event: Any) -> float:
    """On the GPU, without what it called; older versions of PyTorch have another name for it."""
    renamed = hasattr(event, "self_device_time_total")
    return event.self_device_time_total if renamed else event.self_cuda_time_total


def _without_warnings() -> Any:
    """Some versions of PyTorch's profiler warn that it forgets between its cycles; there is one cycle here."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)
