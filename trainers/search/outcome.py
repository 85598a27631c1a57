"""A trial from its request to its outcome: its reports, its objectives and the constraints that it breaks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from recipes.reading.read import value_at
from recipes.reports.metrics import is_score, read_metrics
from recipes.schema import Search
from recipes.schema.constraints import Expression
from recipes.schema.positions import last_multiple
from recipes.search_space.open_search import OpenedSearch, assignments
from trainers.launch.request import Prepared, TrainRequest
from trainers.runs.metrics_file import ending_of
from trainers.runs.run_folder import METRICS, RUN

_REACHES = "accuracy >= {:g}"  # the constraint that a trial which misses its target breaks
# The value of each objective; constraint -> by how much it is violated, at most 0 if it is kept.
Result = tuple[Sequence[float] | None, Mapping[str, float]]
_TAKEN = {"updates_to": "update", "epochs_to": "epoch", "hours_to": "hours"}  # by a goal: key of an evaluation


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """The command line of `kilobatch search`; what is searched is in the search's file.

    Args:
        joined: set by rank 0 of a foreign launcher for its supervisor: their number, and the folder of their messages.
        goes_on: a frontier has begun another search of the method: what was tried for that is not tried again.
        hang_seconds: a trial without an update for this long is ended.
    """

    search: str
    workers: int | None = None
    hosts: str | None = None
    joined: str | None = None
    out: Path | None = None
    resume: bool = False
    goes_on: bool = False
    dry_run: bool = False
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False
    cluster: str | None = None
    device: str | None = None
    storage: str | None = None


def trial_request(
    opened: OpenedSearch,
    number: int,
    values: Mapping[str, Any],
    folder: Path,
    options: SearchRequest,
    *,
    stop_after: str | None = None,
) -> TrainRequest:
    """The request to train trial `number` in `folder`, or to resume it; with a target it ends where it reaches that.

    It is evaluated and saved at the search's `reports`, or as `values` say, and ends at the latest at `stop_after`.
    """
    target = opened.search.objectives[0].target
    given = {"evaluation.every": f"{1 / opened.search.reports!r}run", **values}
    given |= {"stop_at": None if target is None else {"accuracy": target}}
    return TrainRequest(
        recipe=os.fspath(opened.base.path),
        **trial_changes(opened.search, number, given),
        out=folder,
        resume=(folder / RUN).exists(),
        checkpoint_every=given["evaluation.every"],
        stop_after=stop_after,
        data=opened.options["data_root"],
        allow_code=opened.options["allow_code"],
        cluster=options.cluster,
        device=options.device,
    )


def trial_changes(search: Search, number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """All that the recipe of a trial changes, as arguments of `open_recipe`; the recipe's own claims do not hold."""
    own = {"name": f"{search.name}-trial-{number}", "claims": [], "card": None}
    own["title"] = f"Trial {number} of the search {search.name} over {search.recipe}"
    origin = f"search {search.name} trial {number}"
    return {"overrides": tuple(assignments({**search.fixed, **values, **own})), "overrides_from": origin}


def metrics_lines(folder: Path) -> list[dict[str, Any]]:
    """What a run has written so far; a line cut off by a crash is left out."""
    path = folder / METRICS
    return [line for _, line in read_metrics(path)] if path.is_file() else []


def has_ended(folder: Path) -> bool:
    """Whether a run has ended with a result: with success, or because it diverged."""
    return ending_of(folder) in ("success", "diverged")


