"""The programs of scripts/bench_resnet50.py on a GPU: images there from the start, time by CUDA events.

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
from resnet50_floors import ceilings, floors

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
    from resnet50_in_chainer import chainer_model, groups_of, update_of

    from recipes.schema import Precision
    from trainers import kernels
    from trainers.kernels.cuda_pooling import as_NHWC
    from trainers.losses import SoftmaxCrossEntropy
    from trainers.mixed_precision import computing, forward_in, images_dtype

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
    from trainers.micro_batch_graphs import GraphRecorder

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
    from resnet50_in_chainer import chainer_model
    from resnet50_in_torch import ResNet50, optimizer_of, take_weights

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    model = ResNet50()
    take_weights(model, {path: parameter.array for path, parameter in chainer_model().namedparams()})
    model = model.cuda().to(memory_format=torch.channels_last).train()
    forward = torch.compile(model) if name.endswith("+compile") else model
    x = torch.from_numpy(images).cuda().contiguous(memory_format=torch.channels_last)
    t = torch.from_numpy(labels).long().cuda()
    kind = {"mixed16": torch.float16, "bfloat16": torch.bfloat16}.get(precision)
    updates = "+update" in name
    optimizer = optimizer_of(model, fused=True) if updates else None
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

        from trainers.memory import peak_memory

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
            said = f"{event.self_device_time_total / 1e3:9.3f} ms {event.count:5d}  {event.key[:150]}"
            print(said, file=sys.stderr, flush=True)
    return dict(sums)


def bench(options: Any, measure: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Measure at every precision and batch, and print the tables last.

    Args:
        options: of scripts/bench_resnet50.py.
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
    print(f"\ncopy and matrix products of this GPU: {rates}\n\n| precision | batch | program | ms by class (kernels) |")
    print("|---|---|---|---|")
    for found in results:
        print("\n".join(_kernel_lines(found)))
    heads = ["precision", "batch", "program", "ms", "images/s", "of PyTorch's", "GiB", "floor: operations", "bytes"]
    print(f"\n| {' | '.join(heads)} |\n" + "|---" * len(heads) + "|")
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
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _kernel_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for name, classes in (found["kernels"] or {}).items():
        largest = sorted(classes.items(), key=lambda item: -item[1][0])
        said = ", ".join(f"{kind} {milliseconds:.2f} ({count})" for kind, (milliseconds, count) in largest)
        lines.append(f"| {found['precision']} | {found['batch']} | {name} | {said} |")
    return lines
