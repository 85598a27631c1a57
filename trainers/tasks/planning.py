"""The answers of `kilobatch plan`: a plan, its forecast, and the questions that a user asks backwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from recipes.errors import InputRefused
from recipes.planning.cluster import Cluster
from recipes.planning.division import PlanError
from recipes.planning.forecast import forecast
from recipes.planning.hardware import Hardware, NetworkLink, NodeLink, Rate
from recipes.planning.phase_times import PHASES
from recipes.planning.planner import Plan, plan
from recipes.planning.scan import (
    CONVERGENCE,
    Choice,
    Scan,
    Sharing,
    at_batch,
    at_point,
    choices,
    model_and_dataset,
    scan,
    sharings,
)
from recipes.planning.timing import NoForecast
from recipes.reading.open import OpenedRecipe, open_cluster, open_recipe
from recipes.reading.registry import names
from recipes.reports.noise import noise_windows
from recipes.reports.record import Run
from recipes.scale import Change, scaling_changes
from recipes.schema import Dataset, Recipe
from recipes.schema.image_size import sides_by_size
from recipes.schema.vocabulary import Vocabulary, kind_of
from trainers.launch.model_costs import known_model
from trainers.launch.vocabulary import vocabulary
from trainers.tasks.targets import Target

_FEWEST_UPDATES = 5  # for the median of a rate
_SHARED_MEMORY = 5.0  # 10^9 bytes a second of an all-reduce in one machine's memory, where nobody measured it


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Devices of a cluster on which a run takes at most a time: the fewest or the cheapest.

    Args:
        cluster: its name.
        devices: how many; more than it has where `beyond`.
        billed_devices: how many are paid.
        range_devices: fewest with every constant at the fast and at the slow end of its range; None where none suffice.
        seconds, device_hours, dollars: of the run there; no dollars where no price is known.
        range_seconds, range_device_hours, range_dollars: of these on `devices`.
        beyond: the cluster has fewer.
        own: it is the cluster of the plan.
        leaves_out: as of `Scan`.
    """

    cluster: str
    devices: int
    billed_devices: int
    range_devices: tuple[int | None, int | None]
    seconds: float
    range_seconds: tuple[float, float]
    device_hours: float
    range_device_hours: tuple[float, float]
    dollars: float | None
    range_dollars: tuple[float, float] | None
    beyond: bool
    own: bool
    leaves_out: bool


def devices_within(made: Plan, seconds: float) -> tuple[Scan, Priced | None, Priced | None]:
    """The fewest devices of the plan's cluster, or of a larger one of its kind, within a time; and its cheapest."""
    times = scan(made)
    fewest = times.fewest(seconds)
    if fewest is None:
        return times, None, None
    cheapest = _cheapest(made.cluster, times, seconds)
    priced = {number: _priced(made.cluster, times, number, seconds, own=True) for number in {fewest, cheapest} - {None}}
    return times, priced[fewest], priced.get(cheapest)


def _cheapest(cluster: Cluster, times: Scan, seconds: float) -> int | None:
    """The cheapest number of a cluster's devices within a time, the fewest of those; None without a price."""
    fit = (times.seconds <= seconds) & (times.devices <= cluster.num_workers)
    dollars = cluster.dollars(times.devices[fit], times.seconds[fit])
    return None if dollars is None or not fit.any() else int(times.devices[fit][np.argmin(dollars)])


def _priced(cluster: Cluster, times: Scan, devices: int, seconds: float, *, own: bool) -> Priced:
    taken, fastest, slowest = times.at(devices)
    hours, low, high = (time * devices / 3600 for time in (taken, fastest, slowest))
    dollars, *range_dollars = (cluster.dollars(devices, time) for time in (taken, fastest, slowest))
    return Priced(
        cluster=cluster.name,
        devices=devices,
        billed_devices=cluster.billed_devices(devices),
        range_devices=(times.fewest(seconds, times.fast), times.fewest(seconds, times.slow)),
        seconds=taken,
        range_seconds=(fastest, slowest),
        device_hours=hours,
        range_device_hours=(low, high),
        dollars=dollars,
        range_dollars=None if dollars is None else tuple(range_dollars),
        beyond=devices > cluster.num_workers,
        own=own,
        leaves_out=bool(times.leaves_out[times.devices == devices][0]),
    )


