"""`kilobatch plan`: what every worker does, how long it takes, and the same questions backwards."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainers.commands.options import (
    AllowCode,
    ClusterName,
    Data,
    Exact,
    Json,
    MicroBatch,
    Recipe,
    SetBoth,
    opened_recipe,
    print_json,
    written,
)

if TYPE_CHECKING:
    from recipes.planning.planner import Plan
    from recipes.planning.scan import Choice
    from trainers.tasks.planning import Advice, Priced, RecipeChoice
    from trainers.tasks.targets import Target

_LEFT_OUT = "(without the statistics that workers share)"
EXAMPLES = """\b
Examples:
  kilobatch plan goyal2017 --cluster big-basin
  kilobatch plan akiba2017 --cluster mn1 --target 15min
  kilobatch plan mlperf/lars_4096 --cluster dgx-1 --target 15min --target top1=0.759
  kilobatch plan goyal2017 --cluster aws-p3.16xlarge -n 16 --advise
  kilobatch plan goyal2017/256 --cluster dgx-1 --trials 64 --devices 32
  kilobatch plan goyal2017 --cluster mn1 --plot scaling.svg
  kilobatch plan mine_photos.yaml --from runs/a -n 4
"""


def plan(
    recipe: Recipe,
    cluster: ClusterName = None,
    workers: Annotated[
        int | None, typer.Option("-n", min=1, metavar="N", help="Workers; left out, all of the cluster.")
    ] = None,
    micro_batch_size: MicroBatch = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="15min|top1=0.759", help="How many devices reach this; a time, an accuracy or both."),
    ] = None,
    advise: Annotated[bool, typer.Option("--advise", help="What to set on these workers, and why.")] = False,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="T", help="Trials of a search: side by side, or one after another?")
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --trials: devices to share.")] = None,
    from_run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Learn the rates from a run's folder.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="F.png|F.svg", help="Draw time against the number of devices.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(metavar="P", help="Dollars per device-hour; the cluster's if left out.")
    ] = None,
    overrides: SetBoth = None,
    exact: Exact = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Plan a run. Division, memory, time and cost on a cluster; how many devices, which batch."""
    from trainers.runs.mpi_ranks import limit_threads

    limit_threads(threads=1)  # where a model is measured
    from recipes.planning.hardware import MOST_DOLLARS, Price
    from recipes.planning.timing import NoForecast
    from recipes.reading.load import overrides_by_file
    from recipes.reports.planning import forecast_text
    from recipes.reports.record import open_run
    from recipes.reports.terminal import plan_text
    from trainers.launch.model_costs import model_of
    from trainers.launch.preflight import refuse_folder
    from trainers.launch.request import cluster_of, planned
    from trainers.launch.vocabulary import vocabulary
    from trainers.tasks import planning
    from trainers.tasks.targets import parse_targets
    from trainers.tasks.timed_plan import timed_plan

    if devices is not None and trials is None:
        raise typer.BadParameter("is for --trials: give both", param_hint="--devices")
    if price is not None and not 0 < price <= MOST_DOLLARS:
        raise typer.BadParameter(f"write dollars, such as 2.5: above 0, at most {MOST_DOLLARS:,}", param_hint="--price")
    wanted = parse_targets(target or ())
    own, of_cluster = overrides_by_file(overrides or ())
    opened = opened_recipe(recipe, own, data, allow_code, looks=True)
    refuse_folder(opened.dataset, data)
    words = vocabulary()
    where, reading = cluster_of(cluster, workers=workers, vocabulary=words, overrides=of_cluster)
    run = None if from_run is None else open_run(from_run)
    if run is not None:
        where = planning.learned(where, run, opened, grow=cluster is None)
    whole = " (all of the cluster; -n N for fewer)" if workers is None and cluster is not None else ""
    if price is not None and where.hardware is not None:
        of_cluster_file = where.hardware.price or Price(dollars_per_device_hour=price, source="--price")
        of_user = replace(of_cluster_file, dollars_per_device_hour=price, source="--price")
        where = replace(where, hardware=replace(where.hardware, price=of_user))
    if workers is None and (wanted or trials or plot):  # the question is for other numbers of devices
        workers = min(devices or where.num_workers, *opened.recipe.batch.global_.sizes, where.num_workers)
    made = planned(
        opened,
        where,
        exact=exact,
        workers=workers,
        micro_batch_size=micro_batch_size,
        model=model_of(opened),
    )
    timed = timed_plan(made, is_this_machine=cluster is None)
    tree, texts = timed.tree, [plan_text(made, of_workers=whole * (made.workers == where.num_workers))]
    if isinstance(error := timed.time, NoForecast):
        if where.hardware is not None and run is None:  # its file lacks the figure: say where
            error = NoForecast(f"{reading.origins['hardware', 'rates']}: {error}")
        if wanted or trials or plot:
            raise error
        texts.append(f"time: not planned: {error}")
    else:
        texts.append(forecast_text(timed.time, timed.by_size))
    texts += [f"warning: {each}" for each in timed.warnings]
    if wanted is not None:
        answer, text = _target(made, wanted, words, named=cluster)
        tree["target"] = answer
        texts.append(text)
    if advise:
        noise = None if run is None else planning.noise_of_run(run)
        advice = planning.advise(opened, made, noise=noise, timed=tree["forecast"] is not None)
        tree["advice"] = asdict(advice)
        texts.append(_advice_text(advice, recipe, opened.recipe.name, is_changed=any(own)))
    if trials is not None:
        shared = planning.shared_trials(made, trials=trials, devices=devices or where.num_workers)
        tree["trials"] = [asdict(each) for each in shared]
        texts.append(_trials_text(shared, trials))
    if plot is not None:
        from recipes.reports.plots import save_figure
        from recipes.reports.plots.of_plan import scaling_figure

        times = planning.scaling(made)
        written(lambda: save_figure(scaling_figure(made, times, planning.published_times(made, words)), plot), "--plot")
    print_json(tree) if as_json else print("\n\n".join(texts))


