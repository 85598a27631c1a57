"""Seconds of an update on a cluster: the model of time, calibrated by a measured rate of the cluster's file.

A rate that was measured on few devices fixes the seconds a sample, by inverting the model on those devices; the model
of an update then gives the time on others. What is not known exactly widens the range: see `Timing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from recipes.errors import InputRefused
from recipes.planning import all_reduce
from recipes.planning.cluster import Cluster
from recipes.planning.constants import FITTED, SIGMA_ENDS
from recipes.planning.hardware import MeasuredAllReduce, Rate
from recipes.planning.networks import Network, known_network, network, profiled_network
from recipes.planning.update_time import (
    AllReduce,
    Compute,
    ExchangeTime,
    UpdateTime,
    calibrated,
    sharing_time,
    speed_text,
    update_time,
)

_WIRE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_SCORING = 3  # samples scored in the time of one that is trained, where no probe says it: there is no backward
_VALIDATED_DEVICES = 3500  # no published run beyond has been compared
_OF_COMMUNICATOR = {"HalvingDoubling": "halving_doubling", "Hierarchical": "hierarchical", "Torus": "torus"}
_SPREADS = {"probe": 0.10, "published": 0.20, "assumed": 0.5}  # of a rate, by its basis; see docs/planner.md
_BASES = {"probe": "probe", "published": "published rate", "assumed": "assumed rate"}

End = Literal["fast", "expected", "slow"]


class NoForecast(InputRefused):
    """Time cannot be planned: the cluster's file lacks a figure; says which, and how to get it."""


