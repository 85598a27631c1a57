"""Convolution and its two gradients by cuDNN, through NVIDIA's front end, on CuPy's arrays; channels last in memory.

An execution plan is made once for each shape and kept: the fastest of the first ones of cuDNN's heuristics, see
`TunedPlans`. cuDNN accumulates in float32 for every type. In float32 it rounds no factor to TF32 unless
`chainer.config.use_cudnn_tensor_core` is "always". With `chainer.config.cudnn_deterministic` nondeterministic plans are
left out, and the first one of the others is taken, which is the same on all GPUs of a kind.
"""

from __future__ import annotations

import atexit
import functools
import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chainer
import cudnn
import cupy
import numpy as np

from trainers.kernels.cpu.convolution import Pair, out_size
from trainers.kernels.cuda.images import whole_pixels
from trainers.kernels.cuda.launcher import aligned
from trainers.kernels.cuda.pooling import as_NHWC
from trainers.kernels.cuda.tuned_plans import TunedPlans
from trainers.runs.errors import RunFailed, one_line
from trainers.runs.memory import is_out_of_memory

log = logging.getLogger("kilobatch")

_TYPES = {"e": cudnn.data_type.HALF, "E": cudnn.data_type.BFLOAT16, "f": cudnn.data_type.FLOAT}
_TRIED, _REPEATS = 10, 3  # plans that are timed, as in PyTorch; the least time of each counts
_CACHE_BYTES = 1 << 27  # written before each time, so that no operand lies in the GPU's L2 cache: more than it holds
_MOST_WORKSPACE_BYTES = 1 << 32


def convolution(x: Any, W: Any, b: Any, *, stride: Pair, pad: Pair) -> Any | None:
    """See `trainers.kernels.cpu.convolution`; None for what cuDNN does not do, or not in this type."""
    y = _empty(x, len(W), out_size(x.shape[2:], W.shape[2:], stride, pad))
    if (pixels := whole_pixels(x)) is not None:
        x, W = pixels.transpose(0, 3, 1, 2), _with_channels(W, pixels.shape[3])
    if not _done("forward", x, W, y, stride, pad):
        return None
    if b is not None:
        y_NHWC = y.transpose(0, 2, 3, 1)
        y_NHWC += b
    return y


def convolution_data(gy: Any, W: Any, *, size: Pair, stride: Pair, pad: Pair) -> Any | None:
    """See `convolution`."""
    gx = _empty(gy, W.shape[1], size)
    return gx if _done("data", gx, W, gy, stride, pad) else None


def convolution_data_plus(gy: Any, W: Any, plus: Any, *, size: Pair, stride: Pair, pad: Pair) -> Any | None:
    """`convolution_data` plus an array, in one kernel: where two branches meet. None where cuDNN has no such plan.

    In float32 without TF32 cuDNN 9.19's only plan takes two to seven times as long as the gradient alone, in ResNet-50
    at batch 256: not taken.
    """
    if gy.dtype == np.float32 and not _tensor_cores():
        return None
    gx = _empty(gy, W.shape[1], size)
    return gx if _done("data plus", gx, W, gy, stride, pad, plus) else None


def convolution_weights(x: Any, gy: Any, *, kernel: Pair, stride: Pair, pad: Pair) -> Any | None:
    """See `convolution`."""
    pixels, channels = whole_pixels(x), x.shape[1]
    x = x if pixels is None else pixels.transpose(0, 3, 1, 2)
    gW = cupy.empty((gy.shape[1], *kernel, x.shape[1]), x.dtype).transpose(0, 3, 1, 2)
    return gW[:, :channels] if _done("weights", x, gW, gy, stride, pad) else None


def _with_channels(W: Any, channels: int) -> Any:
    """Weights with so many channels, 0 in the last ones."""
    wide = cupy.zeros((len(W), *W.shape[2:], channels), W.dtype).transpose(0, 3, 1, 2)
    wide[:, : W.shape[1]] = W
    return wide


def _empty(like: Any, channels: int, size: Pair) -> Any:
    return cupy.empty((len(like), *size, channels), like.dtype).transpose(0, 3, 1, 2)


