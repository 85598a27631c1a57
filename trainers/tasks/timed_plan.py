"""A plan with its time and its warnings, as `kilobatch plan --json` and `kilobatch.plan` give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipes.planning.forecast import Forecast, by_micro_batch, forecast
from recipes.planning.planner import Plan
from recipes.planning.timing import NoForecast
from recipes.reports.wording import percent
from trainers.runs.cores import usable_cores

BY_CHANCE = 1.1  # times what measurements allow, that one may exceed as runs vary: assumed


@dataclass(frozen=True, kw_only=True)
class TimedPlan:
    """A plan and its time.

    Args:
        tree: the plan as plain data, with `forecast`, which is None where the cluster lacks a figure.
        time: of the run, or what the cluster lacks.
        by_size: the time in micro-batches of other sizes.
        warnings: of the time; `tree` has them too.
    """

    tree: dict[str, Any]
    time: Forecast | NoForecast
    by_size: dict[int, Forecast]
    warnings: tuple[str, ...]


def timed_plan(made: Plan, *, is_this_machine: bool) -> TimedPlan:
    """A plan with its time.

    Args:
        made: the plan.
        is_this_machine: no cluster was named.
    """
    tree = made.as_tree()
    try:
        time = forecast(made)
        by_size = by_micro_batch(made, [row["micro_batch_size"] for row in (tree["memory"] or {}).get("choices", [])])
    except NoForecast as error:
        return TimedPlan(tree=tree | {"forecast": None}, time=error, by_size={}, warnings=())
    tree["forecast"] = time.as_tree() | {
        "seconds_by_micro_batch": {size: each.seconds for size, each in by_size.items()},
        "range_seconds_by_micro_batch": {size: list(each.range_seconds) for size, each in by_size.items()},
    }
    warnings, cores = [*time.warnings], usable_cores()
    if is_this_machine and made.cluster.device == "cpu" and made.workers > cores:
        shared = f"{made.workers} ranks would share the {cores} cores of this machine"
        warnings.append(f"{shared}, and this time is without that")
    if (alone := time.efficiency["one_device"]) > BY_CHANCE:
        reached = f"each device would reach {percent(alone, digits=0)} of what it reaches alone"
        warnings.append(f"{reached}, so the measured rates exclude each other: measure again on a machine that idles")
    tree["warnings"] = [*tree["warnings"], *warnings]
    return TimedPlan(tree=tree, time=time, by_size=by_size, warnings=tuple(warnings))