@dataclass(frozen=True, kw_only=True)
class TimedCase:
    """What is timed, whatever the number of devices.

    Args:
        cluster: with its `hardware`.
        model: kind of the model.
        image_size: side of the training images in pixels; None where the recipe does not say it.
        precision: of compute.
        num_classes: of the data set.
        num_parameters: of the model; None where nobody counted.
        norm_channels: of each batch normalisation of the model; None where nobody counted.
        double_buffering: the gradients cross beside the next update.
        exact: exact mode's sums.
        untimed_because: what the recipe makes of gradients, for which there is no formula; None where they cross as
            they are.
    """

    cluster: Cluster
    model: str
    image_size: int | None
    precision: str = "float32"
    num_classes: int = 1000
    num_parameters: int | None = None
    norm_channels: tuple[int, ...] | None = None
    double_buffering: bool = False
    exact: bool = False
    untimed_because: str | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The model of an update of one case, calibrated.

    Args:
        case: what is timed.
        network: its layers.
        compute, exchange: of one device and between devices.
        rate: the measured rate that calibrates it.
        spread: of compute and of all that follows it, as a share of the seconds, down and up.
        link_spreads: of an all-reduce, down and up.
        bases: what a part of an update rests on, in two or three words.
        rests_on: what its figures rest on, and what is extrapolated, one sentence each.
    """

    case: TimedCase
    network: Network
    compute: Compute
    exchange: ExchangeTime
    rate: Rate
    spread: float
    link_spreads: tuple[float, float]
    bases: Mapping[str, str]
    rests_on: tuple[str, ...]

    def update(
        self,
        *,
        devices: Any,
        micro_batch_size: Any,
        steps: Any = 1,
        team_size: Any = 1,
        samples: Any = None,
        end: End = "expected",
    ) -> UpdateTime:
        """Seconds of an update; numbers, or arrays of them.

        Args:
            devices: how many, filling one node after another.
            micro_batch_size, steps: of the fullest device.
            team_size: devices that share a norm group.
            samples: of the update; those of `devices` such devices where left out.
            end: `fast` and `slow` take every constant at that end of its range.
        """
        hardware = self.case.cluster.hardware
        factor, link, compute, exchange = 1.0, 1.0, self.compute, self.exchange
        if end != "expected":
            factor = self.factor(devices, end)
            link = 1 + self.link_spreads[1] if end == "slow" else 1 / (1 + self.link_spreads[0])
            compute = replace(
                compute,
                fixed_seconds=factor * compute.fixed_seconds,
                seconds_per_sample=factor * compute.seconds_per_sample,
                sigma=compute.sigma * SIGMA_ENDS[end] / FITTED.sigma,
            )
            exchange = replace(exchange, all_reduce=lambda *words: link * self.exchange.all_reduce(*words))
        nodes = -(-np.asarray(devices) // self.case.cluster.workers_per_node)
        samples = devices * micro_batch_size * steps if samples is None else samples
        coordination = 0.0
        if (small := hardware.coordination) is not None:
            doublings = np.log2(devices)
            coordination = (small.microseconds + small.microseconds_per_doubling * doublings) * 1e-6 * (doublings > 0)
        per_node = self.case.cluster.workers_per_node
        shared = sharing_time(self.network, hardware.links, team_size=team_size, nodes=nodes, workers_per_node=per_node)
        return update_time(
            self.network,
            compute,
            exchange,
            hardware.links,
            devices=devices,
            nodes=nodes,
            micro_batch_size=micro_batch_size,
            accumulation_steps=steps,
            input_seconds=factor * hardware.input.seconds(samples, nodes) if hardware.input else 0.0,
            coordination_seconds=factor * coordination + link * steps * shared,
        )

    @property
    def scoring_seconds(self) -> float:
        """Of one sample of an evaluation on one device."""
        scored = self.rate.scored_per_second
        return 1 / scored if scored else self.compute.seconds_per_sample / _SCORING

    def factor(self, devices: Any, end: End) -> Any:
        """By which seconds on so many devices are longer at one end of their range."""
        beyond = np.maximum(0.0, np.log2(np.asarray(devices) / _VALIDATED_DEVICES))
        wide = 1 + self.spread + 0.1 * np.minimum(beyond + (beyond > 0), 4)
        return {"fast": 1 / wide, "expected": 1.0, "slow": wide}[end]


def timing_of(case: TimedCase, *, micro_batch_size: int, devices: int) -> Timing:
    """The model of an update, calibrated with the rate that is nearest to the case.

    Args:
        case: what is timed.
        micro_batch_size: for which it is wanted.
        devices: for which it is wanted.
    Raises:
        NoForecast: the cluster has no hardware, or no rate of this model in this precision.
    """
    hardware = case.cluster.hardware
    if case.untimed_because is not None:
        raise NoForecast(f"no formula times such an exchange: {case.untimed_because}; train some updates to see it")
    if hardware is None:
        way_out = "`kilobatch probe` measures it on this machine or allocation and writes a cluster's file"
        raise NoForecast(f"cluster {case.cluster.name} describes no hardware; {way_out}")
    first, second = _rates_for(case, micro_batch_size, min(devices, case.cluster.workers_per_node))
    net = _network_of(case, first)
    rests_on = [_rest_of(rate) for rate in (first, second) if rate is not None]
    spread, known = _SPREADS[first.basis], _BASES[first.basis]
    fixed = hardware.fixed_seconds
    if second is not None:
        fixed = _fixed_seconds(case, _network_of(case, first, of_rate=True), first, second)
    elif fixed:
        rests_on.append(f"{fixed * 1000:g} ms of an update do not depend on the micro-batch, by the planner's table")
    measured = _network_of(case, first, of_rate=True)
    per_sample = _seconds_per_sample(case, measured, first, fixed)
    if case.image_size is not None and first.image_size != case.image_size:
        per_sample *= net.multiply_adds / measured.multiply_adds if net.image_size else _area(case, first)
        rests_on.append(f"extrapolated from images of {first.image_size} pixels, by multiply-adds")
        spread, known = spread + 0.1, f"{_BASES[first.basis]}, extrapolated"
    if _is_extrapolated(micro_batch_size, first, second):
        sizes = [rate.micro_batch_size for rate in (first, second) if rate is not None]
        rests_on.append(f"extrapolated to micro-batches of {micro_batch_size} from {' and '.join(map(str, sizes))}")
        spread, known = spread + 0.05, f"{_BASES[first.basis]}, extrapolated"
    links, exchange = _links_known(case, devices), _exchange(case, net, devices)
    if devices > _VALIDATED_DEVICES:
        rests_on.append(f"no published run of more than {_VALIDATED_DEVICES:,} devices has checked the model")
    return Timing(
        case=case,
        network=net,
        compute=_compute(case, first, fixed, per_sample),
        exchange=exchange,
        rate=first,
        spread=spread,
        link_spreads=links.spreads,
        bases={
            "compute": known,
            "exposed": links.basis,
            "contention": "fitted constant" if exchange.slowdown is None else "probe",
            "straggling": "fitted constant" if hardware.variation is None else "cluster's file",
        },
        rests_on=(*rests_on, *links.rests_on),
    )


def calibration_of(case: TimedCase, *, micro_batch_size: int, devices: int) -> tuple[Rate, Rate | None, bool]:
    """What decides how a micro-batch is timed: equal for those that one call of `timing_of` serves."""
    first, second = _rates_for(case, micro_batch_size, min(devices, case.cluster.workers_per_node))
    return first, second, _is_extrapolated(micro_batch_size, first, second)


def _is_extrapolated(micro_batch_size: int, first: Rate, second: Rate | None) -> bool:
    sizes = [rate.micro_batch_size for rate in (first, second) if rate is not None]
    return not 0.5 * min(sizes) <= micro_batch_size <= 2 * max(sizes)


@dataclass(frozen=True, kw_only=True)
class _LinksKnown:
    """How well an all-reduce is known: spreads of its seconds down and up, in a word or two, and in sentences."""

    spreads: tuple[float, float]
    basis: str
    rests_on: tuple[str, ...]


def _links_known(case: TimedCase, devices: int) -> _LinksKnown:
    hardware = case.cluster.hardware
    if devices == 1:
        return _LinksKnown(spreads=(0.0, 0.0), basis="one device", rests_on=())
    if _measured(case, devices):
        line = f"all-reduces that a probe timed on {devices} workers"
        return _LinksKnown(spreads=(0.1, 0.1), basis="probe", rests_on=(line,))
    link = hardware.network if devices > case.cluster.workers_per_node else None
    if link is None:
        inside = hardware.node_link
        lines = () if inside is None else (f"links in a node: {inside.source}",)
        timed = any(each.nodes == 1 for each in hardware.all_reduces)
        basis = "links fitted to a probe" if timed else "spec sheet"
        return _LinksKnown(spreads=(0.2, 0.2), basis=basis, rests_on=lines)
    if link.measured_gb_per_second is not None:
        line = f"network: measured, {link.transport}; {link.source}"
        return _LinksKnown(spreads=(0.1, 0.1), basis="probe", rests_on=(line,))
    sheet = f"{link.cards} x {link.gbit_per_second:g} Gbit/s of a data sheet"
    lines = (f"network: {sheet}, {link.transport}; {link.source}",)
    if link.transport != "tcp":
        return _LinksKnown(spreads=(0.2, 0.2), basis="spec sheet", rests_on=lines)
    lines = (*lines, "an unprobed TCP network may be slower by a factor of 2")
    return _LinksKnown(spreads=(0.2, 1.0), basis="spec sheet", rests_on=lines)


def _rest_of(rate: Rate) -> str:
    how = {"probe": "a probe", "published": "a published rate", "assumed": "an assumed rate"}[rate.basis]
    on = f"{rate.devices} device{'s' if rate.devices > 1 else ''}"
    what = f"{speed_text(rate.samples_per_second)} of {rate.model} on {on}, micro-batch {rate.micro_batch_size}"
    return f"{how}: {what}; {rate.source}"


def _rates_for(case: TimedCase, micro_batch_size: int, devices: int) -> tuple[Rate, Rate | None]:
    """The rate nearest to the case, and a second one of another micro-batch beside it, which then gives t0."""
    rates = case.cluster.hardware.rates
    fit = [rate for rate in rates if rate.model == case.model and rate.precision == case.precision]
    if not fit:
        known = ", ".join(dict.fromkeys(f"{rate.model} in {rate.precision}" for rate in rates))
        what = f"cluster {case.cluster.name} has no rate of {case.model} in {case.precision}, only of {known}"
        other = next((rate.precision for rate in rates if rate.model == case.model), None)
        way_out = f"add `--set precision.compute={other}` to plan with that rate, or measure" if other else "measure"
        raise NoForecast(f"{what}; {way_out} one with `kilobatch probe RECIPE`, or add one to hardware.rates")

    def distance(rate: Rate) -> tuple[float, ...]:
        side = 0.0 if case.image_size is None else abs(math.log(rate.image_size / case.image_size))
        micro_batches = abs(math.log(rate.micro_batch_size / micro_batch_size))
        return (side, abs(math.log(rate.devices / devices)), micro_batches, rate.exchanged is not case.exact)

    first = min(fit, key=distance)
    others = [
        rate
        for rate in fit
        if all(getattr(rate, name) == getattr(first, name) for name in ("image_size", "devices", "exchanged", "wire"))
        and rate.basis == first.basis == "probe"  # published ones are of different software
        and rate.micro_batch_size != first.micro_batch_size
    ]
    return first, min(others, key=distance, default=None)


def _network_of(case: TimedCase, rate: Rate, *, of_rate: bool = False) -> Network:
    """The layers of the case's model at the case's image size, or at that of the rate."""
    side = rate.image_size if of_rate or case.image_size is None else case.image_size
    if known_network(case.model):
        net = network(case.model, max(side, 32), case.num_classes)
        if case.num_parameters in (None, net.num_parameters):
            return net
    profiled = (each for each in case.cluster.hardware.rates if each.model == case.model and each.parameter_arrays)
    rate = rate if rate.parameter_arrays else next(profiled, rate)
    arrays = rate.parameter_arrays or ((case.num_parameters,) if case.num_parameters else ())
    if not arrays:
        what = f"the sizes of {case.model}'s parameters are not known"
        raise NoForecast(f"{what}; `kilobatch probe RECIPE` writes them into the cluster's file as parameter_arrays")
    return profiled_network(case.model, tuple(arrays), rate.backward_microseconds, case.norm_channels)


def _area(case: TimedCase, rate: Rate) -> float:
    return (case.image_size / rate.image_size) ** 2


def _measured(case: TimedCase, devices: int) -> MeasuredAllReduce | None:
    """The all-reduces that a probe timed on so many devices, in the run's own way."""
    wire = case.cluster.exchange.wire
    fit = [each for each in case.cluster.hardware.all_reduces if each.workers == devices and each.wire == wire]
    return next((each for each in fit if each.exact == case.exact), None)