def _done(operation: str, x: Any, W: Any, y: Any, stride: Pair, pad: Pair, *plus: Any) -> bool:
    """Run an operation, which writes one of these arrays; returns whether cuDNN could."""
    if x.dtype.char not in _TYPES or not x.dtype == W.dtype == y.dtype == (plus[0] if plus else x).dtype:
        return False
    how = (_tensor_cores(), bool(chainer.config.cudnn_deterministic))
    shapes = (x.shape, W.shape, y.shape)
    plan = _plan(operation, x.dtype.char, shapes, stride, pad, how, cupy.cuda.get_device_id(), threading.get_ident())
    if plan is None and how[1] and not plus:
        name = f"{operation} of {shapes}"
        raise RunFailed(f"cuDNN has no deterministic plan for {name}: its bits may change; train without --exact")
    if plan is not None:
        plan.run((x, W, y, *plus))
    return plan is not None


def _tensor_cores() -> bool:
    return chainer.config.use_cudnn_tensor_core == "always"


@dataclass
class _Plan:
    """A cuDNN graph of one operation, ready to run.

    Args:
        name: of the operation, its type and its shapes.
        graph: with the first plan of the heuristics built.
        handle: of its thread and device.
        operands: of x, W, y and what is added: its number in the graph, and its strides in bytes with channels last.
        workspace_bytes: that it needs while it runs.
        tuned: whether its execution plan is settled.
    """

    name: str
    graph: Any
    handle: Any
    operands: tuple[tuple[int, tuple[int, ...]], ...]
    workspace_bytes: int
    tuned: bool = False

    def run(self, arrays: Sequence[Any]) -> None:
        """Run it on x, W, y and what is added; it writes one of the first three, which has its channels last.

        Operands that do not begin at 16 bytes, as parts of arrays, are copied: the graph's tensors are said to do so.
        """
        cudnn.set_stream(self.handle, cupy.cuda.get_current_stream().ptr)
        arrays = [
            aligned(array if array.strides == strides else as_NHWC(array))  # or its strides are others, on axes of 1
            for (_, strides), array in zip(self.operands, arrays, strict=True)
        ]
        addresses = {uid: array.data.ptr for (uid, _), array in zip(self.operands, arrays, strict=True)}
        if not self.tuned:  # never in a capture: its rehearsal has the same shapes
            self._tune(addresses)
        self._execute(addresses)

    def _execute(self, addresses: dict[int, int]) -> None:
        workspace = cupy.empty(self.workspace_bytes, "B") if self.workspace_bytes else None
        self.graph.execute(addresses, 0 if workspace is None else workspace.data.ptr, handle=self.handle)

    def _tune(self, addresses: dict[int, int]) -> None:
        """Choose the fastest of the plans that the heuristics put first, or the one that an earlier run chose."""
        self.tuned, known, timings = True, _tuned_plans().find(self.name), []
        if known is not None and self._selects(known):
            return
        _say_that_plans_are_timed()
        for index in filter(self._selects, range(self.graph.get_execution_plan_count())):
            try:
                self._execute(addresses)
                timings.append((self._milliseconds(addresses), index))
            except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError, MemoryError):
                timings.append((math.inf, index))  # it cannot run, or there is too little memory to time it
            if sum(milliseconds < math.inf for milliseconds, _ in timings) == _TRIED:
                break
        least, chosen = min(timings, default=(math.inf, None))
        if chosen is not None:  # else none could be built again: the first one of the heuristics stays
            self._selects(chosen)
        if least < math.inf:
            _tuned_plans().keep(self.name, chosen)

    def _milliseconds(self, addresses: dict[int, int]) -> float:
        """Of the least of some executions, each with an empty cache."""
        start, end, times = cupy.cuda.Event(), cupy.cuda.Event(), []
        for _ in range(_REPEATS):
            cupy.empty(_CACHE_BYTES, "B").fill(0)
            start.record()
            self._execute(addresses)
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end))
        return min(times)

    def _selects(self, index: int) -> bool:
        """Take a plan of the heuristics; returns whether it exists in this cuDNN and was not refused."""
        try:
            self.graph.build_plan_at_index(index)
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError):
            return False
        self.workspace_bytes = self.graph.get_workspace_size()
        return True


