"""ResNet-50, forward and backward: our kernels beside stock Chainer and PyTorch, on the same images and weights.

    chainer    ChainerCV's network, Chainer 7.8.1's own functions (with the patches that it needs to import at all)
    numpy      the same network and loop; `--kernels numpy`
    torch      the same; `--kernels torch`
    pytorch    the network of `pytorch_network` in resnet50_programs.py, channels_last
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

`--device gpu` measures the programs on a GPU instead, at each --precision and --batch: by CUDA events around some
steps, images on the GPU from the start. Its second table has milliseconds by class of kernels, and
the third what a step takes at least, by the operations and by the bytes of its kernels and by what the GPU was just
seen to do with them. `--compile` adds torch.compile, which takes a minute for each batch and precision.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

from timing import CLOCKS, head, in_turns, parser_of, ratios, row, write_json

import trainers  # noqa: F401  patches Chainer
from trainers.runs.mpi_ranks import limit_threads

PAUSE_SECONDS = 0.3  # before a step, for threads of the program before that still wait for work
SAME_LOSS = 1e-4  # relative, in float32, of networks of 50 layers
OURS = {"chainer": ("numpy",), "pytorch": ("torch",)}  # what is measured against what


def serve(name: str, options: argparse.Namespace) -> None:
    """Run as one of the programs: a step for each line of stdin, its seconds and loss on stdout; or its kernels."""
    import numpy as np
    import resnet50_programs as programs

    (batch,), side, clock = options.batch, options.side, CLOCKS[options.clock]
    random = np.random.RandomState(0)
    images = random.normal(size=(batch, 3, side, side)).astype(np.float32)
    labels = random.randint(0, 1000, batch).astype(np.int32)
    if options.device == "gpu":
        importlib.import_module("torch" if name.startswith("pytorch") else "cupy")
        measured = None  # made at the first request
    else:
        step = (programs.pytorch_step if name.startswith("pytorch") else programs.chainer_step)(name, images, labels)

        def measured() -> dict[str, float]:
            began = clock()
            loss = step()
            seconds = clock() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            return {"seconds": seconds, "loss": loss, "peak_bytes": peak}

    span = options.norm_span or len(images)
    for line in sys.stdin:
        measured = measured or programs.timed(name, options.precision[0], images, labels, span)
        try:
            figures = programs.by_class(measured.step) if line.strip() == "kernels" else measured()
        except Exception as error:
            if line.strip() != "kernels":
                raise
            print(f"{name}: no kernels counted: {error}", file=sys.stderr)
            figures = {}
        print(json.dumps(figures), flush=True)


class Program:
    """A process that does a step on request."""

    def __init__(self, name: str, batch: int, options: argparse.Namespace, precision: str = "float32") -> None:
        kernels = {"KILOBATCH_KERNELS": name.partition("+")[0]} if not name.startswith("pytorch") else {}
        command = [sys.executable, __file__, "--serve", name, "--batch", str(batch), "--side", str(options.side)]
        command += ["--clock", options.clock, "--device", options.device, "--precision", precision]
        command += ["--norm-span", str(options.norm_span or batch)]
        self.process = subprocess.Popen(
            command, env={**os.environ, **kernels}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

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
        self.process.stdin.close()
        self.process.wait()


def measure(
    names: list[str], batch: int, options: argparse.Namespace, precision: str = "float32", same: float = SAME_LOSS
) -> dict[str, Any]:
    """Seconds of every program in every round, after one step that is not counted.

    On a GPU one program after the other, since several do not fit in its memory; each starts when its turn comes: its
    imports would slow the one that is measured. What fails is left out, since the machine is lent.
    """
    on_gpu = options.device == "gpu"
    first: dict[str, float] = {}
    steps: dict[str, list[dict[str, float]]] = {}
    kernels: dict[str, Any] | None = {} if on_gpu else None
    for beside in [[name] for name in names] if on_gpu else [names]:
        began = time.perf_counter()
        programs = {name: Program(name, batch, options, precision) for name in beside}
        try:
            first |= {name: program.step()["loss"] for name, program in programs.items()}
            ready = time.perf_counter() - began
            for number in range(options.rounds):
                for name in in_turns(beside, number):
                    time.sleep(PAUSE_SECONDS)
                    steps.setdefault(name, []).append(programs[name].step())
            if on_gpu:  # each at once: what comes later may be cut off
                (name,), milliseconds = beside, 1e3 * statistics.median(step["seconds"] for step in steps[beside[0]])
                times = f"{milliseconds:.2f} ms, {1e3 * batch / milliseconds:.0f} images/s"
                print(f"{precision}, batch {batch}, {name}: {times}; ready after {ready:.0f} s", flush=True)
                kernels[name] = programs[name].step("kernels")
        except SystemExit as failed:
            if not on_gpu:
                raise
            print(f"{beside[0]}, batch {batch}, {precision}: {failed}", flush=True)
            steps.pop(beside[0], None)
        for program in programs.values():
            program.end()
    loss = next(iter(first.values()), 0)
    if not all(abs(other - loss) <= same * abs(loss) for other in first.values()):
        message = f"resnet50: these are not the same networks, their first losses are {first}"
        print(message) if on_gpu else sys.exit(message)
    return {
        "batch": batch,
        "side": options.side,
        "precision": precision,
        "norm_span": options.norm_span or batch,
        "clock": "events" if on_gpu else options.clock,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "first_loss": first,
        "seconds": {name: [step["seconds"] for step in done] for name, done in steps.items()},
        "peak_bytes": {name: max(step["peak_bytes"] for step in done) for name, done in steps.items()},
        "kernels": kernels,
    }


def table_lines(figures: dict[str, Any], against: list[str]) -> list[str]:
    """Lines of the table in Markdown: how many times as fast as each of `against`."""
    lines = []
    for name, seconds in figures["seconds"].items():
        cells = [figures["batch"], name, f"{statistics.median(seconds):.3f}"]
        for other in (f"{one}+update" if name.endswith("+update") else one for one in against):
            theirs = figures["seconds"].get(other)
            if theirs is None or name == other:
                cells.append("")
                continue
            each, middle = ratios(theirs, seconds), statistics.median(theirs) / statistics.median(seconds)
            cells.append(f"{middle:.2f} ({min(each):.2f} to {max(each):.2f})")
        lines.append(row([*cells, f"{figures['peak_bytes'][name] / 2**30:.2f}"]))
    return lines


def selected(names: list[str], options: argparse.Namespace) -> list[str]:
    """The programs that `--only` names, or all."""
    if unknown := set(options.only or ()) - {*names}:
        sys.exit(f"resnet50: --only {' '.join(sorted(unknown))}: with these options there are {', '.join(names)}")
    return [name for name in names if not options.only or name in options.only]


def measure_on_cpu(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    ours = [name for other in options.against for name in OURS[other]]
    names = [*options.against, *ours, *(f"{name}+groups" for name in ours if options.groups)]
    names += [f"{name}+update" for name in ("pytorch", *ours) if options.update and name in names]
    names = selected(names, options)
    heads = ["batch", "program", "s a step", *(f"times as fast as {other}" for other in options.against), "GiB"]
    print(f"{threads} thread(s), images of {options.side}x{options.side}\n\n{head(heads)}", flush=True)
    results = []
    for batch in options.batch:
        results.append(measure(names, batch, options))
        print("\n".join(table_lines(results[-1], options.against)), flush=True)
    return results


def measure_on_gpu(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure at every precision and batch, and print the tables last."""
    from resnet50_programs import ceilings, floors

    results, ceiling = [], ceilings()
    for precision in options.precision:
        for batch in options.batch:
            names = ["pytorch", *(["pytorch+compile"] if options.compile else []), "cudnn+groups"]
            names += ["pytorch+graph", "cudnn+groups+graph"] if options.graph else []
            if options.update:
                names += ["pytorch+update", "cudnn+update", *(["cudnn+update+graph"] if options.graph else [])]
            names = selected(names, options)
            same = {"float32": 1e-4, "tf32": 1e-2}.get(precision, 3e-2)  # of losses near 7
            results.append(measure(names, batch, options, precision, same))
            results[-1]["floors"] = floors(batch, options.side, precision, ceiling)
            print("\n".join(table_lines_of_gpu(results[-1])), flush=True)
    rates = ", ".join(f"{name} {rate / 1e12:.1f} T/s" for name, rate in ceiling.items())
    print(f"\ncopy and matrix products of this GPU: {rates}\n")
    print(head(["precision", "batch", "program", "ms by class (kernels)"]))
    for figures in results:
        for name, classes in figures["kernels"].items():
            largest = sorted(classes.items(), key=lambda item: -item[1][0])
            each = ", ".join(f"{kind} {milliseconds:.2f} ({count})" for kind, (milliseconds, count) in largest)
            print(row([figures["precision"], figures["batch"], name, each]))
    heads = ["precision", "batch", "program", "ms", "images/s", "of PyTorch's", "GiB", "floor: operations", "bytes"]
    print(f"\n{head(heads)}")
    for figures in results:
        print("\n".join(table_lines_of_gpu(figures)))
    return results