def of_choice(made: Plan, choice: Choice) -> Plan:
    """The plan of a choice's batch and epochs on the same cluster."""
    return _whole(made, recipe=at_point(made, choice.batch, choice.epochs[0]))


def cheapest_clusters(
    made: Plan, own: Priced | None, seconds: float, *, named: str | None, words: Vocabulary
) -> list[Priced]:
    """Of the plan's cluster and those of the library: where there is a rate of this model and the devices suffice.

    The cheapest first, each on its cheapest number of devices; behind them those without a price on the fewest, the
    one of the fewest device-hours first.

    Args:
        made: on the plan's cluster.
        own: its answer.
        seconds: within which time.
        named: how the plan's cluster was named; the library's is planned too where the plan's does not suffice.
        words: of the library's files.
    """
    of_plan = [own] if own is not None and not own.beyond else []
    found = [*of_plan]
    for name in names("clusters"):
        cluster = open_cluster(name, vocabulary=words)
        if cluster.hardware is None or cluster == made.cluster or (name == named and of_plan):
            continue
        try:
            times = scan(_whole(made, cluster=cluster))
        except (NoForecast, PlanError):
            continue
        devices = _cheapest(cluster, times, seconds) or times.fewest(seconds)
        if devices is not None and devices <= cluster.num_workers:
            found.append(_priced(cluster, times, devices, seconds, own=False))
    return sorted(found, key=lambda each: (each.dollars is None, each.dollars or each.device_hours))


def _whole(
    made: Plan, *, recipe: Recipe | None = None, dataset: Dataset | None = None, cluster: Cluster | None = None
) -> Plan:
    """A plan of another recipe or on another cluster, for `scan`, which divides it anew.

    The micro-batch that was asked for and exact mode hold on the plan's own cluster only.
    """
    recipe, cluster = recipe or made.recipe, cluster or made.cluster
    workers = min(cluster.num_workers, min(recipe.batch.global_.sizes))  # on these its norm groups surely fit
    whole = plan(recipe=recipe, dataset=dataset or made.dataset, cluster=cluster, workers=workers)
    if cluster != made.cluster:
        return replace(whole, model=made.model)
    return replace(whole, model=made.model, micro_batch_size=made.micro_batch_size, exact=made.exact)


def micro_batches(made: Plan, seconds: float) -> list[tuple[int, int]]:
    """(micro-batch, fewest devices within a time), for norm spans times powers of two up to the largest rate's."""
    rates = [rate for rate in made.cluster.hardware.rates if rate.model == kind_of(made.recipe.model)]
    largest = max((rate.micro_batch_size for rate in rates), default=0)
    size, found = min(made.recipe.batch.norm_span.sizes), []
    while size <= max(largest, min(made.recipe.batch.norm_span.sizes)):
        devices = scan(replace(made, micro_batch_size=size)).fewest(seconds)
        if devices is not None:
            found.append((size, devices))
        size *= 2
    return found


def accuracy_choices(made: Plan, target: Target, devices: int) -> list[Choice]:
    """Batches that reach an accuracy, with their epochs and devices."""
    first, last = CONVERGENCE[0].batch, CONVERGENCE[-1].batch
    powers = [2**power for power in range(11, 17)]
    batches = sorted({*(point.batch for point in CONVERGENCE), *(b for b in powers if first <= b <= last)})

    def plan_at(batch: int, epochs: float) -> Plan:
        return _whole(made, recipe=at_point(made, batch, epochs))

    return choices(plan_at, batches=batches, devices=devices, within=target.seconds)


def best_choice(made: Plan, target: Target, found: list[Choice]) -> tuple[Choice, str]:
    """The fastest; within a time the cheapest or, without a price, of the fewest devices; and which of these it is."""
    if target.seconds is None:
        return min(found, key=lambda each: each.seconds[0]), "fastest"
    cost = {each: made.cluster.dollars(each.devices, each.seconds[0]) for each in found}
    if None not in cost.values():
        return min(found, key=cost.get), "cheapest"
    return min(found, key=lambda each: (each.devices, each.seconds[0])), "fewest devices"