def _exchange(case: TimedCase, net: Network, devices: int, wire: str | None = None) -> ExchangeTime:
    of_cluster, timed = case.cluster.exchange, _measured(case, devices)
    overlap = "double_buffering" if case.double_buffering else "bucket" if of_cluster.overlap else "none"
    beside = timed is not None and timed.contention is not None
    return ExchangeTime(
        all_reduce=_all_reduce(case, devices),
        wire_bytes=_WIRE_BYTES[of_cluster.wire if wire is None else wire],
        overlap="none" if case.exact else overlap,  # an exact sum needs the last norm group
        bucket_bytes=of_cluster.bucket_bytes_of(4 * net.num_parameters, double_buffering=case.double_buffering),
        contention=timed.contention if beside else FITTED.contention,
        slowdown=(timed.contention if timed.slowdown is None else timed.slowdown) if beside else None,
    )


def _all_reduce(case: TimedCase, devices: int) -> AllReduce:
    if (timed := _measured(case, devices)) is not None:
        per_byte = 4 / _WIRE_BYTES[timed.wire]
        return lambda num_bytes, *_: timed.seconds(num_bytes * per_byte)
    if devices <= case.cluster.workers_per_node:
        return all_reduce.ring
    kind = type(case.cluster.exchange.communicator).__name__
    return all_reduce.ALGORITHMS[_OF_COMMUNICATOR.get(kind, case.cluster.hardware.algorithm)]