def table_lines_of_gpu(figures: dict[str, Any]) -> list[str]:
    """Lines of the table in Markdown: how many times as fast as PyTorch, and what a step takes at least."""
    seconds = {name: statistics.median(each) for name, each in figures["seconds"].items()}
    by_operations, by_bytes = (f"{1e3 * floor:.1f} ms" for floor in figures["floors"])
    lines = []
    for name, one in seconds.items():
        other = "pytorch+update" if "+update" in name else "pytorch"
        cells = [figures["precision"], figures["batch"], name, f"{1e3 * one:.2f}", f"{figures['batch'] / one:.0f}"]
        cells += [f"{seconds[other] / one:.2f}" if other in seconds else ""]  # it may have failed
        lines.append(row([*cells, f"{figures['peak_bytes'][name] / 2**30:.1f}", by_operations, by_bytes]))
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
    parser.add_argument("--norm-span", type=int, help="on a GPU: images of a norm group of +groups; the whole batch")
    parser.add_argument("--compile", action="store_true", help="on a GPU: torch.compile as well")
    parser.add_argument("--graph", action="store_true", help="on a GPU: ours and PyTorch's as CUDA graphs as well")
    parser.add_argument("--only", nargs="+", metavar="PROGRAM", help="measure these programs alone")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = limit_threads()
    if options.serve:
        serve(options.serve, options)
        return
    if (options.device == "gpu" or "pytorch" in options.against) and find_spec("torch") is None:
        sys.exit("resnet50: no PyTorch here: in the checkout, pip install '.[torch]', or --against chainer on the CPU")
    results = measure_on_gpu(options) if options.device == "gpu" else measure_on_cpu(options, threads)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