@functools.cache
def _plan(
    operation: str,
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    stride: Pair,
    pad: Pair,
    how: tuple[bool, bool],
    device: int,
    thread: int,
) -> _Plan | None:
    """The plan that cuDNN's heuristics put first; None where there is none. It belongs to a device and a thread.

    Raises:
        MemoryError: memory ran out while it was built; the next call tries again.
    """
    handle = _handle(device, thread)
    graph = cudnn.pygraph(
        io_data_type=_TYPES[kind],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    tensors = _operation(graph, operation, _TYPES[kind], shapes, stride, pad)
    name = f"{operation} {kind} {shapes} {stride} {pad} {how}"
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(_refused(kind, *how))
        graph.deselect_workspace_greater_than(_MOST_WORKSPACE_BYTES)
        graph.check_support()
        graph.build_plans()
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        if is_out_of_memory(RuntimeError(str(error))):
            raise MemoryError(f"for cuDNN's plan of {name}: {one_line(error)}") from error
        log.info("cuDNN has no plan for %s: %s", name, str(error).strip()[:300])
        return None
    itemsize, shapes = 4 if kind == "f" else 2, (*shapes, shapes[0])  # what is added has the shape of x
    operands = tuple(
        (tensor.get_uid(), tuple(itemsize * stride for stride in _strides(shape)))
        for tensor, shape in zip(tensors, shapes, strict=False)
    )
    _, deterministic = how
    return _Plan(name, graph, handle, operands, graph.get_workspace_size(), tuned=deterministic)


def _operation(
    graph: Any, operation: str, kind: Any, shapes: tuple[tuple[int, ...], ...], stride: Pair, pad: Pair
) -> list[Any]:
    """Add the operation to a graph; returns the tensors of x, W, y and what is added."""
    written = ("data", "weights", "forward").index(operation.partition(" ")[0])
    tensors = [
        None if number == written else graph.tensor(dim=list(shape), stride=_strides(shape), data_type=kind)
        for number, shape in enumerate(shapes)
    ]
    x, W, y = tensors
    options = {"padding": list(pad), "stride": list(stride), "dilation": [1, 1]}
    if operation == "forward":
        out = graph.conv_fprop(image=x, weight=W, **options)
    elif operation == "weights":
        out = graph.conv_wgrad(image=x, loss=y, **options)
    else:
        out = graph.conv_dgrad(loss=y, filter=W, **options)
    shape = shapes[written]
    if operation == "data plus":
        out.set_dim(list(shape)).set_stride(_strides(shape))
        tensors.append(graph.tensor(dim=list(shape), stride=_strides(shape), data_type=kind))
        out = graph.add(a=out, b=tensors[-1])
    out.set_output(True).set_data_type(kind).set_dim(list(shape)).set_stride(_strides(shape))
    tensors[written] = out
    return tensors


def _strides(shape: tuple[int, ...]) -> list[int]:
    """Strides, in values, of an array (n, c, h, w) with channels last in memory."""
    _, channels, height, width = shape
    return [height * width * channels, 1, width * channels, channels]


def _refused(kind: str, tensor_cores: bool, deterministic: bool) -> list[Any]:
    notes = cudnn.numerical_note
    refused = [notes.NONDETERMINISTIC] if deterministic else []
    if kind == "f":
        # PyTorch leaves these two out as well, to keep float32 apart from TF32.
        refused += [notes.DOWN_CONVERT_INPUTS] + ([] if tensor_cores else [notes.TENSOR_CORE])
    return refused


atexit.register(_plan.cache_clear)  # else the front end's library lists each graph and tensor as leaked


@functools.cache
def _tuned_plans() -> TunedPlans:
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.get_device_id())
    return TunedPlans(f"{properties['name'].decode()} cuDNN {cudnn.backend_version()} {cudnn.__version__}")


@functools.cache
def _say_that_plans_are_timed() -> None:
    log.info("cuDNN's plans are timed for each new shape, once on this machine: the first updates take longer")


@functools.cache
def _handle(device: int, thread: int) -> Any:
    """cuDNN's handle of the current device and thread, made when first asked for."""
    return cudnn.create_handle()
