"""The programs of resnet50.py on a GPU: images there from the start, time by CUDA events.

The table also has lower bounds on the time of a step, from its operations and bytes and this GPU's measured rates.

Of ours `cudnn` is ChainerCV's network with `--kernels cudnn`; +groups normalises as `kilobatch train` does, with ReLU
and sums in the same node. +graph replays a step as a CUDA graph. +update is a whole update of `kilobatch train`, which
waits for the GPU twice; with +graph that of `cluster.cuda_graph`. BENCH_NAMES=1 names kernels on stderr.

    float32     all in float32, no TF32
    tf32        convolutions and matrix products may round their factors to TF32
    mixed16     float16 from float32 weights; PyTorch by autocast, its updates by a GradScaler
    bfloat16    the same with bfloat16
"""

from __future__ import annotations

import functools
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from resnet50 import chainer_model, groups_of, pytorch_network, pytorch_optimizer, update_of
from timing import head, row

PRECISIONS = ("float32", "tf32", "mixed16", "bfloat16")
STEPS_TIMED = 10  # between two events
_CLASSES = {  # of kernels, by what their names hold: the first that fits
    "loss": ("cross_entropy", "mean_loss", "crossent", "softmax", "nll_loss"),
    "normalisation": ("moments", "totals", "slopes", "normalized", "gradient_sums", "input_gradient")
    + ("batch_norm", "bn_"),
    "pooling": ("pool",),
    "convolution": ("conv", "wgrad", "dgrad", "fprop", "xmma", "gemm", "cutlass", "cudnn", "sm90", "sm80", "nhwc"),
    "relu and sum": ("relu", "add", "clamp", "threshold"),
    "copy": ("copy", "memcpy", "memset", "fill", "cast"),
}


def chainer_step(name: str, precision: str, images: np.ndarray, labels: np.ndarray) -> Callable[[], Any]:
    """A step of ChainerCV's network; it gives the loss, still on the GPU."""
    import chainer
    import cupy

    from recipes.schema import Precision
    from trainers import kernels
    from trainers.gradients.mixed_precision import computing, forward_in, images_dtype
    from trainers.kernels.cuda.pooling import as_NHWC
    from trainers.losses import SoftmaxCrossEntropy

    kernels.use_on_gpu(name.partition("+")[0])
    chainer.config.autotune = True  # as PyTorch's benchmark below
    x = as_NHWC(cupy.asarray(images)).transpose(0, 3, 1, 2)  # as the feed brings them, and PyTorch's below
    t, loss_of = cupy.asarray(labels), SoftmaxCrossEntropy().build()
    if "+update" in name:
        x = x.astype(images_dtype(Precision(compute=precision)), order="K")
        return update_of(x, t, precision=precision, graph=name.endswith("+graph"))
    model = chainer_model()
    begin = groups_of(model, len(images)) if "+groups" in name else lambda: None
    model.to_device("@cupy:0")
    logits = forward_in(model, precision)

    def step() -> Any:
        begin()
        with chainer.using_config("train", True), computing(precision, model.device):
            loss = loss_of(logits(x), t)
            model.cleargrads()
            (loss * 1024.0).backward()
        return loss.array

    return captured(step) if name.endswith("+graph") else step


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """A step of ours as a CUDA graph, in memory that nothing else uses, as `kilobatch train` captures micro-batches."""
    from trainers.training.cuda_graphs import GraphRecorder

    gpu = GraphRecorder()
    for _ in range(3):  # plans are made and chosen, kernels compiled
        with gpu.rehearsal():
            step()
    loss, (launch,) = gpu.record(lambda cut: step())

    def replay() -> Any:
        launch()
        return loss

    return replay