def _target(made: Plan, wanted: Target, words: Any, *, named: str | None) -> tuple[dict, str]:
    """The answer to `--target`, for JSON and as text."""
    from recipes.planning.scan import has_convergence_points
    from trainers.tasks import planning

    if wanted.top1 is not None and not has_convergence_points(made, wanted.top1):
        reaching = planning.recipes_reaching(made, wanted, made.workers, words)
        return {"recipes": [asdict(each) for each in reaching]}, _recipes_text(made, wanted, reaching)
    if wanted.top1 is not None:
        found = planning.accuracy_choices(made, wanted, made.workers)
        answer, text = {"choices": [asdict(each) for each in found]}, _choices_text(made, wanted, found)
        if not found or wanted.seconds is None:
            return answer, text
        best, _ = planning.best_choice(made, wanted, found)
        within, more = _within(planning.of_choice(made, best), wanted, words, named=named)
        return answer | within, f"{text}\n\nwith batch {best.batch:,} and {best.epochs[0]:.1f} epochs, {more}"
    return _within(made, wanted, words, named=named)


def _within(made: Plan, wanted: Target, words: Any, *, named: str | None) -> tuple[dict, str]:
    """Devices, micro-batches and clusters on which a plan's recipe takes at most a time."""
    from trainers.tasks import planning

    times, fewest, cheapest = planning.devices_within(made, wanted.seconds)
    clusters = planning.cheapest_clusters(made, cheapest or fewest, wanted.seconds, named=named, words=words)
    micro = planning.micro_batches(made, wanted.seconds)
    answer = {
        "seconds": wanted.seconds,
        "fewest": None if fewest is None else asdict(fewest),
        "cheapest": None if cheapest is None else asdict(cheapest),
        "fastest_seconds": float(times.seconds.min()),
        "fastest_devices": times.fastest,
        "clusters": [asdict(each) for each in clusters],
        "micro_batches": [{"micro_batch_size": size, "devices": number} for size, number in micro],
    }
    return answer, _fewest_text(made, wanted, answer, fewest, cheapest, clusters)


