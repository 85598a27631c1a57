"""`kilobatch probe`: what this machine or allocation reaches, measured as a run would, as a cluster's file.

Compute is measured by training the recipe itself for some seconds on one rank and on all, so that input, kernels and
exact mode are those of a run. Links are measured by the run's own communicator. Every figure carries its source.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from recipes.errors import InputRefused
from recipes.planning.hardware import MeasuredAllReduce, Rate
from recipes.reading.open import OpenedRecipe
from recipes.reports.record import Run, open_run
from recipes.reports.wording import counted
from trainers.launch.train_command import train_words
from trainers.runs.errors import EXIT_STOPPED
from trainers.runs.memory import installed_bytes
from trainers.runs.mpi_ranks import find_mpiexec, killed_with_parent, users_environment
from trainers.runs.run_folder import METRICS
from trainers.runs.stop_request import handling_signals
from trainers.tasks.planning import rates_of
from trainers.tasks.timed_plan import BY_CHANCE

_WANTED_UPDATES = 8
_FEWEST_UPDATES = 2  # after the first, which warms up, where an update takes long
_ONE_STEP = 64  # samples a rank of a shorter update, in whole norm groups
_GRACE_SECONDS = 5.0  # for a run to end by itself
_RANKS_SECONDS = 300  # for all ranks to measure together, with their start
_DISK_BYTES = 64_000_000
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What is probed.

    Args:
        recipe, overrides, data, allow_code, device: as for training.
        workers: of the largest run, at least 1.
        seconds: of all training together; starts of ranks and the other measurements come on top.
        limit_seconds: of one run with its start; four of them and the links are less than five minutes. Where their
            rates exclude each other, the runs are made once more.
        tell: is called with a line for each measurement that begins.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    data: Path | None = None
    allow_code: bool = False
    device: str | None = None
    workers: int = 1
    seconds: float = 60.0
    limit_seconds: float = 60.0
    tell: Callable[[str], None] = lambda line: None


def _exit(number: int, frame: object) -> NoReturn:
    raise SystemExit(EXIT_STOPPED)


@handling_signals(_exit)
def probe(request: ProbeRequest, opened: OpenedRecipe) -> dict[str, Any]:
    """Measure this machine; returns the tree of a cluster's file.

    Raises:
        InputRefused: a run of the recipe failed; the message is its own.
        SystemExit: a signal asked for a stop. Its runs are ended, and their folders removed.
    """
    if opened.recipe.updater.local_steps is not None:  # its runs on one worker would be refused
        request = replace(request, overrides=(*request.overrides, "updater.local_steps=null"))
    began = datetime.datetime.now(datetime.UTC)
    source = f"kilobatch probe {request.recipe}, {began:%Y-%m-%d %H:%M} UTC, {platform.node()}"
    with tempfile.TemporaryDirectory(prefix="kilobatch-probe-") as folder:
        runs = list(_trained(request, opened, Path(folder)))
        rates = [replace(rate, source=f"{source}{one.reduced}") for one in runs for rate in one.rates(opened)]
        if (what := contradiction(rates)) is not None:
            request.tell(f"{what}: all once more")
            runs = list(_trained(request, opened, Path(folder) / "again"))
            rates = [replace(rate, source=f"{source}{one.reduced}") for one in runs for rate in one.rates(opened)]
            if (what := contradiction(rates)) is not None:
                request.tell(f"warning: {what}; the machine seems busy: probe again when it is not")
        request.tell("reading and writing a file of 64 MB")
        written, read = _disk(Path(folder))
    device = "gpu" if request.device == "gpu" else "cpu"
    tree = {
        "name": "probed",
        "title": f"{platform.node()}, probed",
        "source": source,
        "nodes": 1,
        "workers_per_node": request.workers,
        "device": device,
        "device_memory_bytes": installed_bytes() // request.workers if device == "cpu" else _gpu_bytes(),
        "hardware": {
            "source": source,
            "device": device,
            "algorithm": "ring",
            "rates": [_rate_tree(rate) for rate in rates],
            "start_seconds": round(statistics.median(one.start_seconds for one in runs), 2),
            "write_gb_per_second": float(f"{written:.3g}"),
            "input": {**_decoded(request, opened, device), "read_gb_per_second": float(f"{read:.3g}"),
                      "bytes_per_sample": rates[0].image_size**2 * opened.dataset.channels,  # at most: its pixels
                      "source": source},
            "variation": 0.0,
        },
    }  # fmt: skip
    request.tell("updates of all ranks, all-reduces, and both beside each other")
    return with_ranks(tree, _measured_by_ranks(request, runs[0].samples), request.recipe)


def contradiction(rates: Sequence[Rate]) -> str | None:
    """Two rates that exclude each other, in words; None where all can be true.

    A smaller micro-batch takes no longer than a larger one on as many devices, and a device does not train faster
    beside others than alone.

    >>> known = {"model": "SmallCNN", "image_size": 8, "source": "here"}
    >>> whole = Rate(micro_batch_size=256, samples_per_second=1000.0, **known)
    >>> contradiction([whole, Rate(micro_batch_size=128, samples_per_second=400.0, **known)])
    'a micro-batch of 128 took 320 ms, and one of 256 256 ms'
    >>> contradiction([whole, Rate(micro_batch_size=256, devices=2, samples_per_second=1900.0, **known)])
    """
    for one, other in itertools.permutations(rates, 2):
        if any(getattr(one, name) != getattr(other, name) for name in ("model", "image_size", "precision")):
            continue
        of_one, of_other = (
            1000 * rate.devices * rate.micro_batch_size / rate.samples_per_second for rate in (one, other)
        )
        small, large = one.micro_batch_size, other.micro_batch_size
        if one.devices == other.devices and small < large and of_one > BY_CHANCE * of_other:
            return f"a micro-batch of {small} took {of_one:.3g} ms, and one of {large} {of_other:.3g} ms"
        if one.devices > other.devices and small == large and of_other > BY_CHANCE * of_one:
            many, few = (counted(rate.devices, "rank") for rate in (one, other))
            return f"a micro-batch of {small} took {of_one:.3g} ms on {many}, and {of_other:.3g} ms on {few}"
    return None


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """One short run.

    Args:
        samples: of an update on each worker; None: those of the recipe.
        reduced: what is smaller than in a run of the recipe, to be added to a source; empty if nothing.
    """

    run: Run
    samples: int | None
    start_seconds: float
    scored_per_second: float | None
    reduced: str = ""

    def rates(self, opened: OpenedRecipe) -> Iterator[Rate]:
        for rate in rates_of(self.run, opened, fewest_updates=_FEWEST_UPDATES):
            yield replace(rate, scored_per_second=self.scored_per_second)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A short run: so many workers, for so many seconds.

    Args:
        micro_batch: its size; None: the run's own.
        samples: of an update on each worker; None: those of the recipe.
    """

    workers: int
    seconds: float
    micro_batch: int | None = None
    samples: int | None = None