def evaluations(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of a run, from all lines of its metrics: `update`, `epoch`, `hours` and scores by their names.

    The hours are those of training until then; `train_loss` is the mean over the updates since the evaluation before.
    """
    found: list[dict[str, Any]] = []
    losses, hours, now_ms = [], 0.0, 0
    for line in lines:
        key, last_ms, now_ms = line["key"], now_ms, line["time_ms"]
        if key != "run_start":  # not the time before the run, or between two sessions
            hours += (now_ms - last_ms) / 3.6e6
        if key == "train_loss":
            losses.append(line["value"])
        elif key == "eval_accuracy":
            found.append({"update": line.get("update"), "epoch": line.get("epoch"), "hours": hours})
            found[-1] |= {"accuracy": line["value"], **({"train_loss": fmean(losses)} if losses else {})}
            losses = []
        elif is_score(line) and found:
            found[-1][key.removeprefix("eval_")] = line["value"]
    return found


def reports_in(lines: Iterable[Mapping[str, Any]], prepared: Prepared, search: Search) -> Iterable[tuple[int, float]]:
    """The reports among all lines of a run's metrics: number, up to the search's `reports` at the end, and score.

    The score is that of the first objective, and with a target the accuracy; device-hours are no report.
    """
    every, whole = prepared.opened.recipe.evaluation.every, prepared.plan.timeline.num_updates
    metric = "accuracy" if search.has_goal else search.objectives[0].metric
    for own in evaluations(lines):
        passed = round(last_multiple(own["epoch"], every) / every)
        if metric in own:  # its loss is written after its accuracy
            yield search.reports if own["update"] == whole else min(passed, search.reports), own[metric]


def goal_of(lines: Iterable[Mapping[str, Any]], search: Search) -> tuple[float, float]:
    """What a run took until the first evaluation that reached the search's target, and the part of it that it lacks.

    Returns:
        (updates, epochs or device-hours until then, or of the whole run if it never did; (target - best) / target, at
        most 0 if it was reached).
    """
    objective, best, taken = search.objectives[0], 0.0, 0.0
    for own in evaluations(lines):
        best, taken = max(best, own["accuracy"]), own[_TAKEN[objective.metric]]
        if best >= objective.target:
            break
    ranks = search.ranks_per_trial if objective.metric == "hours_to" else 1
    return float(taken * ranks), (objective.target - best) / objective.target


def trial_result(search: Search, runs: Sequence[Sequence[Mapping[str, Any]]]) -> Result:
    """The result of a trial whose runs have ended: each score is the mean over the runs, of their last evaluation.

    A trial that misses the target of its objective has the figures of its whole run, and breaks a constraint by the
    part of the target that it lacks; so a sampler knows how near it came.

    Args:
        runs: the lines of each run's `metrics.jsonl`; their device-hours add up.
    """
    ends, values, violations = [evaluations(lines)[-1] for lines in runs], [], {}

    def score(metric: str) -> float:
        if metric == "device_hours":
            return search.ranks_per_trial * math.fsum(end["hours"] for end in ends)
        return fmean(end[metric] for end in ends)

    for constraint in search.constraints:
        if constraint.metric is not None:
            own = constraint.violations(score(constraint.metric))
            violations |= {name: it if math.isfinite(it) else 1.0 for name, it in own.items()}  # Optuna takes no NaN
    for objective in search.objectives:
        if objective.target is None:
            value = score(objective.metric)
        else:
            goals = [goal_of(lines, search) for lines in runs]
            value = fmean(value for value, _ in goals)
            violations[_REACHES.format(objective.target)] = max(lacking for _, lacking in goals)
        values.append(objective.worst if math.isnan(value) else value)
    return values, violations


def diverged_result(search: Search) -> Result:
    """The result of a trial whose numbers did not stay finite: the worst there is."""
    lacking = {_REACHES.format(one.target): 1.0 for one in search.objectives if one.target is not None}
    return [objective.worst for objective in search.objectives], lacking


def recipe_violations(search: Search, recipe: Mapping[str, Any]) -> dict[str, float]:
    """The violations of constraints on recipe values, which are known before the trial is trained.

    Raises:
        ValueError: a value in a constraint's expression is not a number.
    """
    violations: dict[str, float] = {}
    for constraint in search.constraints:
        if constraint.value is not None:
            with suppress(LookupError):  # the recipe lacks one of the paths
                violations |= constraint.violations(Expression(constraint.value)(partial(value_at, recipe)))
    return violations
