"""What the planner expects of updates on slow links, from a probe of links, of compute, and of both beside each other.

`slow_network.py` calls it on the ranks that train, a little in each round.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from recipes.planning.all_reduce import Links
from recipes.planning.hardware import MeasuredAllReduce

COMPUTE, NONE = "compute", "none"  # no exchange at all; all at once after the backward pass
CALIBRATION_SIZES = (32, 370)  # samples of an update on a rank
WAYS, WIRES = (NONE, "buckets", "double"), ("float32", "float16")
_OVERLAPS = {NONE: "none", "buckets": "bucket", "double": "double_buffering"}
NO_LINKS = Links(  # every all-reduce was timed
    node_bytes_per_second=1.0, node_latency_seconds=0.0, network_bytes_per_second=1.0, network_latency_seconds=0.0
)
UPDATES = 3  # of one measurement


class Probe:
    """What a probe measures of the ranks that train, by round; all ranks make and call it together.

    Three things, each of the slowest rank:

    - updates without an exchange, which all ranks begin together: when each bucket is ready, and the end. Where ranks
      share cores they do not reach a bucket together, and it waits for the last one.
    - all-reduces by size, back to back, on each wire;
    - both at once: how much slower each is beside the other.

    Args:
        world: all ranks.
        trained: trains without an exchange, and has the buckets of a run.
    """

    def __init__(self, world: Any, trained: Any) -> None:
        from trainers.communicators import Ring
        from trainers.communicators.wire import WIRES as KINDS
        from trainers.communicators.wire import FullWire

        self._world, self._trained = world, trained
        self._connection = Ring(sockets=True).connect(world.Dup())
        spans = [bucket.span for bucket in trained.exchange.buckets]
        self._values = self._connection.allocate(spans[-1].stop, np.float32)
        self._wires = {name: FullWire(np.dtype(np.float32)) if name == "float32" else KINDS[name]() for name in WIRES}
        self._spans = {"buckets": spans, "double": [slice(0, spans[-1].stop)]}
        self._numbers = [spans[-1].stop // 4**power for power in (4, 3, 2, 1, 0)]
        self._rounds: list[dict[str, Any]] = []

    def begin_round(self) -> None:
        """Time links, and links beside compute; `time_update` follows, as often as one likes."""
        self._rounds.append({"ready": [], "update": [], "all_reduces": {}, "rates_beside": {}})
        for wire in WIRES:
            self._rounds[-1]["all_reduces"][wire] = [self._time_all_reduce(number, wire) for number in self._numbers]
            for way, spans in self._spans.items():
                self._rounds[-1]["rates_beside"][f"{way} {wire}"] = self._time_both(way, spans, wire)

    def as_tree(self) -> dict[str, Any]:
        """All that was measured, in seconds."""
        return {
            "bucket_values": [span.stop - span.start for span in self._spans["buckets"]],
            "all_reduce_values": self._numbers,
            "rounds": self._rounds,
        }

    def close(self) -> None:
        self._connection.close()

    def time_update(self) -> float:
        """Time an update, and when each bucket is ready."""
        found: list[float] = []
        self._trained.exchange.observe = lambda number, began, ended: found.append(began)
        self._world.Barrier()
        began = time.perf_counter()
        self._trained.update()
        ended = time.perf_counter()
        self._rounds[-1]["ready"].append([self._slowest(at - began) for at in found])
        self._rounds[-1]["update"].append(self._slowest(ended - began))
        return self._rounds[-1]["update"][-1]

    def _time_all_reduce(self, number: int, wire: str) -> float:
        repeats = max(1, self._numbers[-1] // number // 16)
        self._world.Barrier()
        began = time.perf_counter()
        for _ in range(repeats):
            self._mean(slice(0, number), wire)
        return self._slowest(time.perf_counter() - began) / repeats

    def _time_both(self, way: str, spans: Sequence[slice], wire: str) -> tuple[float, float]:
        """The rates of compute and of communication beside each other, 1 is alone; both begin together."""
        update = self.time_update()
        timed = _timed(self._numbers, self._rounds[-1]["all_reduces"][wire], ranks=self._world.size)
        each = sum(timed.seconds(4 * (span.stop - span.start)) for span in spans)
        calls = max(1, round(UPDATES * update / each))
        ended = [0.0]

        def communicate() -> None:
            for span in [*spans] * calls:
                self._mean(span, wire)
            ended[0] = time.perf_counter()

        self._connection.set_beside_backward(True)
        thread = threading.Thread(target=communicate)
        self._world.Barrier()
        began = time.perf_counter()
        thread.start()
        for _ in range(UPDATES):
            self._trained.update()
        computed = self._slowest(time.perf_counter() - began)
        thread.join()
        sent = self._slowest(ended[0] - began)
        self._connection.set_beside_backward(False)
        update = (update + self.time_update()) / 2  # the machine's speed changes
        return rates_beside(computed, sent, computed_alone=UPDATES * update, sent_alone=calls * each)

    def _mean(self, span: slice, wire: str) -> None:
        from trainers.gradients.exchange import mean

        mean(self._values[span], self._connection, self._wires[wire], 1.0)

    def _slowest(self, seconds: float) -> float:
        from mpi4py import MPI

        return self._world.allreduce(seconds, op=MPI.MAX)


def rates_beside(computed: float, sent: float, *, computed_alone: float, sent_alone: float) -> tuple[float, float]:
    """The rates of compute and of communication while both go on, as shares of those alone.

    Args:
        computed, sent: seconds until each had ended; both began together, and the later one went on alone.
        computed_alone, sent_alone: seconds of each without the other.

    >>> rates_beside(2.0, 2.5, computed_alone=1.5, sent_alone=2.1)  # compute slows down by 3/4, the other one by 4/5
    (0.75, 0.8)
    """
    both, rest = min(computed, sent), abs(computed - sent)
    compute, send = (computed_alone, sent_alone - rest) if computed < sent else (computed_alone - rest, sent_alone)
    return round(compute / both, 12), round(send / both, 12)


def _timed(numbers: Sequence[int], seconds: Sequence[float], *, ranks: int) -> MeasuredAllReduce:
    """The all-reduces of a round; more bytes take no less."""
    milliseconds = tuple(itertools.accumulate((1000 * each for each in seconds), max))
    sizes = tuple(4 * number for number in numbers)
    return MeasuredAllReduce(workers=ranks, nodes=ranks, bytes_=sizes, milliseconds=milliseconds)


def predictions(probed: dict[str, Any], *, ranks: int) -> dict[str, list[float]]:
    """Seconds of an update that the planner's model expects of each round, by way and wire.

    Compute and links are those of the round; how both slow each other down is the median of all rounds.

    Args:
        probed: see `Probe.as_tree`.
        ranks: that train.
    """
    from recipes.planning.networks import profiled_network
    from recipes.planning.update_time import Compute, Exchange, update_time

    rounds = probed["rounds"]
    found: dict[str, list[float]] = {}
    for measured in rounds:
        update = statistics.median(measured["update"])
        ready = [statistics.median(times) for times in zip(*measured["ready"], strict=True)]
        steps = [round(1e6 * (after - before)) for before, after in itertools.pairwise([0.0, *ready])]
        network = profiled_network("probed", tuple(probed["bucket_values"][::-1]), tuple(steps[::-1]))
        compute = Compute(fixed_seconds=update, seconds_per_sample=0.0, forward_share=0.0)  # forward: in the first step
        found.setdefault(COMPUTE, []).append(update)
        for way, wire in itertools.product(WAYS, WIRES):
            timed = _timed(probed["all_reduce_values"], measured["all_reduces"][wire], ranks=ranks)
            name = f"{way} {wire}"
            rates = [each["rates_beside"].get(name, (1.0, 1.0)) for each in rounds]
            own, sending = (statistics.median(each) for each in zip(*rates, strict=True))
            exchange = Exchange(
                all_reduce=lambda num_bytes, *_, timed=timed: timed.seconds(num_bytes),
                overlap=_OVERLAPS[way],
                bucket_bytes=1,  # each array of this network is a bucket
            )
            made = update_time(
                network,
                compute,
                exchange,
                NO_LINKS,
                devices=ranks,
                nodes=ranks,
                micro_batch_size=1,
                contention=max(0.0, 1 - own) / sending,
                slowdown=max(0.0, 1 - sending) / own,
            )
            found.setdefault(name, []).append(float(made.total))
    return found