def pytorch_step(name: str, precision: str, images: np.ndarray, labels: np.ndarray) -> Callable[[], Any]:
    """A step of PyTorch's network with the same weights, channels last in memory."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    model = pytorch_network().cuda().to(memory_format=torch.channels_last).train()
    forward = torch.compile(model) if name.endswith("+compile") else model
    x = torch.from_numpy(images).cuda().contiguous(memory_format=torch.channels_last)
    t = torch.from_numpy(labels).long().cuda()
    kind = {"mixed16": torch.float16, "bfloat16": torch.bfloat16}.get(precision)
    updates = "+update" in name
    optimizer = pytorch_optimizer(model, fused=True) if updates else None
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=updates and precision == "mixed16")

    def step() -> Any:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=kind, enabled=kind is not None):
            loss = torch.nn.functional.cross_entropy(forward(x), t)
        if updates:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            (loss * 1024.0).backward()
        return loss.detach()

    return replayed(step) if name.endswith("+graph") else step


def replayed(step: Callable[[], Any]) -> Callable[[], Any]:
    """A step of PyTorch's as a CUDA graph, as its documentation captures whole networks."""
    import torch

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Any:
        graph.replay()
        return loss

    return replay


def timed(name: str, precision: str, images: np.ndarray, labels: np.ndarray) -> Callable[[], dict[str, float]]:
    """Steps of a program between two events: seconds of one, the loss, bytes that its pool has taken on the GPU."""
    if name.startswith("pytorch"):
        import torch

        step = pytorch_step(name, precision, images, labels)
        event, pool = functools.partial(torch.cuda.Event, enable_timing=True), torch.cuda.max_memory_reserved

        def between(start: Any, end: Any) -> float:
            return start.elapsed_time(end)
    else:
        import chainer
        import cupy

        from trainers.runs.memory import peak_memory

        step, device = chainer_step(name, precision, images, labels), chainer.get_device("@cupy:0")
        event, between = cupy.cuda.Event, cupy.cuda.get_elapsed_time

        def pool() -> int:
            return peak_memory(device)["gpu_pool_bytes"]  # that of graphs as well

    def measure() -> dict[str, float]:
        start, end = event(), event()
        start.record()
        for _ in range(STEPS_TIMED):
            loss = step()
        end.record()
        end.synchronize()
        return {"seconds": between(start, end) / 1e3 / STEPS_TIMED, "loss": float(loss), "peak_bytes": int(pool())}

    measure.step = step
    return measure


def by_class(step: Callable[[], Any]) -> dict[str, list[float]]:
    """Milliseconds and number of kernels of each class in a step, by PyTorch's profiler, which sees any program's."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in found.key_averages():
        name = event.key.lower()
        kind = next((kind for kind, words in _CLASSES.items() if any(word in name for word in words)), "other")
        milliseconds = event.self_device_time_total / 1e3
        if milliseconds > 0:
            sums[kind][0] += milliseconds
            sums[kind][1] += event.count
    if os.environ.get("BENCH_NAMES"):
        for event in sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)[:40]:
            line = f"{event.self_device_time_total / 1e3:9.3f} ms {event.count:5d}  {event.key[:150]}"
            print(line, file=sys.stderr, flush=True)
    return dict(sums)


def ceilings() -> dict[str, float]:
    """This GPU's measured rates: bytes a second of a copy, operations a second of a matrix product of each type."""
    import torch

    def seconds(work: Callable[[], Any]) -> float:
        times = []
        for _ in range(8):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return float(np.median(times[3:]))

    source = torch.randn(1 << 29, device="cuda")
    found = {"bytes": 2 * source.nbytes / seconds(source.clone)}
    for name, kind in {"float32": "float32", "tf32": "float32", "mixed16": "float16", "bfloat16": "bfloat16"}.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=getattr(torch, kind)) for _ in range(2))
        found[name] = 2 * 8192**3 / seconds(lambda a=a, b=b: a @ b)
    torch.cuda.empty_cache()
    return found


