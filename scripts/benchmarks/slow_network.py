"""Seconds an update on slow links, by how gradients are exchanged: suzuki2018's table in miniature. Needs root.

    .venv/bin/python scripts/benchmarks/slow_network.py
    .venv/bin/python scripts/benchmarks/slow_network.py --ranks 2 --megabits 100 --ratios 1 --rounds 5 --json F
    .venv/bin/python scripts/benchmarks/slow_network.py --allreduce

Each rank is in a network namespace of its own, behind a link that the kernel throttles, with one BLAS thread and, where
there are enough, a core of its own. A small convolutional network is trained on digits, at
batches for which sending its gradients as float32 takes 0.5, 1 and 2 times as long as computing them: both are measured
first. Then, at each of these batches:

    compute    no exchange at all: the Dummy communicator
    none       all gradients at once after the backward pass
    buckets    each bucket, an eighth of the bytes or one large weight, as soon as the backward pass has finished it
    double     double buffering: all travel while the next update is computed, which is other mathematics

the last three with float32 and with float16 on the wire, around a ring of sockets. The ways take turns in the same
processes, the first another one each time: one update to begin with, then `--updates` of them timed, on the slowest
rank. The table has medians over the rounds. `hidden` is 1 - (time - compute) / (none - compute), of the same wire, and
in the last column of float32's none, as suzuki2018 counts both together; each difference is the median over the rounds.

In each round the ranks also probe, by the code of `kilobatch probe` (`RankProbe`): all-reduces on each wire, and those
beside compute; and right before each way some updates without an exchange. What was probed up to then makes a cluster's
file, and a plan with that file predicts the way that is trained next. The second table sets it beside the times.

With `--allreduce` it times instead what `allreduce.py` does, between such hosts: our algorithms beside MPI's own
flat all-reduce (`MpiAllreduce, whole`) and, where torch is installed, gloo; unthrottled where `--megabits` is 0.

More ranks than cores wait for each other's turn on a core.

The network: every host is a network namespace with one link to a bridge. The bridge and mpiexec are in a namespace of
their own, so the machine's own network is left alone. Both ends of each link have a token bucket filter (`tc qdisc ...
tbf`): a host sends and receives at most at that rate, at the same time, like a port of a switch. There is no added
delay. Packets are jumbo frames: a network card cuts and joins small ones by itself, here the cores that
compute would do it. Ranks of different hosts share no memory as far as MPI knows, and must not: UCX_TLS=tcp,self. The
namespaces are always removed, also after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import allreduce
from timing import Replay, as_rank, head, in_turns, load_shares, parser_of, row, write_json

from trainers.runs.mpi_ranks import find_mpiexec, launched_ranks

RECIPE = "digits/baseline"
MODEL = "{kind: SmallCNN, width: 96}"
NUM_TRAIN = 1500  # of digits
COMPUTE, NONE = "compute", "none"  # no exchange at all; all at once after the backward pass
WAYS, WIRES = (NONE, "buckets", "double"), ("float32", "float16")
CALIBRATION_SIZES = (32, 370)  # samples of an update on a rank
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
HUB_ADDRESS = "10.99.0.254"
BURST_BYTES = 65536
_DELETIONS = 20  # tried, a tenth of a second apart
JUMBO = 9000  # bytes of a packet
BLANK = {  # a cluster's file before a probe
    "name": "slow",
    "device": "cpu",
    "device_memory_bytes": 10**9,
    "hardware": {"device": "cpu", "algorithm": "ring", "variation": 0.0, "source": "nobody"},
}
TIMEOUT_SECONDS = 1800.0  # of one launch
HEADS = ("ranks", "Mbit/s", "ratio", "wire", COMPUTE, *WAYS, "hidden by buckets", "by double", "of float32's")


def address_of(host: int) -> str:
    return f"10.99.0.{host + 1}"


def throttle_of(device: str, megabits: int) -> list[str]:
    """The command that limits the rate at which a device sends."""
    limit = max(2 * BURST_BYTES, megabits * 125_000 // 25)  # what is queued leaves within 40 ms
    words = f"tc qdisc add dev {device} root tbf rate {megabits}mbit burst {BURST_BYTES} limit {limit}"
    return words.split()


def why_not() -> str | None:
    """Why such a network is impossible here; None if it is possible."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    try:
        with SlowNetwork(hosts=1, megabits=100):
            pass
    except NetworkRefused as error:
        return str(error)
    return None