@dataclass(frozen=True, kw_only=True)
class RecipeChoice:
    """A recipe of the library whose claimed accuracy is enough.

    Args:
        recipe: its name.
        top1: that it claims.
        status: of the claim, such as `reproduced` here or `not run`.
        epochs, batch: of it; the largest batch of a ramp.
        devices: on which it takes `seconds`.
        seconds, range_seconds: of the whole run.
    """

    recipe: str
    top1: float
    status: str
    epochs: float
    batch: int
    devices: int
    seconds: float
    range_seconds: tuple[float, float]


def recipes_reaching(made: Plan, target: Target, devices: int, words: Vocabulary) -> list[RecipeChoice]:
    """The library's recipes of a plan's model and data set that claim an accuracy, on its cluster, the fastest first.

    Raises:
        InputRefused: no recipe claims as much, or the cluster has no rate for those that do.
    """
    claimed, found, planned, missing = [], [], 0, ""
    for name in names("recipes"):
        opened = open_recipe(name, vocabulary=words)
        if (kind_of(opened.recipe.model), opened.dataset.name) != model_and_dataset(made):
            continue
        claimed += [(claim.value, claim, name, opened) for claim in opened.recipe.claims if claim.metric == "top1"]
    best = max(claimed, key=lambda each: each[0], default=None)
    what = f"--target top1={target.top1:g}: no recipe of {' on '.join(model_and_dataset(made))} claims as much"
    if best is None:
        raise InputRefused(f"{what}, nor any accuracy; write a time for the recipe's own epochs")
    if best[0] < target.top1:
        raise InputRefused(f"{what}; the most is top1={best[0]:g}, of {best[2]}; ask for that or less")
    for top1, claim, name, opened in claimed:
        if top1 < target.top1:
            continue
        try:
            whole = _whole(made, recipe=opened.recipe, dataset=opened.dataset)
            times = scan(replace(whole, model=known_model(opened)), range(1, devices + 1))
        except (NoForecast, PlanError) as error:
            missing = str(error).partition("; ")[0]  # --set would not change these recipes
            continue
        planned += 1
        number = times.fastest if target.seconds is None else times.fewest(target.seconds)
        if number is None or not np.isfinite(times.at(number)[0]):
            continue
        seconds, *ends = times.at(number)
        found.append(
            RecipeChoice(
                recipe=name,
                top1=top1,
                status=claim.status,
                epochs=opened.recipe.epochs,
                batch=max(opened.recipe.batch.global_.sizes),
                devices=number,
                seconds=seconds,
                range_seconds=(ends[0], ends[1]),
            )
        )
    if not planned:
        raise InputRefused(f"--target top1={target.top1:g}: recipes that claim it cannot be planned here: {missing}")
    return sorted(found, key=lambda each: each.seconds)


