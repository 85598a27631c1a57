"""The programs that resnet50.py times: networks of the same weights, and a step of each of them.

Of ours on a GPU `cudnn` is ChainerCV's network with `--kernels cudnn`; +groups normalises as `kilobatch train` does,
with ReLU and sums in the same node. +graph replays a step as a CUDA graph. +update is a whole update of `kilobatch
train`, which waits for the GPU once; with +graph that of `cluster.cuda_graph`.

    float32     all in float32, no TF32
    tf32        convolutions and matrix products may round their factors to TF32
    mixed16     float16 from float32 weights; PyTorch by autocast, its updates by a GradScaler
    bfloat16    the same with bfloat16
"""

from __future__ import annotations

import functools
import gc
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from timing import Replay

RATE = 1e-6  # of updates: so small that the weights stay those that all programs begin with
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride
STEPS_TIMED = 10  # between two events


def chainer_model() -> Any:
    """The network with the weights that all programs have."""
    from trainers.models import ResNet50
    from trainers.models.keyed_random import draw_initial_weights

    model = ResNet50().build(num_classes=1000, channels=3, image_size=None)
    draw_initial_weights(model, seed=0)
    return model


def groups_of(model: Any, count: int, norm_span: int) -> Callable[[], None]:
    """Make a model normalise `count` images in groups, as `kilobatch train` does; call the result at each step."""
    from recipes.planning.division import divide
    from recipes.schema import Evaluation
    from trainers.models.batch_norm import NormGroups

    groups = NormGroups(Evaluation())
    groups.install(model)
    division = divide(global_batch_size=count, norm_span=norm_span, workers=1, micro_batch_size=count)

    def begin() -> None:
        groups.begin_update(division)
        groups.begin_micro_batch(division.micro_batches(0)[0])

    return begin


def update_of(images: Any, labels: Any, *, precision: str, graph: bool = False) -> Callable[[], float]:
    """An update of `kilobatch train` on one rank: all but loading, by goyal2017's optimizer; gives the loss.

    Args:
        images, labels: where they are trained, of one micro-batch, which is one norm group.
        precision: the recipe's `precision.compute`.
        graph: `cluster.cuda_graph`.
    """
    import chainer
    from mpi4py import MPI

    from recipes.planning.cluster import GradientExchange
    from trainers.datasets.loader import LoadedMicroBatch, UpdateShare
    from trainers.launch.request import TrainRequest, prepare
    from trainers.models.batch_norm import NormGroups
    from trainers.optimizers.weight_decay import decay_parameters
    from trainers.training.build import build, build_exchange
    from trainers.training.updater import RecipeUpdater

    count, device = len(images), chainer.backend.get_device_from_array(images)
    kind = "cpu" if device.xp is np else "gpu"
    steady = f"learning_rate={{reference: {RATE}, per: {count}, schedule: {{kind: Constant}}}}"
    batch = f"batch={{global: {count}, norm_span: {count}}}"
    plain = ("dataset=synthetic", "augmentation={train: [], eval: []}", "epochs=10000up")
    overrides = (*plain, batch, steady, f"precision.compute={precision}")
    request = TrainRequest(recipe="goyal2017", overrides=overrides, micro_batch_size=count, device=kind)
    prepared = prepare(request, workers=1)
    plan, recipe = prepared.plan, prepared.opened.recipe
    plan = replace(plan, cluster=replace(plan.cluster, cuda_graph=graph))
    model, optimizer = chainer_model(), recipe.optimizer.build()
    model.to_device(device)
    optimizer.setup(model)
    decay_parameters(optimizer, recipe.optimizer)
    parts = replace(build(recipe, prepared.opened.dataset), model=model, optimizer=optimizer)
    groups = NormGroups(recipe.evaluation)
    groups.install(model)
    division, numbers = plan.division_of(0), np.arange(count)
    loaded = LoadedMicroBatch(
        part=division.micro_batches(0)[0],
        images_NCHW=images,
        targets=labels,
        epochs=0 * numbers,
        indices=numbers,
        seen=(),
    )
    segment = plan.timeline.segment_of(0)
    share = UpdateShare(update=0, segment=segment, division=division, samples=0, micro_batches=[loaded])
    updater = RecipeUpdater(
        {"main": Replay([share])},
        optimizer,
        loss=parts.loss,
        plan=plan,
        exchange=build_exchange(GradientExchange(), parts, MPI.COMM_SELF),
        mpi=MPI.COMM_SELF,
        norm_groups=groups,
    )

    def update() -> float:
        updater.update()
        return updater.record.loss

    return update


