"""ResNet-50, forward and backward: our kernels beside stock Chainer and PyTorch, on the same images and weights.

    chainer    ChainerCV's network, Chainer 7.8.1's own functions (with the patches that it needs to import at all)
    numpy      the same network and loop; `--kernels numpy`
    torch      the same; `--kernels torch`
    pytorch    the network of scripts/resnet50_in_torch.py, channels_last
    +groups    added to one of the first three: normalised as `kilobatch train` does, one norm group of the whole batch
    +update    a whole update instead: of ours that of `kilobatch train` on one rank, all but loading; of PyTorch the
               step of its SGD as well, with goyal2017's momentum and decay

Each program is a process of its own, with all cores, and they take turns step by step: what else the machine does meets
all alike. A step is forward, loss and backward of one batch; the optimizer is left out. Updates are compared with
updates. Reported are medians, the
ratio of each to the first program named in --against, and its smallest and largest in a round. Before that the losses
of the first step are compared: they must be those of one network. Memory is the most that a process ever had.

`--clock cpu` counts processor time of all threads, which other processes change less: for OMP_NUM_THREADS=1, since
threads that wait for others spin.

`--device gpu` measures the programs of scripts/resnet50_on_gpu.py instead, at each --precision and --batch: by CUDA
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from resnet50_in_chainer import chainer_model, groups_of, update_of

import trainers  # noqa: F401  patches Chainer
from trainers.launch import limit_threads

PAUSE_SECONDS = 0.3  # before a step, for threads of the program before that still wait for work
SAME_LOSS = 1e-4  # relative, in float32, of networks of 50 layers
OURS = {"chainer": ("numpy",), "pytorch": ("torch",)}  # what is measured against what
WAY_OUT = "bench_resnet50: no PyTorch here: pip install 'kilobatch[torch]', or --against chainer on the CPU"


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
    from resnet50_in_torch import ResNet50, optimizer_of, take_weights

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = ResNet50()
    take_weights(model, {path: parameter.array for path, parameter in chainer_model().namedparams()})
    model = model.to(memory_format=torch.channels_last).train()
    x = torch.from_numpy(images).contiguous(memory_format=torch.channels_last)
    t = torch.from_numpy(labels).long()
    update = optimizer_of(model).step if how.endswith("+update") else lambda: None

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), t)
        loss.backward()
        update()
        return loss.item()

    return step


STEPS = {"chainer": chainer_step, "numpy": chainer_step, "torch": chainer_step, "pytorch": pytorch_step}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def serve(name: str, options: argparse.Namespace) -> None:
    """Run as one of the programs: a step for each line of stdin, its seconds and loss on stdout; or its kernels."""
    import numpy as np

    (batch,), side, clock = options.batch, options.side, CLOCKS[options.clock]
    random = np.random.RandomState(0)
    images = random.normal(size=(batch, 3, side, side)).astype(np.float32)
    labels = random.randint(0, 1000, batch).astype(np.int32)
    if options.device == "gpu":
        from resnet50_on_gpu import by_class, timed

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
            sys.exit(f"bench_resnet50: a program ended with {self.process.returncode}")
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
        said = f"bench_resnet50: these are not the same networks, their first losses are {first}"
        print(said) if on_gpu else sys.exit(said)
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(options.rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
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
        cells = [str(found["batch"]), name, f"{statistics.median(seconds):.3f}"]
        for other in (f"{one}+update" if name.endswith("+update") else one for one in against):
            if other not in found["seconds"]:
                cells.append("")
                continue
            ratios = [theirs / own for theirs, own in zip(found["seconds"][other], seconds, strict=True)]
            middle = statistics.median(found["seconds"][other]) / statistics.median(seconds)
            cells.append("" if name == other else f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        lines.append("| " + " | ".join([*cells, f"{found['peak_bytes'][name] / 2**30:.2f}"]) + " |")
    return lines


def main() -> None:
    """Measure the programs at every batch, or run as one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures here")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = limit_threads()
    if options.serve:
        serve(options.serve, options)
        return
    if (options.device == "gpu" or "pytorch" in options.against) and find_spec("torch") is None:
        sys.exit(WAY_OUT)
    if options.device == "gpu":
        from resnet50_on_gpu import bench

        results = bench(options, measure)
    else:
        results = bench_on_cpu(options, threads)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def bench_on_cpu(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """Measure at every batch and print the table."""
    ours = [name for other in options.against for name in OURS[other]]
    names = [*options.against, *ours, *(f"{name}+groups" for name in ours if options.groups)]
    names += [f"{name}+update" for name in ("pytorch", *ours) if options.update and name in names]
    heads = ["batch", "program", "s a step", *(f"times as fast as {other}" for other in options.against), "GiB"]
    print(f"{threads} thread(s), images of {options.side}x{options.side}\n\n| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|", flush=True)
    results = []
    for batch in options.batch:
        results.append(measure(names, batch, options))
        print("\n".join(table_lines(results[-1], options.against)), flush=True)
    return results


if __name__ == "__main__":
    main()