def shared_trials(made: Plan, *, trials: int, devices: int) -> list[Sharing]:
    """Ways to share devices among the trials of a search over a plan's recipe.

    Raises:
        InputRefused: more devices than the cluster has.
    """
    if devices > made.cluster.num_workers:
        what = f"--devices {devices}: cluster {made.cluster.name} has {made.cluster.num_workers}"
        raise InputRefused(f"{what}; ask for at most as many")
    times = scan(made, [n for n in range(1, devices + 1) if devices % n == 0])
    found = sharings(times, trials=trials, devices=devices)
    if not found:
        what = f"no number of devices up to {devices} can hold the recipe's norm groups in micro-batches that fit"
        raise InputRefused(f"{what}; try more --devices or a smaller --micro-batch-size")
    return found


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to set on so many workers.

    Args:
        workers, batch, micro_batch_size, steps: of an update.
        seconds: of the run at the recipe's batch (None where these workers cannot serve it), and at this one; None for
            both where no time is known.
        range_seconds: of the latter, with every constant at the fast and at the slow end of its range.
        reasons: for the batch, one sentence each.
        changes: of the recipe at this batch, from the scaling rules; empty where it stays.
    """

    workers: int
    batch: int
    micro_batch_size: int
    steps: int
    seconds: tuple[float | None, float | None]
    range_seconds: tuple[float, float] | None
    reasons: tuple[str, ...]
    changes: tuple[Change, ...]


def advise(opened: OpenedRecipe, made: Plan, *, noise: float | None = None, timed: bool = True) -> Advice:
    """The smallest batch on a plan's workers whose run is within 5 % of the fastest that the rules allow.

    Args:
        opened, made: the recipe and its plan.
        noise: gradient noise scale of a run of it, in samples; batches beyond twice that are not advised.
        timed: its time is known; False: the largest batch that the rules allow.
    """
    own = made.recipe.batch.global_.sizes[0]
    span = made.recipe.batch.norm_span.sizes[0]
    candidates: dict[int, tuple[tuple[float, float, float], tuple[Change, ...], Plan]] = {}
    reasons = []
    sizes = {*(span * made.workers * 2**power for power in range(24)), *(own << power for power in range(9))}
    sizes |= {own >> power for power in range(9) if own % (span << power) == 0}
    for batch in sorted(sizes):
        if noise is not None and batch > max(2 * noise, own):
            reasons.append(f"not {batch:,}: over twice the noise scale of the run, {noise:,.0f} samples")
            break
        try:
            changes = () if batch == own else scaling_changes(opened, batch=batch, vocabulary=vocabulary())
            recipe = made.recipe if batch == own else at_batch(made, batch, made.recipe.epochs)
            planned = plan(
                recipe=recipe,
                dataset=made.dataset,
                cluster=made.cluster,
                workers=made.workers,
                micro_batch_size=None if made.micro_batch_size == "auto" else made.micro_batch_size,
                model=made.model,
                exact=made.exact,
            )
            taken = (0.0, 0.0, 0.0)
            if timed:
                times = forecast(planned)
                taken = (times.seconds, *times.range_seconds)
        except (InputRefused, PlanError) as error:
            if batch > own:
                reasons.append(f"not {batch:,}: {error}")
                break
            continue
        candidates[batch] = (taken, changes, planned)
    if not candidates:
        raise InputRefused(f"no batch serves {made.workers} workers; {reasons[-1] if reasons else 'ask for fewer'}")
    best = min(seconds for (seconds, *_), *_ in candidates.values())
    fast_enough = [size for size, ((seconds, *_), *_) in candidates.items() if seconds <= 1.05 * best]
    batch = min(fast_enough) if timed else max(candidates)
    (seconds, fast, slow), changes, planned = candidates[batch]
    how = "the recipe's own" if batch == own else f"{batch / made.workers:g} samples a worker"
    why = "the smallest batch within 5 % of the fastest" if timed else "the largest batch that the rules allow"
    reasons.insert(0, f"{batch:,}, {how}: {why}, and smaller is safer")
    division = planned.segments[0].division
    before = candidates[own][0][0] if own in candidates else None
    return Advice(
        workers=made.workers,
        batch=batch,
        micro_batch_size=division.largest,
        steps=division.most_micro_batches,
        seconds=(before, seconds) if timed else (None, None),
        range_seconds=(fast, slow) if timed else None,
        reasons=tuple(reasons),
        changes=changes,
    )


def noise_of_run(run: Run) -> float | None:
    """The last gradient noise scale that a run measured, in samples."""
    scales = [window.scale.value for window in noise_windows(run) if window.scale is not None]
    return scales[-1] if scales else None


def learned(cluster: Cluster, run: Run, opened: OpenedRecipe, *, grow: bool) -> Cluster:
    """A cluster that also knows the rates that a run of this recipe's model reached, one for each batch of it.

    Args:
        grow: a cluster with fewer workers than the run had is of as many.
    Raises:
        InputRefused: the run has too few updates, or trained another model, or its files are not as a run writes them.
    """
    model = opened.tree["model"]["kind"]
    try:
        of_run = run.recipe["model"]["kind"]
        rates = tuple(rates_of(run, opened)) if of_run == model else ()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # a stranger's files
        what = f"run.yaml or metrics.jsonl is not as a run writes it ({type(error).__name__}: {error})"
        raise InputRefused(f"--from {run.folder}: {what}; name another run") from error
    if model != of_run:
        raise InputRefused(f"--from {run.folder}: a run of {of_run}, and the recipe's model is {model}")
    if not rates:
        what = f"fewer than {_FEWEST_UPDATES} updates of one batch on its last number of workers"
        raise InputRefused(f"--from {run.folder}: {what}; let it run longer, or name another run")
    workers = max(rate.devices for rate in rates)
    if workers > cluster.num_workers and grow:
        cluster = replace(cluster, workers_per_node=workers)
    if workers > cluster.num_workers:
        what = f"a run on {workers} workers, and cluster {cluster.name} has {cluster.num_workers}"
        raise InputRefused(f"--from {run.folder}: {what}; name the run's with --cluster, or give -n {workers}")
    known = cluster.hardware
    if known is None:
        link = NodeLink(kind="shared_memory", gb_per_second=_SHARED_MEMORY, source="assumed")
        made = Hardware(
            device=cluster.device, node_link=link, rates=rates, algorithm="ring", source=f"run {run.folder}"
        )
        between = NetworkLink(transport="tcp", gbit_per_second=10, source="assumed") if cluster.nodes > 1 else None
        return replace(cluster, hardware=replace(made, network=between))
    return replace(cluster, hardware=replace(known, rates=(*rates, *known.rates)))


def rates_of(run: Run, opened: OpenedRecipe, *, fewest_updates: int = _FEWEST_UPDATES) -> Iterator[Rate]:
    """The rate of each stage of a run that has so many updates after its first, on the last number of workers."""
    model, sides, workers = kind_of(opened.recipe.model), sides_by_size(opened.recipe), run.plan.get("workers")
    segments = run.plan.get("segments")
    if not isinstance(workers, int) or not isinstance(segments, list):
        return
    for segment in segments:
        first, count = segment["update"], segment["num_updates"]
        start = max(first, run.first_of_last_workers)  # this update compiles and warms
        within = (run.updates.update > start) & (run.updates.update < first + count)
        if within.sum() < fewest_updates:
            continue
        seconds = float(np.median(run.updates.update_seconds[within]))
        size = segment.get("image_size")
        yield Rate(
            model=model,
            image_size=sides.get(size) or size or 1,
            precision=run.plan.get("compute", "float32"),
            micro_batch_size=segment["micro_batch_size"],
            accumulation_steps=segment["accumulation_steps"],
            devices=workers,
            samples_per_second=workers * segment["micro_batch_size"] * segment["accumulation_steps"] / seconds,
            backward_share=_backward_share(run, within),
            basis="probe",
            source=f"median of {int(within.sum())} updates of the run {run.folder}",
        )


def _backward_share(run: Run, within: np.ndarray) -> float | None:
    """Of all work of some updates, each of several micro-batches; None where the phases were not measured."""
    if len(run.phases) != len(run.updates):
        return None
    median = dict(zip(PHASES, np.median(run.phases.seconds[within], axis=0), strict=True))
    own = sum(median[name] for name in ("input", "forward", "backward", "optimizer"))
    return float(f"{median['backward'] / own:.3g}") if median["backward"] > 0 else None


def scaling(made: Plan) -> Scan:
    """Times on powers of two of devices, up to the cluster's size or 4,096 if that is more."""
    most = max(made.cluster.num_workers, 4096)
    numbers = sorted({2**power for power in range(most.bit_length()) if 2**power <= most})
    return scan(made, numbers)


def published_times(made: Plan, words: Vocabulary) -> list[tuple[int, float, str]]:
    """(devices, seconds, name) of the library's published runs of this model, data set and length, on any cluster."""
    found = []
    for name in names("recipes"):
        recipe = open_recipe(name, vocabulary=words).recipe
        if (type(recipe.model), recipe.dataset, recipe.epochs) != (
            type(made.recipe.model),
            made.recipe.dataset,
            made.recipe.epochs,
        ):
            continue
        for claim in recipe.claims:
            devices = re.match(r"([0-9][0-9,]*) x ", claim.on)
            if claim.kind == "time_to_train" and claim.metric == "hours" and devices:
                found.append((int(devices[1].replace(",", "")), claim.value * 3600, recipe.name))
    return list({row[:2]: row for row in reversed(found)}.values())  # variants of a recipe repeat its claim