def pytorch_network() -> Any:
    """ResNet-50 in PyTorch, layer for layer and name for name ChainerCV's with `arch="fb"`, with the same weights."""
    import torch
    from torch import nn

    def normalised(num_in: int, num_out: int, size: int, stride: int = 1) -> nn.Module:
        convolution = nn.Conv2d(num_in, num_out, size, stride, size // 2, bias=False)
        return named(conv=convolution, bn=nn.BatchNorm2d(num_out, eps=2e-5, momentum=0.1))

    def named(**layers: nn.Module) -> nn.Sequential:
        return nn.Sequential(OrderedDict(layers))

    class Bottleneck(nn.Module):
        """1x1, 3x3 with the stride, 1x1; ReLU after each but the last, and after the sum."""

        def __init__(self, num_in: int, width: int, stride: int, *, projects: bool) -> None:
            super().__init__()
            self.conv1 = normalised(num_in, width, 1)
            self.conv2 = normalised(width, width, 3, stride)
            self.conv3 = normalised(width, 4 * width, 1)
            if projects:
                self.residual_conv = normalised(num_in, 4 * width, 1, stride)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.conv2(torch.relu(self.conv1(x))))
            h = self.conv3(h)
            h += self.residual_conv(x) if hasattr(self, "residual_conv") else x
            return torch.relu_(h)

    class ResNet50(nn.Module):
        """Logits of images (samples, 3, height, width)."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, num_in = normalised(3, 64, 7, 2), 64
            for number, (count, width, stride) in enumerate(STAGES, 2):
                blocks = {"a": Bottleneck(num_in, width, stride, projects=True)}
                blocks |= {f"b{i}": Bottleneck(4 * width, width, 1, projects=False) for i in range(1, count)}
                self.add_module(f"res{number}", named(**blocks))
                num_in = 4 * width
            self.fc6 = nn.Linear(num_in, 1000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 3, 2, ceil_mode=True)
            h = self.res5(self.res4(self.res3(self.res2(h))))
            return self.fc6(h.mean(dim=(2, 3)))

    model = ResNet50()
    names = {"W": "weight", "gamma": "weight", "beta": "bias", "b": "bias"}  # Chainer's, PyTorch's
    without = dict(model.named_parameters())
    with torch.no_grad():
        for path, parameter in chainer_model().namedparams():
            *layers, name = path.strip("/").split("/")
            without.pop(".".join([*layers, names[name]])).copy_(torch.from_numpy(parameter.array))
    assert not without, f"without weights: {sorted(without)}"
    return model


def pytorch_optimizer(model: Any, *, fused: bool = False) -> Any:
    """The SGD of goyal2017, at a rate so small that the weights do not change."""
    import torch

    parts: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for path, parameter in model.named_parameters():
        parts["bn." in path].append(parameter)
    groups = [{"params": parts[True]}, {"params": parts[False], "weight_decay": 1e-4}]
    return torch.optim.SGD(groups, lr=RATE, momentum=0.9, nesterov=True, fused=fused or None)


def chainer_step(name: str, images: Any, labels: Any) -> Callable[[], float]:
    """A step of ChainerCV's network, by the kernels that the environment selects."""
    import chainer
    import chainer.functions as F

    if name.endswith("+update"):
        return update_of(images, labels, precision="float32")
    model = chainer_model()
    begin = groups_of(model, len(images), len(images)) if name.endswith("+groups") else lambda: None

    def step() -> float:
        begin()
        with chainer.using_config("train", True):
            loss = F.softmax_cross_entropy(model(images), labels)
            model.cleargrads()
            loss.backward()
        return float(loss.array)

    return step