def _fewest_text(
    made: Plan,
    wanted: Target,
    answer: dict,
    fewest: Priced | None,
    cheapest: Priced | None,
    clusters: list[Priced],
) -> str:
    from recipes.reports.curves import points_text
    from recipes.reports.planning import range_text, rate
    from recipes.reports.wording import counted, duration

    within = f"within {_asked(wanted.seconds)}"
    if fewest is None:
        best = f"{duration(answer['fastest_seconds'])} on {counted(answer['fastest_devices'], 'device')}"
        lines = [f"{within}: no number of devices up to 100,000 of {made.cluster.name}'s kind; the fastest is {best}"]
    else:
        beyond = f", and {made.cluster.name} has {made.cluster.num_workers:,}" if fewest.beyond else ""
        takes = f"{_time_text(fewest)} then{_cost_text(fewest, before=', ')}" + f" {_LEFT_OUT}" * fewest.leaves_out
        devices = f"{counted(fewest.devices, 'device')} ({_devices_text(fewest.range_devices)}){beyond}"
        lines = [f"{within}: at least {devices}; {takes}"]
        if cheapest is not None and cheapest != fewest:
            cost = _cost_text(cheapest, before=", ")
            lines.append(f"the cheapest: {counted(cheapest.devices, 'device')}; {_time_text(cheapest)} then{cost}")
    if len(answer["micro_batches"]) > 1:
        each = (f"{row['micro_batch_size']}: {row['devices']:,}" for row in answer["micro_batches"])
        lines.append(f"fewest devices by micro-batch: {', '.join(each)}")
    if clusters:
        rows = [
            {
                "cluster": each.cluster,
                "devices": each.devices,
                "time": _time_text(each),
                "device-hours": f"{rate(each.device_hours)} {range_text(each.range_device_hours)}",
                "cost": _cost_text(each),
                "": "<- this plan's" * each.own + f" {_LEFT_OUT}" * each.leaves_out,
            }
            for each in clusters
        ]
        priced, unpriced = clusters[0].dollars is not None, clusters[-1].dollars is None
        first = f"the cheapest first{', then those unpriced' * unpriced}" if priced else "fewest device-hours first"
        where = "this cluster and the named ones" if any(each.own for each in clusters) else "the named clusters"
        lines += [f"on {where}, {first}:", points_text(rows)]
    return "\n".join(lines)


def _time_text(priced: Priced) -> str:
    from recipes.reports.wording import duration

    return f"{duration(priced.seconds)} ({' to '.join(map(duration, priced.range_seconds))})"


def _cost_text(priced: Priced, *, before: str = "") -> str:
    """Its dollars, behind `before`; empty where no price is known."""
    from recipes.reports.planning import cost_text

    if priced.dollars is None:
        return ""
    devices = {"devices": priced.devices, "billed": priced.billed_devices}
    return before + cost_text(priced.dollars, priced.range_dollars, **devices)


def _asked(seconds: float) -> str:
    """The time of a target, also where it is so short that `duration` rounds it away."""
    from recipes.reports.wording import duration

    return duration(seconds) if seconds >= 0.1 else f"{seconds:g} s"


def _devices_text(ends: tuple[int | None, int | None]) -> str:
    few, many = ("no number" if each is None else f"{each:,}" for each in ends)
    return f"{few} to {many}"


def _recipes_text(made: Plan, wanted: Target, found: list[RecipeChoice]) -> str:
    from recipes.reports.curves import points_text
    from recipes.reports.wording import duration, percent

    goal = f"{percent(wanted.top1, digits=1)} top-1" + (f" within {_asked(wanted.seconds)}" if wanted.seconds else "")
    if not found:
        return f"{goal}: no recipe that claims it does so on {made.workers:,} devices of {made.cluster.name}"
    rows = [
        {
            "recipe": each.recipe,
            "top-1": percent(each.top1, digits=1),
            "here": each.status,
            "epochs": round(each.epochs, 1),
            "batch": each.batch,
            "devices": each.devices,
            "time": duration(each.seconds),
            "from": duration(each.range_seconds[0]),
            "to": duration(each.range_seconds[1]),
        }
        for each in found
    ]
    how = "recipes of the library that claim it, by published results, the fastest first; each has its own settings"
    return f"{goal}; {how}\n{points_text(rows)}"