class NetworkRefused(RuntimeError):
    """The kernel, or its owner, does not let us make such a network."""


class SlowNetwork:
    """A context with these hosts; on leaving it, also after Ctrl-C or SIGTERM, all of them are removed.

    Args:
        hosts: how many, at least 1.
        megabits: a second on each link in each direction; None for no throttle.
    Raises:
        NetworkRefused: on entering, with what the kernel said.
    """

    def __init__(self, *, hosts: int, megabits: int | None) -> None:
        self.hosts, self.megabits = hosts, megabits
        self.hub = f"kilobatch-{os.getpid()}-hub"
        self.names = [f"kilobatch-{os.getpid()}-{host}" for host in range(hosts)]

    def __enter__(self) -> SlowNetwork:
        self._before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="kilobatch-network-")
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would leave the rest
        for name in (*self.names, self.hub):
            if (trouble := _removed(name)) is not None:
                print(f"slow_network: {name} is left: {trouble}; ip netns delete {name}", file=sys.stderr)
        self._folder.cleanup()
        for number, handler in (*self._before.items(), (signal.SIGINT, interrupt)):
            signal.signal(number, handler)

    def run(self, words: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 600) -> None:
        """Run a command as one rank on each host, under mpiexec.

        Raises:
            subprocess.CalledProcessError, subprocess.TimeoutExpired: it failed or took too long.
        """
        command = ["ip", "netns", "exec", self.hub, find_mpiexec(), "-launcher", "ssh"]
        command += ["-launcher-exec", str(self._login), "-localhost", HUB_ADDRESS]
        command += ["-hosts", ",".join(map(address_of, range(self.hosts))), "-ppn", "1", "-n", str(self.hosts), *words]
        variables = {**os.environ, **(environment or {}), "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
        subprocess.run(command, check=True, env=variables, timeout=timeout, start_new_session=True)

    def _build(self) -> None:
        _do("ip", "netns", "add", self.hub)
        inside = ["ip", "netns", "exec", self.hub]
        _do(*inside, "ip", "link", "add", "bridge", "type", "bridge")
        _do(*inside, *f"ip address add {HUB_ADDRESS}/24 dev bridge".split())
        for device in ("lo", "bridge"):
            _do(*inside, *f"ip link set {device} up".split())
        for host, name in enumerate(self.names):
            port, own, mtu = f"port{host}", ["ip", "netns", "exec", name], f"mtu {JUMBO}"
            _do("ip", "netns", "add", name)
            _do(*inside, *f"ip link add {port} {mtu} type veth peer name eth0 {mtu} netns {name}".split())
            _do(*inside, *f"ip link set {port} master bridge up".split())
            _do(*own, *f"ip address add {address_of(host)}/24 dev eth0".split())
            for device in ("lo", "eth0"):
                _do(*own, *f"ip link set {device} up".split())
            if self.megabits is not None:
                _do(*own, *throttle_of("eth0", self.megabits))
                _do(*inside, *throttle_of(port, self.megabits))
        self._login = Path(self._folder.name, "login")
        self._login.write_text(login_script(self.names), encoding="utf-8")
        self._login.chmod(0o755)


def login_script(names: Sequence[str]) -> str:
    """A replacement for ssh, called with options, a host's address and a command, run in the host's namespace."""
    cases = "\n".join(f"    {address_of(host)}) name={shlex.quote(name)} ;;" for host, name in enumerate(names))
    return f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in
{cases}
    *) echo "no host $1" >&2; exit 1 ;;