def pytorch_step(name: str, images: Any, labels: Any) -> Callable[[], float]:
    """A step of PyTorch's network with the same weights, channels last in memory."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = pytorch_network().to(memory_format=torch.channels_last).train()
    x = torch.from_numpy(images).contiguous(memory_format=torch.channels_last)
    t = torch.from_numpy(labels).long()
    update = pytorch_optimizer(model).step if name.endswith("+update") else lambda: None

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), t)
        loss.backward()
        update()
        return loss.item()

    return step


def chainer_step_on_gpu(
    name: str, precision: str, images: np.ndarray, labels: np.ndarray, norm_span: int
) -> Callable[[], Any]:
    """A step of ChainerCV's network; it gives the loss, still on the GPU."""
    import chainer
    import cupy

    from recipes.schema import Precision
    from trainers import kernels
    from trainers.gradients.mixed_precision import computing, forward_in, images_dtype
    from trainers.kernels.cuda.pooling import as_NHWC
    from trainers.losses import SoftmaxCrossEntropy

    kernels.use_on_gpu(name.partition("+")[0])
    x = as_NHWC(cupy.asarray(images)).transpose(0, 3, 1, 2)  # as the feed brings them, and PyTorch's below
    t, loss_of = cupy.asarray(labels), SoftmaxCrossEntropy().build()
    if "+update" in name:
        x = x.astype(images_dtype(Precision(compute=precision)), order="K")
        return update_of(x, t, precision=precision, graph=name.endswith("+graph"))
    model = chainer_model()
    begin = groups_of(model, len(images), norm_span) if "+groups" in name else lambda: None
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


def pytorch_step_on_gpu(name: str, precision: str, images: np.ndarray, labels: np.ndarray) -> Callable[[], Any]:
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

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Any:
        graph.replay()
        return loss

    return replay


def timed(
    name: str, precision: str, images: np.ndarray, labels: np.ndarray, norm_span: int
) -> Callable[[], dict[str, float]]:
    """Steps of a program between two events: seconds of one, the loss, bytes that its pool has taken on the GPU."""
    if name.startswith("pytorch"):
        import torch

        step = pytorch_step_on_gpu(name, precision, images, labels)
        event, pool = functools.partial(torch.cuda.Event, enable_timing=True), torch.cuda.max_memory_reserved

        def between(start: Any, end: Any) -> float:
            return start.elapsed_time(end)
    else:
        import chainer
        import cupy

        from trainers.runs.memory import peak_memory

        step = chainer_step_on_gpu(name, precision, images, labels, norm_span)
        device = chainer.get_device("@cupy:0")
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
        if not gc.get_freeze_count():  # after the first steps, as `kilobatch train` does before a run
            gc.collect()
            gc.freeze()
        return {"seconds": between(start, end) / 1e3 / STEPS_TIMED, "loss": float(loss), "peak_bytes": int(pool())}

    measure.step = step
    return measure


def by_class(step: Callable[[], Any]) -> dict[str, tuple[float, int]]:
    """Milliseconds and number of kernels of each class in a step, by PyTorch's profiler, which sees any program's."""
    import torch

    from trainers.training.extensions.gpu_profile import milliseconds_by_class

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        step()
        torch.cuda.synchronize()
    events = [(event.key, event.self_device_time_total / 1e3, event.count) for event in profile.key_averages()]
    return milliseconds_by_class(event for event in events if event[1] > 0)


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
    rates = {"bytes": 2 * source.nbytes / seconds(source.clone)}
    for name, kind in {"float32": "float32", "tf32": "float32", "mixed16": "float16", "bfloat16": "bfloat16"}.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=getattr(torch, kind)) for _ in range(2))
        rates[name] = 2 * 8192**3 / seconds(lambda a=a, b=b: a @ b)
    torch.cuda.empty_cache()
    return rates


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