def _choices_text(made: Plan, wanted: Target, found: list[Choice]) -> str:
    from recipes.reports.curves import points_text
    from recipes.reports.wording import duration, percent
    from trainers.tasks.planning import best_choice

    goal = f"{percent(wanted.top1, digits=1)} top-1" + (f" within {_asked(wanted.seconds)}" if wanted.seconds else "")
    if not found:
        return f"{goal}: no batch reaches it on {made.workers:,} devices of {made.cluster.name}; try more devices"
    best, why = best_choice(made, wanted, found)
    rows = [
        {
            "batch": each.batch,
            "epochs": f"{each.epochs[0]:.1f} ({each.epochs[1]:.0f}-{each.epochs[2]:.0f})",
            "devices": each.devices,
            **({"devices from-to": _devices_text(each.range_devices)} if wanted.seconds else {}),
            "time": duration(each.seconds[0]),
            "from": duration(each.seconds[1]),
            "to": duration(each.seconds[2]),
            "": f"<- {why}" * (each is best),
        }
        for each in found
    ]
    how = "epochs by batch from MLPerf's reference points (LARS, mean, least and most of 10 runs or more)"
    return f"{goal}; {how}; recipes mlperf/lars_* have their settings\n{points_text(rows)}"


def _advice_text(advice: Advice, recipe: str, name: str, *, is_changed: bool) -> str:
    """What to set, and how to write it as a file; with `is_changed` the recipe has values of `--set`."""
    from recipes.reading.yaml import flow_text
    from recipes.reports.wording import counted, duration
    from recipes.sharing.pack_file import SUFFIX

    steps = f" x {advice.steps} steps" if advice.steps > 1 else ""
    time = "no time is known"
    if advice.range_seconds is not None:
        time = f"{duration(advice.seconds[1])} ({' to '.join(map(duration, advice.range_seconds))})"
    lines = [
        f"advice for {counted(advice.workers, 'worker')}: batch.global {advice.batch:,}, micro-batch "
        f"{advice.micro_batch_size}{steps}; {time}",
        *(f"  - {reason}" for reason in advice.reasons),
        "  - these are rules of published scaling, not measurements of this recipe: try it on seeds of your own",
    ]
    moving = [change for change in advice.changes if change.moves]
    if moving:
        lines.append("set these:")
        for change in moving:
            values = f"{flow_text(change.before)} -> {flow_text(change.after)}"
            lines.append(f"  {change.key}: {values}" + f"   {change.reason}" * (change.key != "batch.global"))
    stays = [change for change in advice.changes if not change.moves and change.key.startswith("learning_rate.")]
    lines += [f"  {change.key} stays {flow_text(change.after)}: {change.reason}" for change in stays]
    if not advice.changes:
        lines.append("the recipe's own batch: its rates and its warmup stay as they are")
    elif is_changed:
        way = f"kilobatch recipes scale FILE --batch {advice.batch}"
        lines.append(f"or write the file: put the values of --set into a recipe that extends this one, then {way}")
    elif recipe.endswith(SUFFIX):
        way = f"kilobatch recipes scale REGISTRY/NAME@VERSION --batch {advice.batch}"
        lines.append(f"or write the file: push the pack into a registry, then {way}")
    else:
        stem = recipe.removesuffix(".yaml") if recipe.endswith(".yaml") else name
        file = quote(f"{stem}_{advice.batch}.yaml")
        lines.append(f"or write the file: kilobatch recipes scale {quote(recipe)} --batch {advice.batch} -o {file}")
    return "\n".join(lines)


def _trials_text(shared: list, trials: int) -> str:
    from recipes.planning.scan import SEQUENTIAL_ROUNDS, best_sharing
    from recipes.reports.curves import points_text
    from recipes.reports.wording import counted, duration

    rows = [
        {
            "devices a trial": each.devices_each,
            "side by side": each.at_once,
            "one after another": each.rounds,
            "a trial": duration(each.trial_seconds),
            "all": duration(each.seconds),
            "from": duration(each.range_seconds[0]),
            "to": duration(each.range_seconds[1]),
        }
        for each in shared
    ]
    random, sequential = (best_sharing(shared, sequential=kind) for kind in (False, True))
    return "\n".join(
        [
            f"{counted(trials, 'trial')}, if each runs as long as this recipe; "
            "the choices below are rules, nothing was measured:",
            points_text(rows),
            f"random search: {counted(random.devices_each, 'device')} a trial, {duration(random.seconds)}",
            f"a sampler that learns from ended trials: {counted(sequential.devices_each, 'device')} a trial, "
            f"{duration(sequential.seconds)}, so that it learns in {counted(sequential.rounds, 'round')} "
            f"(of at least {SEQUENTIAL_ROUNDS}, assumed)",
        ]
    )