esac
shift
exec ip netns exec "$name" sh -c "$*"
"""


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise NetworkRefused(f"{shlex.join(words)}: {done.stderr.strip() or done.returncode}")


def _removed(name: str) -> str | None:
    """Kill what runs in a namespace and delete it with its links and filters; returns why that failed."""
    for _ in range(_DELETIONS):
        for process in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        done = subprocess.run(["ip", "netns", "delete", name], capture_output=True, text=True)
        if done.returncode == 0 or not Path("/run/netns", name).exists():
            return None
        time.sleep(0.1)
    return done.stderr.strip()


def _stop(number: int, frame: object) -> None:
    sys.exit(128 + number)


def take_core(rank: int, size: int) -> None:
    """Pin this rank to a core of its own, if the machine has as many cores as ranks."""
    cores = sorted(os.sched_getaffinity(0))
    if size <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})


class Trained:
    """The small network that is trained; all ranks make it together.

    Args:
        world: all ranks.
        samples: of an update on a rank.
        way: one of WAYS, or COMPUTE: how gradients are exchanged.
        wire: on which wire.
    """

    def __init__(self, world: Any, *, samples: int, way: str, wire: str = "float32") -> None:
        from recipes.planning.cluster import GradientExchange
        from trainers.communicators import Dummy, Ring
        from trainers.launch.request import TrainRequest, prepare
        from trainers.models.batch_norm import NormGroups
        from trainers.training.build import build, build_exchange
        from trainers.training.updater import RecipeUpdater

        doubled = way == "double"
        batch = f"batch={{global: {samples * world.size}, norm_span: {samples}}}"
        doubling = f"updater.double_buffering={str(doubled).lower()}"
        overrides = (f"model={MODEL}", batch, "learning_rate.reference=0.001", doubling)
        prepared = prepare(TrainRequest(recipe=RECIPE, overrides=overrides, exact=False), workers=world.size)
        parts = build(prepared.opened.recipe, prepared.opened.dataset)
        groups = NormGroups(prepared.opened.recipe.evaluation)
        groups.install(parts.model)
        settings = GradientExchange(
            communicator=Dummy() if way == COMPUTE else Ring(sockets=True),
            wire=wire,
            bucket_bytes=allreduce.WHOLE if way == NONE else "auto",
            overlap=way != NONE,
        )
        self._world, self._prepared, self._settings, self._silent = world, prepared, settings, way == COMPUTE
        self.exchange = build_exchange(settings, parts, world, recipe=prepared.opened.recipe)
        self._updater = RecipeUpdater(
            {"main": Replay(load_shares(prepared, world.rank, 2))},
            parts.optimizer,
            loss=parts.loss,
            plan=prepared.plan,
            exchange=self.exchange,
            mpi=world,
            norm_groups=groups,
        )

    def seconds(self, updates: int) -> float:
        """Seconds an update on the slowest rank, after one update that is not counted."""
        self._world.Barrier()
        self._updater.update()
        seconds = self._slowest(lambda: [self._updater.update() for _ in range(updates)])
        self._updater.pending_arrays()  # nothing is on its way when the next one takes its turn
        return seconds / updates

    def probe(self) -> Any:
        """The probe of `kilobatch probe` for such updates."""
        from trainers.communicators import Ring
        from trainers.tasks.probe_ranks import RankProbe, silent_updater

        whole = self.exchange.flat.values.nbytes
        sizes = tuple(whole // 4**power // 4 * 4 for power in (4, 3, 2, 1))
        silent = silent_updater(self._prepared, self._world)
        return RankProbe(self._world, silent, communicator=Ring(sockets=True), sizes=sizes)

    def predicted(self, tree: dict[str, Any]) -> float:
        """Seconds of an update by a plan on the cluster of a file."""
        from recipes import open_cluster
        from recipes.planning.forecast import forecast
        from trainers.launch.vocabulary import vocabulary
        from trainers.tasks.probe import cluster_text

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "probed.yaml")
            file.write_text(cluster_text(tree), encoding="utf-8")
            cluster = replace(open_cluster(str(file), vocabulary=vocabulary()), exchange=self._settings)
        plan = replace(self._prepared.plan, cluster=cluster)
        update = forecast(plan).segments[0].update
        return float(update.compute if self._silent else update.total)

    def communication_seconds(self) -> float:
        """Of one exchange of all gradients, nothing else going on."""
        self._world.Barrier()
        return self._slowest(lambda: self.exchange.begin(scale=1.0).finish())

    def close(self) -> None:
        """Give memory, thread and communicators back; all ranks together."""
        self.exchange.close()

    def _slowest(self, call: Callable[[], object]) -> float:
        from mpi4py import MPI

        began = time.perf_counter()
        call()
        return self._world.allreduce(time.perf_counter() - began, op=MPI.MAX)


def calibrate(world: Any) -> tuple[int, float, tuple[float, float]]:
    """Measure what a batch is chosen from; all ranks call this together, and each has its own figures.

    Returns:
        gradient bytes of a rank; seconds of one exchange of them as float32, nothing else going on; seconds of an
        update of each of CALIBRATION_SIZES without any exchange.
    """

    def median_of_7(seconds: Callable[[], float]) -> float:
        seconds()  # not counted
        return statistics.median(seconds() for _ in range(7))

    trained = Trained(world, samples=1, way=NONE)
    num_bytes, communication = trained.exchange.flat.values.nbytes, median_of_7(trained.communication_seconds)
    trained.close()
    compute = []
    for size in CALIBRATION_SIZES:
        trained = Trained(world, samples=size, way=COMPUTE)
        compute.append(median_of_7(functools.partial(trained.seconds, 2)))
        trained.close()
    return num_bytes, communication, (compute[0], compute[1])


def samples_at(ratio: float, *, communication: float, compute: tuple[float, float]) -> int:
    """Samples of an update on a rank, at least 1, for which communication takes `ratio` times as long as computing.

    Args:
        communication, compute: seconds, see `calibrate`.

    >>> samples_at(1.0, communication=0.5, compute=(0.1, 0.38))  # on the line through both sizes
    515
    """
    (few, many), (first, last) = CALIBRATION_SIZES, compute
    each = max((last - first) / (many - few), 1e-9)
    return max(1, round(few + (communication / ratio - first) / each))


def hidden(seconds: Sequence[float], none: Sequence[float], compute: Sequence[float]) -> float:
    """The share of the communication that computation hides, from times by round.

    >>> hidden([1.1, 2.2], none=[2.0, 3.0], compute=[1.0, 2.0])
    0.85
    """
    rest, whole = (statistics.median(map(operator.sub, times, compute)) for times in (seconds, none))
    return round(1 - rest / whole, 12)


def measure(options: argparse.Namespace, world: Any) -> list[dict[str, Any]]:
    """Times of every way at every ratio on the ranks that were launched; all of them call this together."""
    from trainers.tasks.probe import with_ranks

    take_core(world.rank, world.size)  # hosts share none
    gradient_bytes, communication, compute = calibrate(world)
    figures = []
    for ratio in options.ratios:
        samples = world.bcast(samples_at(ratio, communication=communication, compute=compute))
        samples = min(samples, NUM_TRAIN // world.size)  # an update has no more samples than the data
        trained = {COMPUTE: Trained(world, samples=samples, way=COMPUTE)}
        for wire in WIRES:
            trained |= {f"{way} {wire}": Trained(world, samples=samples, way=way, wire=wire) for way in WAYS}
        calls = {name: functools.partial(one.seconds, options.updates) for name, one in trained.items()}
        probe = trained[COMPUTE].probe()
        seconds, expected = ({name: [] for name in calls} for _ in range(2))
        probe.time_update()  # not counted
        probe.time_round()
        for number in range(options.rounds):
            probe.time_round()  # a prediction takes the medians so far
            for name in in_turns([*calls], number):
                for _ in range(options.probed):
                    probe.time_update()
                measured = probe.as_tree(probe.updates[-options.probed :])
                if world.rank == 0:
                    expected[name].append(trained[name].predicted(with_ranks(BLANK, measured, RECIPE)))
                seconds[name].append(calls[name]())
        measured = probe.as_tree()
        for one in (probe, *trained.values()):
            one.close()
        figures.append(
            {
                "ranks": world.size,
                "ratio": ratio,
                "samples_per_rank": samples,
                "gradient_bytes": gradient_bytes,
                "communication_seconds": communication,
                "seconds": seconds,
                "predicted_seconds": expected,
                "probe": measured,
            }
        )
    return figures


def table_lines(figures: dict[str, Any]) -> Iterable[str]:
    """Two lines of the table in Markdown, one for each wire; times in milliseconds, with the measured ratio."""
    seconds = figures["seconds"]
    compute = seconds[COMPUTE]
    for wire in WIRES:
        none, buckets, double = (seconds[f"{way} {wire}"] for way in WAYS)
        medians = [statistics.median(times) for times in (compute, none, buckets, double)]
        pairs = ((buckets, none), (double, none), (double, seconds[f"none {WIRES[0]}"]))
        shares = [f"{100 * hidden(times, of, compute):.0f} %" for times, of in pairs]
        ratio = f"{medians[1] / medians[0] - 1:.2f}"
        yield row([figures["ranks"], figures["megabits"], ratio, wire, *(f"{1000 * t:.0f}" for t in medians), *shares])


def prediction_lines(figures: dict[str, Any]) -> Iterable[str]:
    """The lines of the second table: predicted over measured, in percent more; medians over the rounds."""
    for name, expected in figures["predicted_seconds"].items():
        measured = figures["seconds"][name]
        error = 100 * (statistics.median(map(operator.truediv, expected, measured)) - 1)
        times = (f"{1000 * statistics.median(each):.0f}" for each in (expected, measured))
        yield row([figures["ranks"], figures["megabits"], figures["ratio"], name, *times, f"{error:+.1f} %"])


def allreduce_lines(figures: dict[str, Any]) -> Iterable[str]:
    """The lines of the all-reduce benchmark under a heading with the link."""
    link = f"{figures['megabits']} Mbit/s" if figures["megabits"] else "unthrottled"
    heading = f"{figures['ranks']} ranks, {link}, {4e-6 * figures['num_values']:.1f} MB:"
    return [heading, *allreduce.table_lines(figures)]


def on_hosts(network: SlowNetwork, words: Sequence[str]) -> list[dict[str, Any]]:
    """Run a script on ranks behind such links and read what it measured."""
    with network, tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        environment = {**ONE_THREAD, "GLOO_SOCKET_IFNAME": "eth0"}
        network.run([sys.executable, *words, "--json", str(file)], environment=environment, timeout=TIMEOUT_SECONDS)
        measured = json.loads(file.read_text(encoding="utf-8"))
    return [{**figures, "megabits": network.megabits or 0} for figures in measured]


def main() -> None:
    """Measure on every number of ranks and every link, or run as one of the ranks."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--megabits", nargs="+", type=int, default=[100, 200], help="a second, of each link")
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5, 1.0, 2.0], help="communication over compute")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=3, help="timed in a turn")
    parser.add_argument("--probed", type=int, default=2, help="updates without exchange before a turn")
    parser.add_argument("--allreduce", action="store_true", help="time allreduce.py instead")
    parser.add_argument("--model", default="cifar", help="with --allreduce: of that script")
    options = parser.parse_args()
    if launched_ranks() is not None:
        return as_rank(functools.partial(measure, options), options.json)
    if (reason := why_not()) is not None:
        print(f"slow_network: skipped: {reason}")
        return None
    words, lines_of = [__file__, *sys.argv[1:]], table_lines
    if options.allreduce:
        words = [allreduce.__file__, "--model", options.model, "--turns", str(options.updates), "--buckets", "0"]
        words, lines_of = [*words, "--rounds", str(options.rounds)], allreduce_lines
    else:
        print(head(HEADS), flush=True)
    results = []
    for megabits in options.megabits:
        for ranks in options.ranks:
            network = SlowNetwork(hosts=ranks, megabits=megabits or None)
            results += (measured := on_hosts(network, words))
            for figures in measured:
                print("\n".join(lines_of(figures)), flush=True)
            write_json(options.json, results)
    if not options.allreduce:
        print("\n" + head(("ranks", "Mbit/s", "ratio", "way", "predicted", "measured", "error")))
        print("\n".join(line for figures in results for line in prediction_lines(figures)))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore::SyntaxWarning")
    main()
