"""ResNet-50, forward and backward: our kernels beside stock Chainer and PyTorch, on the same images and weights.

    chainer    ChainerCV's network, Chainer 7.8.1's own functions (with the patches that it needs to import at all)
    numpy      the same network and loop; `--kernels numpy`
    torch      the same; `--kernels torch`
    pytorch    the network of `pytorch_network`, channels_last
    +groups    added to one of the first three: normalised as `kilobatch train` does, one norm group of the whole batch
    +update    a whole update instead: of ours that of `kilobatch train` on one rank, all but loading; of PyTorch the
               step of its SGD as well, with goyal2017's momentum and decay

Each program is a process of its own, with all cores, and they take turns step by step: what else the machine does meets
all alike. A step is forward, loss and backward of one batch; the optimizer is left out. Updates are compared with
updates. The table has medians, the ratio of each to the first program named in --against, and its smallest and largest
in a round. Before that the losses of the first step are compared: they must be those of one network. Memory is the most
that a process ever had.

`--clock cpu` counts processor time of all threads, which other processes change less: for OMP_NUM_THREADS=1, since
threads that wait for others spin.

`--device gpu` measures the programs of resnet50_gpu.py instead, at each --precision and --batch: by CUDA
events around some steps, images on the GPU from the start. Its second table has milliseconds by class of kernels, and
the third what a step takes at least, by the operations and by the bytes of its kernels and by what the GPU was just
seen to do with them. `--compile` adds torch.compile, which takes a minute for each batch and precision.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from timing import CLOCKS, head, in_turns, parser_of, ratios, row, write_json

import trainers  # noqa: F401  patches Chainer
from trainers.runs.mpi_ranks import limit_threads

PAUSE_SECONDS = 0.3  # before a step, for threads of the program before that still wait for work
SAME_LOSS = 1e-4  # relative, in float32, of networks of 50 layers
OURS = {"chainer": ("numpy",), "pytorch": ("torch",)}  # what is measured against what
WAY_OUT = "resnet50: no PyTorch here: pip install 'kilobatch[torch]', or --against chainer on the CPU"
RATE = 1e-6  # of updates: so small that the weights stay those that all programs begin with
_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride


def chainer_model() -> Any:
    """The network with the weights that all programs have."""
    from trainers.models import ResNet50
    from trainers.models.keyed_random import draw_initial_weights

    model = ResNet50().build(num_classes=1000, channels=3, image_size=None)
    draw_initial_weights(model, seed=0)
    return model


def groups_of(model: Any, count: int) -> Callable[[], None]:
    """Make a model normalise `count` images as one group, as `kilobatch train` does; call the result at each step."""
    from recipes.planning.division import divide
    from recipes.schema import Evaluation
    from trainers.models.batch_norm import NormGroups

    groups = NormGroups(Evaluation())
    groups.install(model)
    division = divide(global_batch_size=count, norm_span=count, workers=1, micro_batch_size=count)

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
    import numpy as np
    from mpi4py import MPI

    from recipes.planning.cluster import GradientExchange
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
    updater = RecipeUpdater(
        {"main": _Same(plan, images, labels)},
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


class _Same:
    """An iterator that repeats one micro-batch."""

    def __init__(self, plan: Any, images: Any, labels: Any) -> None:
        import numpy as np

        from trainers.datasets.loader import LoadedMicroBatch

        (part,) = plan.division_of(0).micro_batches(0)
        numbers = np.arange(len(images))
        self._plan = plan
        self._loaded = LoadedMicroBatch(
            part=part, images_NCHW=images, targets=labels, epochs=0 * numbers, indices=numbers, seen=()
        )

    def next(self) -> Any:
        """The share of the first update."""
        from trainers.datasets.loader import UpdateShare

        of_first = {"segment": self._plan.timeline.segment_of(0), "division": self._plan.division_of(0)}
        return UpdateShare(update=0, samples=0, micro_batches=iter([self._loaded]), **of_first)

    def again(self) -> Any:
        """The same: an update that overflowed is done again."""
        return self.next()


def pytorch_network() -> Any:
    """ResNet-50 in PyTorch, layer for layer and name for name ChainerCV's with `arch="fb"`, with the same weights."""
    import torch
    from torch import nn

    def normalised(num_in: int, num_out: int, size: int, stride: int = 1) -> nn.Module:
        convolution = nn.Conv2d(num_in, num_out, size, stride, size // 2, bias=False)
        return named(conv=convolution, bn=nn.BatchNorm2d(num_out, eps=2e-5, momentum=0.1))

    def named(**layers: nn.Module) -> nn.Sequential:
        found = nn.Sequential()
        for name, layer in layers.items():
            found.add_module(name, layer)
        return found

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
            for number, (count, width, stride) in enumerate(_STAGES, 2):
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


def chainer_step(how: str, images: Any, labels: Any) -> Callable[[], float]:
    """A step of ChainerCV's network, by the kernels that the environment selects."""
    import chainer
    import chainer.functions as F

    if how.endswith("+update"):
        return update_of(images, labels, precision="float32")
    model = chainer_model()
    begin = groups_of(model, len(images)) if how.endswith("+groups") else lambda: None

    def step() -> float:
        begin()
        with chainer.using_config("train", True):
            loss = F.softmax_cross_entropy(model(images), labels)
            model.cleargrads()
            loss.backward()
        return float(loss.array)

    return step


def pytorch_step(how: str, images: Any, labels: Any) -> Callable[[], float]:
    """A step of PyTorch's network with the same weights, channels last in memory."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = pytorch_network().to(memory_format=torch.channels_last).train()
    x = torch.from_numpy(images).contiguous(memory_format=torch.channels_last)
    t = torch.from_numpy(labels).long()
    update = pytorch_optimizer(model).step if how.endswith("+update") else lambda: None

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), t)
        loss.backward()
        update()
        return loss.item()

    return step


STEPS = {"chainer": chainer_step, "numpy": chainer_step, "torch": chainer_step, "pytorch": pytorch_step}


def serve(name: str, options: argparse.Namespace) -> None:
    """Run as one of the programs: a step for each line of stdin, its seconds and loss on stdout; or its kernels."""
    import numpy as np

    (batch,), side, clock = options.batch, options.side, CLOCKS[options.clock]
    random = np.random.RandomState(0)
    images = random.normal(size=(batch, 3, side, side)).astype(np.float32)
    labels = random.randint(0, 1000, batch).astype(np.int32)
    if options.device == "gpu":
        from resnet50_gpu import by_class, timed

        measured = timed(name, options.precision[0], images, labels)
    else:
        step = STEPS[name.partition("+")[0]](name, images, labels)

        def measured() -> dict[str, float]:
            began = clock()
            loss = step()
            seconds = clock() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            return {"seconds": seconds, "loss": loss, "peak_bytes": peak}

    for line in sys.stdin:
        try:
            found = by_class(measured.step) if line.strip() == "kernels" else measured()
        except Exception as error:
            if line.strip() != "kernels":
                raise
            print(f"{name}: no kernels counted: {error}", file=sys.stderr)
            found = {}
        print(json.dumps(found), flush=True)


class Program:
    """A process that does a step on request."""

    def __init__(self, name: str, batch: int, options: argparse.Namespace, precision: str = "float32") -> None:
        kernels = {"KILOBATCH_KERNELS": name.partition("+")[0]} if not name.startswith("pytorch") else {}
        command = [sys.executable, __file__, "--serve", name, "--batch", str(batch), "--side", str(options.side)]
        command += ["--clock", options.clock, "--device", options.device, "--precision", precision]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **kernels}, **pipes)

    def step(self, word: str = "") -> dict[str, Any]:
        """Seconds, loss and peak memory of one step, or the answer to another request."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, and will not answer
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.process.communicate()
            sys.exit(f"resnet50: a program ended with {self.process.returncode}")
        return json.loads(answer)

    def end(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def measure(
    names: list[str], batch: int, options: argparse.Namespace, precision: str = "float32", same: float = SAME_LOSS
) -> dict[str, Any]:
    """Seconds of every program in every round, after one step that is not counted."""
    on_gpu = options.device == "gpu"  # where what fails is left out: the machine is lent
    programs, first = {name: Program(name, batch, options, precision) for name in names}, {}
    for name in names:
        try:
            first[name] = programs[name].step()["loss"]
        except SystemExit as failed:
            if not on_gpu:
                raise
            print(f"{name}, batch {batch}, {precision}: {failed}", flush=True)
            del programs[name]
    names, (loss, *_) = [*programs], [*first.values(), 0]
    if not all(abs(other - loss) <= same * abs(loss) for other in first.values()):
        message = f"resnet50: these are not the same networks, their first losses are {first}"
        print(message) if on_gpu else sys.exit(message)
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in in_turns(names, number):
            time.sleep(PAUSE_SECONDS)
            steps[name].append(programs[name].step())
    kernels = {name: program.step("kernels") for name, program in programs.items()} if on_gpu else None
    for program in programs.values():
        program.end()
    return {
        "batch": batch,
        "side": options.side,
        "precision": precision,
        "clock": "events" if on_gpu else options.clock,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "first_loss": first,
        "seconds": {name: [step["seconds"] for step in done] for name, done in steps.items()},
        "peak_bytes": {name: max(step["peak_bytes"] for step in done) for name, done in steps.items()},
        "kernels": kernels,
    }


def table_lines(found: dict[str, Any], against: list[str]) -> list[str]:
    """Lines of the table in Markdown: how many times as fast as each of `against`."""
    lines = []
    for name, seconds in found["seconds"].items():
        cells = [found["batch"], name, f"{statistics.median(seconds):.3f}"]
        for other in (f"{one}+update" if name.endswith("+update") else one for one in against):
            theirs = found["seconds"].get(other)
            if theirs is None or name == other:
                cells.append("")
                continue
            each, middle = ratios(theirs, seconds), statistics.median(theirs) / statistics.median(seconds)
            cells.append(f"{middle:.2f} ({min(each):.2f} to {max(each):.2f})")
        lines.append(row([*cells, f"{found['peak_bytes'][name] / 2**30:.2f}"]))
    return lines


def main() -> None:
    """Measure the programs at every batch, or run as one of them."""
    parser = parser_of(__doc__)
    parser.add_argument("--against", nargs="+", choices=OURS, default=["chainer"])
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--side", type=int, default=224, help="of the images, in pixels")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--update", action="store_true", help="whole updates as well, of PyTorch and of ours")
    parser.add_argument("--groups", action="store_true", help="ours also as `kilobatch train` normalises")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--precision", nargs="+", default=["float32"], help="on a GPU: float32 tf32 mixed16 bfloat16")
    parser.add_argument("--compile", action="store_true", help="on a GPU: torch.compile as well")
    parser.add_argument("--graph", action="store_true", help="on a GPU: ours and PyTorch's as CUDA graphs as well")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = limit_threads()
    if options.serve:
        serve(options.serve, options)
        return
    if (options.device == "gpu" or "pytorch" in options.against) and find_spec("torch") is None:
        sys.exit(WAY_OUT)
    if options.device == "gpu":
        from resnet50_gpu import bench

        results = bench(options, measure)
    else:
        results = bench_on_cpu(options, threads)
    write_json(options.json, results)


def bench_on_cpu(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """Measure at every batch and print the table."""
    ours = [name for other in options.against for name in OURS[other]]
    names = [*options.against, *ours, *(f"{name}+groups" for name in ours if options.groups)]
    names += [f"{name}+update" for name in ("pytorch", *ours) if options.update and name in names]
    heads = ["batch", "program", "s a step", *(f"times as fast as {other}" for other in options.against), "GiB"]
    print(f"{threads} thread(s), images of {options.side}x{options.side}\n\n{head(heads)}", flush=True)
    results = []
    for batch in options.batch:
        results.append(measure(names, batch, options))
        print("\n".join(table_lines(results[-1], options.against)), flush=True)
    return results


if __name__ == "__main__":
    main()