def _trained(request: ProbeRequest, opened: OpenedRecipe, folder: Path) -> Iterator[_Trained]:
    """Runs on one rank, on all ranks, and on one rank with half the micro-batch where that is possible."""
    numbers = (1, request.workers) if request.workers > 1 else (1,)
    each = request.seconds / (len(numbers) + 1)
    span = opened.recipe.batch.norm_span.sizes[0]
    one_step = max(1, _ONE_STEP // span) * span
    first, samples = None, None
    for workers in numbers:
        request.tell(f"training on {workers} rank{'s' if workers > 1 else ''} for {each:.0f} s")
        case = _Case(workers=workers, seconds=each, samples=samples)
        made = _train(request, folder / str(workers), case)
        if made is None and samples is None:  # the next ones need not try
            samples = one_step
            request.tell(f"an update takes too long: again with updates of {samples} samples a rank")
            made = _train(request, folder / f"{workers}-one-step", replace(case, samples=samples))
        if made is None:
            what = f"{_FEWEST_UPDATES + 1} updates of {samples} samples a rank take over {request.limit_seconds:g} s"
            raise InputRefused(
                f"{what} on {workers} ranks; probe smaller images or a smaller batch.norm_span with --set"
            )
        first = first or made
        yield made
    segment = first.run.plan["segments"][0]
    half = segment["micro_batch_size"] // 2
    if half >= segment["norm_span"]:
        request.tell(f"training on 1 rank in micro-batches of {half} for {each:.0f} s")
        case = _Case(workers=1, seconds=each, micro_batch=half, samples=samples)
        if (made := _train(request, folder / "half", case)) is not None:
            yield made


def _train(request: ProbeRequest, folder: Path, case: _Case) -> _Trained | None:
    """One run, up to the limit; None if it made too few updates."""
    words = train_words(request.recipe, overrides=request.overrides, data=request.data, allow_code=request.allow_code)
    words += ["-n", str(case.workers), "--out", str(folder), "--checkpoint-every", "1000000ep"]
    words += ["--device", request.device] if request.device else []
    reduced = []
    if case.samples:
        words += ["--set", f"batch.global={case.workers * case.samples}"]
        reduced.append(f"in updates of {case.samples} samples a rank")
    words += ["--micro-batch-size", str(case.micro_batch)] if case.micro_batch else []
    began = time.time()
    with subprocess.Popen(
        killed_with_parent(words), env=users_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            while process.poll() is None and not _enough(folder / METRICS, case.seconds):
                if time.time() - began > request.limit_seconds:
                    break
                time.sleep(_POLL_SECONDS)
        finally:
            _end(process)
        said = process.stderr.read().decode(errors="replace").strip()
    number = len(_updates(folder / METRICS))
    ended = process.returncode in (0, EXIT_STOPPED, -signal.SIGKILL)
    if not ended:
        raise InputRefused(f"a run on {case.workers} ranks for the probe failed: {said[-2000:]}")
    if number <= _FEWEST_UPDATES:
        if process.returncode == 0:
            raise InputRefused(f"the recipe has {number} updates, too few for a rate; give it more epochs or data")
        return None
    if number <= _WANTED_UPDATES:
        reduced.append(f"over {number - 1} updates only")
    run = open_run(folder)
    return _Trained(
        run=run,
        samples=case.samples,
        start_seconds=_start_seconds(folder, began),
        scored_per_second=_scored(folder, run),
        reduced="".join(f", {each}" for each in reduced),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a run. It ends after its update; one that takes long is killed, and with it its ranks."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    finally:  # also after a second signal
        process.kill()


def _lines(metrics: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is being written."""
    text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1] if line]


def _updates(metrics: Path) -> list[dict[str, Any]]:
    return [line for line in _lines(metrics) if line["key"] == "train_loss"]


def _enough(metrics: Path, seconds: float) -> bool:
    updates = _updates(metrics)
    if len(updates) <= _WANTED_UPDATES:
        return False
    return (updates[-1]["time_ms"] - updates[0]["time_ms"]) / 1000 >= seconds


def _start_seconds(folder: Path, began: float) -> float:
    """From the command to the end of the first update, less the median update."""
    updates = _updates(folder / METRICS)
    usual = statistics.median(line["update_seconds"] for line in updates)
    return max(updates[0]["time_ms"] / 1000 - began - usual, 0.0)


def _scored(folder: Path, run: Run) -> float | None:
    """Samples of an evaluation on one rank a second, from the lines before and after evaluations; None without one."""
    found = []
    for before, after in itertools.pairwise(_lines(folder / METRICS)):
        if after["key"] == "eval_accuracy" and before["key"] in ("train_loss", "rank_seconds"):
            found.append(max((after["time_ms"] - before["time_ms"]) / 1000, 1e-3))
    if not found:
        return None
    return -(-run.dataset["num_eval"] // run.plan["workers"]) / statistics.median(found)


def _rate_tree(rate: Rate) -> dict[str, Any]:
    """A rate as it stands in a cluster's file, without defaults."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(rate).items()}
    plain["samples_per_second"] = float(f"{rate.samples_per_second:.6g}")
    if rate.scored_per_second is not None:
        plain["scored_per_second"] = float(f"{rate.scored_per_second:.4g}")
    return {name: value for name, value in plain.items() if value not in (None, [])}


def _disk(folder: Path) -> tuple[float, float]:
    """10^9 bytes a second that are written to a folder's disk and read from it, not from the system's cache."""
    file, block = folder / "block", os.urandom(_DISK_BYTES)
    began = time.perf_counter()
    with file.open("wb") as out:
        out.write(block)
        out.flush()
        os.fsync(out.fileno())
    written = time.perf_counter() - began
    with file.open("rb", buffering=0) as source:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        source.readall()
    return _DISK_BYTES / written / 1e9, _DISK_BYTES / (time.perf_counter() - began) / 1e9


def _decoded(request: ProbeRequest, opened: OpenedRecipe, device: str) -> dict[str, float]:
    """Samples that all cores decode and augment a second. On CPUs the rates of training have it in them."""
    if device == "cpu":
        return {}
    from trainers.datasets.input_rates import measure_input

    request.tell("reading, decoding and augmenting")
    rates = measure_input(opened.dataset, opened.recipe, target=1000.0, rounds=3, num_images=128)
    return {"decoded_per_second": float(f"{rates['stages']['whole batches']['all_cores']:.4g}")}


def _gpu_bytes() -> int:
    import cupy

    return int(cupy.cuda.runtime.memGetInfo()[1])


def _measured_by_ranks(request: ProbeRequest, samples: int | None) -> dict[str, Any]:
    """Start ranks on this machine that measure, see `measure_as_rank`."""
    words = [find_mpiexec(), "-n", str(request.workers), sys.executable, "-P", "-m", "kilobatch", "probe-ranks"]
    asked = {"recipe": request.recipe, "overrides": list(request.overrides), "allow_code": request.allow_code}
    asked |= {"data": request.data and str(request.data), "device": request.device}
    asked["overrides"] += [f"batch.global={request.workers * samples}"] if samples else []
    words.append(json.dumps(asked))
    try:
        done = subprocess.run(
            killed_with_parent(words),
            env=users_environment(),
            capture_output=True,
            text=True,
            timeout=_RANKS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        what = f"the ranks that measure together take over {_RANKS_SECONDS} s"
        raise InputRefused(f"{what}; probe with fewer of them (-n), or a smaller model with --set") from None
    if done.returncode:
        raise InputRefused(f"the ranks that measure together failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure_as_rank(request: ProbeRequest, mpi: Any) -> dict[str, Any]:
    """What the ranks of `mpi` reach together, all of which call this; see `RankProbe.as_tree`."""
    import trainers.compat  # noqa: F401  isort: skip
    from trainers.launch.request import TrainRequest, prepare
    from trainers.tasks.probe_ranks import RankProbe, silent_updater

    updater = None
    if request.device != "gpu":
        asked = TrainRequest(
            recipe=request.recipe,
            overrides=request.overrides,
            data=request.data,
            allow_code=request.allow_code,
            exact=False,
        )
        updater = silent_updater(prepare(asked, workers=mpi.size), mpi)
    ranks = RankProbe(mpi, updater)
    ranks.measure()
    tree = ranks.as_tree()
    ranks.close()
    if updater is not None:
        updater.close()
    return tree


def with_ranks(tree: dict[str, Any], measured: dict[str, Any], recipe: str) -> dict[str, Any]:
    """A cluster's file with what ranks measured together, and the link in a node or the network that it shows.

    Args:
        tree: of the file that `probe` wrote on one host.
        measured: see `RankProbe.as_tree`.
        recipe: that they trained.
    Raises:
        InputRefused: the ranks are not spread evenly over the nodes, or fewer on each than one.

    The network's bandwidth is what the all-reduce reached, so its line rate is given as the same.
    """
    workers, nodes = measured["workers"], measured["nodes"]
    if workers % nodes:
        raise InputRefused(f"{workers} ranks on {nodes} nodes: start as many on each node")
    now = datetime.datetime.now(datetime.UTC)
    ranks = f"{counted(workers, 'rank')} of {counted(nodes, 'node')}"
    source = f"kilobatch probe {recipe} on {ranks}, {now:%Y-%m-%d %H:%M} UTC, {platform.node()}"
    hardware, inside = dict(tree["hardware"]), tree["hardware"].get("node_link", {}).get("latency_us", 0.0)
    for name in ("all_reduces", "rates"):
        kept = hardware.get(name, [])
        scored = [each["scored_per_second"] for each in kept if "scored_per_second" in each]
        more = {"scored_per_second": scored[-1]} if name == "rates" and scored else {}
        new = [{**each, **more, "source": source} for each in measured[name]]
        hardware[name] = [*(each for each in kept if _of_ranks(each) not in map(_of_ranks, new)), *new]
    made = {**tree, "nodes": nodes, "workers_per_node": workers // nodes, "hardware": hardware}
    if workers == 1:
        return made
    first = measured["all_reduces"][0]
    latency_us, gb_per_second = fitted_link(
        MeasuredAllReduce(
            workers=workers, nodes=nodes, bytes_=tuple(first["bytes"]), milliseconds=tuple(first["milliseconds"])
        )
    )
    speed = float(f"{gb_per_second:.3g}")
    if nodes == 1:
        latency = {"latency_us": float(f"{latency_us:.3g}"), "source": source}
        hardware["node_link"] = {"kind": "shared_memory", "gb_per_second": speed, **latency}
    else:
        within = (workers - nodes) * inside  # of the 2(P-1) hops 2(N-1) cross nodes
        crossing = max((latency_us * (workers - 1) - within) / (nodes - 1), 0.01)
        hardware["network"] = {
            "transport": "rdma" if any(Path("/sys/class/infiniband").glob("*")) else "tcp",
            "gbit_per_second": float(f"{8 * gb_per_second:.3g}"),
            "measured_gb_per_second": speed,
            "latency_us": float(f"{crossing:.3g}"),
            "source": source,
        }
    return made


def _of_ranks(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What an entry of `all_reduces` or `rates` is of: a later one of the same takes its place."""
    names = ("workers", "wire", "model", "image_size", "precision", "micro_batch_size", "devices", "exchanged")
    return tuple(entry.get(name) for name in names)


def fitted_link(timed: MeasuredAllReduce) -> tuple[float, float]:
    """Microseconds of a hop, and 10^9 bytes a second, of a ring that takes the time of the smallest and largest buffer.

    >>> fitted_link(MeasuredAllReduce(workers=2, nodes=1, bytes_=(1000, 1_001_000), milliseconds=(0.021, 1.021)))
    (10.0, 1.0)
    """
    workers = timed.workers
    hops, moved = 2 * (workers - 1), 2 * (workers - 1) / workers
    sizes, seconds = timed.bytes_, [value / 1000 for value in timed.milliseconds]
    slope = max((seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]), 2e-13)  # 10,000 GB/s, the most of a file
    latency = max((seconds[0] - slope * sizes[0]) / hops, 1e-8)
    return round(latency * 1e6, 6), round(moved / slope / 1e9, 6)


def cluster_text(tree: dict[str, Any]) -> str:
    """The cluster's file."""
    head = "# Written by `kilobatch probe`. A run uses it by --cluster with this file's path.\n"
    return head + yaml.safe_dump(tree, sort_keys=False, width=110, allow_unicode=True)