def _seconds_of_rate(case: TimedCase, net: Network, rate: Rate, fixed: float, per_sample: float) -> float:
    devices = rate.devices if rate.exchanged else 1
    made = update_time(
        net,
        _compute(case, rate, fixed, per_sample),
        _exchange(case, net, devices, rate.wire),
        case.cluster.hardware.links,
        devices=devices,
        nodes=-(-devices // case.cluster.workers_per_node),
        micro_batch_size=rate.micro_batch_size,
        accumulation_steps=rate.accumulation_steps,
    )
    return float(made.total)


def _compute(case: TimedCase, rate: Rate, fixed: float, per_sample: float) -> Compute:
    return Compute(
        fixed_seconds=fixed,
        seconds_per_sample=per_sample,
        sigma=case.cluster.hardware.sigma,
        forward_share=rate.forward_share,
    )


@lru_cache(256)
def _seconds_per_sample(case: TimedCase, net: Network, rate: Rate, fixed: float) -> float:
    try:
        return calibrated(
            lambda per_sample: _seconds_of_rate(case, net, rate, fixed, per_sample),
            samples_per_second=rate.samples_per_second,
            global_batch_size=rate.global_batch_size,
        )
    except ValueError as error:
        what = f"cluster {case.cluster.name}: the rate of {rate.model} at a micro-batch of {rate.micro_batch_size}"
        raise NoForecast(f"{what} contradicts its links or hardware.fixed_ms: {error}; correct one of them") from None


@lru_cache(256)
def _fixed_seconds(case: TimedCase, net: Network, first: Rate, second: Rate) -> float:
    """t0 at which both rates come out; 0 where the smaller micro-batch is the more efficient one."""
    small, large = sorted((first, second), key=lambda rate: rate.micro_batch_size)
    wanted = small.global_batch_size / small.samples_per_second

    def small_at(fixed: float) -> float:
        return _seconds_of_rate(case, net, small, fixed, _seconds_per_sample(case, net, large, fixed))

    low = 0.0
    if small_at(low) >= wanted:
        return low
    high = wanted
    for _ in range(40):
        middle = (low + high) / 2
        try:
            low, high = (middle, high) if small_at(middle) < wanted else (low, middle)
        except NoForecast:  # so large that the other rate leaves no time
            high = middle
    return low