@functools.cache
def work_of_an_image(side: int) -> tuple[int, int]:
    """For one image of a step: operations of the convolutions, and the least number of values read and written.

    A convolution is computed three times (the first one twice: images need no gradient); each time two of x, y and
    their gradients are moved. Normalisation with ReLU reads x twice and writes once, and moves five such arrays
    backward; a sum in it moves two more forward and two backward. Weights are left out.
    """
    import chainer
    from chainer.functions.connection.convolution_2d import Convolution2DFunction
    from chainer.functions.math.basic_math import Add

    operations = values = 0
    with chainer.using_config("train", False):
        y = chainer_model()(np.zeros((1, 3, side, side), np.float32))
    nodes, seen = [y.creator], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        nodes += [one.creator_node for one in node.inputs if one.creator_node is not None]
        if isinstance(node, Convolution2DFunction):
            x, W = (one.shape for one in node.inputs[:2])
            out = node.outputs[0]().shape
            times = 2 if x[1] == 3 else 3
            operations += times * 2 * int(np.prod(out)) * int(np.prod(W[1:]))
            values += times * int(np.prod(x) + np.prod(out)) + 8 * int(np.prod(out))
        elif isinstance(node, Add):
            values += 4 * int(np.prod(node.outputs[0]().shape))
    return operations, values


def floors(batch: int, side: int, precision: str, ceiling: dict[str, float]) -> tuple[float, float]:
    """The least seconds of a step, by operations and by bytes."""
    operations, values = work_of_an_image(side)
    width = 2 if precision in ("mixed16", "bfloat16") else 4
    return batch * operations / ceiling[precision], batch * values * width / ceiling["bytes"]


def bench(options: Any, measure: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Measure at every precision and batch, and print the tables last.

    Args:
        options: of resnet50.py.
        measure: its own.
    """
    results, ceiling = [], ceilings()
    for precision in options.precision:
        for batch in options.batch:
            names = ["pytorch", *(["pytorch+compile"] if options.compile else []), "cudnn+groups"]
            names += ["pytorch+graph", "cudnn+groups+graph"] if options.graph else []
            if options.update:
                names += ["pytorch+update", "cudnn+update", *(["cudnn+update+graph"] if options.graph else [])]
            same = {"float32": 1e-4, "tf32": 1e-2}.get(precision, 3e-2)  # of losses near 7
            results.append(measure(names, batch, options, precision, same))
            results[-1]["floors"] = floors(batch, options.side, precision, ceiling)
            print("\n".join(_lines(results[-1])), flush=True)
    rates = ", ".join(f"{name} {rate / 1e12:.1f} T/s" for name, rate in ceiling.items())
    print(f"\ncopy and matrix products of this GPU: {rates}\n")
    print(head(["precision", "batch", "program", "ms by class (kernels)"]))
    for found in results:
        print("\n".join(_kernel_lines(found)))
    heads = ["precision", "batch", "program", "ms", "images/s", "of PyTorch's", "GiB", "floor: operations", "bytes"]
    print(f"\n{head(heads)}")
    for found in results:
        print("\n".join(_lines(found)))
    return results


def _lines(found: dict[str, Any]) -> list[str]:
    seconds = {name: float(np.median(each)) for name, each in found["seconds"].items()}
    by_operations, by_bytes = (f"{1e3 * floor:.1f} ms" for floor in found["floors"])
    lines = []
    for name, one in seconds.items():
        other = "pytorch+update" if "+update" in name else "pytorch"
        cells = [found["precision"], found["batch"], name, f"{1e3 * one:.2f}", f"{found['batch'] / one:.0f}"]
        cells += [
            f"{seconds[other] / one:.2f}" if other in seconds else "",  # it may have failed
            f"{found['peak_bytes'][name] / 2**30:.1f}",
            by_operations,
            by_bytes,
        ]
        lines.append(row(cells))
    return lines


def _kernel_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for name, classes in (found["kernels"] or {}).items():
        largest = sorted(classes.items(), key=lambda item: -item[1][0])
        each = ", ".join(f"{kind} {milliseconds:.2f} ({count})" for kind, (milliseconds, count) in largest)
        lines.append(row([found["precision"], found["batch"], name, each]))
    return lines
