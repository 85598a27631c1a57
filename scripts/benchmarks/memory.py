"""Predicted memory of training beside the measured peak of real updates, for models on the CPU.

    .venv/bin/python scripts/benchmarks/memory.py
    KILOBATCH_KERNELS=numpy .venv/bin/python scripts/benchmarks/memory.py
    .venv/bin/python scripts/benchmarks/memory.py --cases resnet50 vgg16 --updates 5 --fast --json F

Predicted is `total_bytes` of the plan: weights, gradients, optimizer state, sums of exact mode, activations, workspace.
Measured is the peak of the resident set (VmHWM) above a baseline, in a process of its own on one thread. That process
first trains two updates of a small recipe, so that code and libraries are loaded; then it returns freed memory to the
system, and the resident set is the baseline. Then it builds the case's recipe, forgets the peak of that (the last
column) and trains it by `RecipeUpdater`, which loads and augments the images as a run does. The peak also contains gaps
between arrays that the C library keeps.

A micro-batch has two norm groups and an update two micro-batches.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import timing
from timing import head, row

from recipes.planning.memory import SPREAD, TORCH_SPREAD
from trainers.kernels import of_runs
from trainers.runs.mpi_ranks import limit_threads

# By name: the model, the side of an image and the samples of a micro-batch. The share of gaps that the plan assumes was
# fitted on the first seven, before the others had been run; that of PyTorch's kernels on all.
FITTED = {
    "alexnet": ("AlexNetBN", 227, 32),
    "cifar_resnet44": ("CifarResNet, depth: 44", 32, 64),
    "resnet18": ("ResNet18", 96, 32),
    "resnet50": ("ResNet50", 128, 16),
    "small_cnn": ("SmallCNN, width: 64", 32, 128),
    "vgg16": ("VGG16", 64, 32),
    "wide_resnet": ("WideResNet, depth: 16, widen: 4", 32, 64),
}
CHECKED = {
    "cifar_resnet20": ("CifarResNet, shortcut: projection", 32, 256),
    "resnet34": ("ResNet34", 128, 16),
    "resnet50_blur": ("ResNet50, blur_pool: true", 96, 32),
    "resnet101": ("ResNet101", 64, 32),
    "small_resnet": ("SmallResNet, width: 32", 32, 128),
    "vgg16_bn": ("VGG16, batch_norm: true", 96, 16),
    "wide_resnet10_8": ("WideResNet, depth: 10, widen: 8", 32, 64),
}
SMALL_IMAGES = {
    "resnet18_32_of_32": ("ResNet18", 32, 32),
    "resnet18_32": ("ResNet18", 32, 128),
    "resnet18_32_of_512": ("ResNet18", 32, 512),
    "resnet18_64": ("ResNet18", 64, 64),
    "simple_cnn": ("SimpleCNN", 28, 256),
    "simple_cnn_of_512": ("SimpleCNN", 28, 512),
    "digits": ("SmallResNet, width: 16, blocks: [1, 1, 1]", 8, 512),
}
CASES = FITTED | CHECKED | SMALL_IMAGES


def request_of(case: str, *, fast: bool) -> Any:
    """The request of a case: momentum SGD on synthetic images."""
    from trainers.launch.request import TrainRequest

    model, size, samples = CASES[case]
    parts = f"[{{kind: Resize, shorter: {size}}}, {{kind: CenterCrop, size: {size}}}]"
    overrides = (
        f"model={{kind: {model}}}",
        "dataset=synthetic",
        f"batch={{global: {2 * samples}, norm_span: {samples // 2}}}",
        "learning_rate.warmup=null",
        f"augmentation={{train: {parts}, eval: {parts}}}",
    )
    exact = False if fast else None
    return TrainRequest(recipe="goyal2017", overrides=overrides, micro_batch_size=samples, exact=exact)


def predicted(case: str, *, fast: bool) -> dict[str, Any]:
    """What the plan says, in a process that trains nothing."""
    from dataclasses import replace

    from trainers.launch.model_costs import model_of
    from trainers.launch.request import prepare

    prepared = prepare(request_of(case, fast=fast), workers=1)
    plan = replace(prepared.plan, model=model_of(prepared.opened))
    division = plan.segments[0].division
    sizes = {"micro_batch_size": division.largest, "accumulation_steps": division.num_micro_batches(0)}
    return {**sizes, "exact": plan.exact, "memory": plan.memory_of(plan.segments[0])}


def measured(case: str, *, fast: bool, updates: int) -> list[int]:
    """The peaks of this process above its baseline in bytes: of the updates, and of building before them."""
    limit_threads(threads=1)
    import trainers.compat  # noqa: F401  isort: skip
    import chainer

    from trainers.launch.request import TrainRequest
    from trainers.models import imagenet_networks  # noqa: F401  ChainerCV and what it imports
    from trainers.runs.memory import peak_memory, reset_peak

    cpu = chainer.get_device("@numpy")
    train(TrainRequest(recipe="digits/baseline"), 2, lambda: None)
    gc.collect()
    reset_peak()
    baseline, built = peak_memory(cpu)["resident_bytes"], []  # the peak is the resident set now

    def when_built() -> None:
        built.append(peak_memory(cpu)["resident_bytes"] - baseline)
        reset_peak()

    train(request_of(case, fast=fast), updates, when_built)
    return [peak_memory(cpu)["resident_bytes"] - baseline, *built]


def train(request: Any, updates: int, when_built: Callable[[], None]) -> None:
    """The first updates of a run on one rank; calls `when_built` before them."""
    from mpi4py import MPI

    from recipes.planning.stream import Stream
    from trainers import kernels
    from trainers.datasets.loader import StreamIterator
    from trainers.launch.request import prepare
    from trainers.training.build import build

    world, prepared = MPI.COMM_WORLD, prepare(request, workers=1)
    kernels.settle()
    recipe, dataset, plan = prepared.opened.recipe, prepared.opened.dataset, prepared.plan
    parts = build(recipe, dataset)
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train, repeats=recipe.stream.repeats)
    iterator = StreamIterator(plan=plan, rank=0, stream=stream, load=parts.load_train)
    updater = timing.updater_of(prepared, parts, iterator, world)
    when_built()
    for _ in range(updates):
        updater.update()
    updater.close()


def main() -> None:
    parser = timing.parser_of(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--fast", action="store_true", help="without exact mode")
    parser.add_argument("--measure", choices=CASES, help="measure this case in this process and print the bytes")
    options = parser.parse_args()
    if options.measure:
        print(*measured(options.measure, fast=options.fast, updates=options.updates))
        return
    limit_threads(threads=1)
    heads = (
        "model",
        "image",
        "micro-batch",
        "held",
        "activations",
        "workspace",
        "predicted",
        "measured",
        "off by",
        "building",
    )
    print(head(heads))
    figures = {}
    for case in options.cases:
        words = [sys.executable, __file__, "--measure", case, "--updates", str(options.updates)]
        done = subprocess.run([*words, *(["--fast"] if options.fast else [])], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        (peak, building), plan = map(int, done.stdout.split()), predicted(case, fast=options.fast)
        memory, (model, size, _) = plan["memory"], CASES[case]
        total, activations, workspace = (memory[f"{key}_bytes"] for key in ("total", "activations", "workspace"))
        megabytes = (f"{each / 1e6:.0f}" for each in (total - activations - workspace, activations, workspace, total))
        off = total / peak - 1
        cells = [f"{peak / 1e6:.0f}", f"{off:+.1%}", f"{building / 1e6:.0f}"]
        print(row([model, size, plan["micro_batch_size"], *megabytes, *cells]), flush=True)
        figures[case] = {**plan, "measured_bytes": peak, "building_bytes": building, "off": off}
    timing.write_json(options.json, figures)
    ratios = [1 + each["off"] for each in figures.values()]
    worst, spread = max(max(ratio, 1 / ratio) for ratio in ratios), TORCH_SPREAD if of_runs() == "torch" else SPREAD
    print(json.dumps({"kernels": of_runs(), "worst": round(worst, 3), "within": worst <= spread}))


if __name__ == "__main__":
    main()
