"""A trial from its request to its outcome: its reports, its objectives and the constraints that it breaks."""

from __future__ import annotations

import json
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
from recipes.schema import Objective, Search
from recipes.schema.constraints import Expression
from recipes.schema.positions import last_multiple
from recipes.search_space.open_search import OpenedSearch, assignments
from trainers.launch.request import Prepared, TrainRequest
from trainers.runs.run_folder import METRICS, RUN

_REACHES = "accuracy >= {:g}"  # the constraint that a trial which misses its target breaks


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """The command line of `kilobatch search`; what is searched is in the search's file.

    Args:
        joined: set by rank 0 of a foreign launcher for its supervisor: see `launched_groups`.
        hang_seconds: a trial without an update for this long is ended.
    """

    search: str
    workers: int | None = None
    hosts: str | None = None
    joined: str | None = None
    out: Path | None = None
    resume: bool = False
    dry_run: bool = False
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False
    cluster: str | None = None
    device: str | None = None
    storage: str | None = None
    study: str | None = None


def trial_request(
    opened: OpenedSearch,
    number: int,
    values: Mapping[str, Any],
    folder: Path,
    options: SearchRequest,
    *,
    seed: int | None = None,
    every: str | None = None,
    stop_after: str | None = None,
) -> TrainRequest:
    """The request to train trial `number` in `folder`, or to resume it; with a target it ends where it reaches that.

    Args:
        seed: replaces that of the trial's recipe.
        every: how often it is evaluated and saved; None: at the search's `reports`.
        stop_after: where it ends at the latest; None: with its recipe.
    """
    search, target = opened.search, opened.search.objectives[0].target
    report = every or f"{1 / search.reports!r}run"
    given = {
        **search.fixed,
        **values,
        **({} if seed is None else {"seed": seed}),
        "name": f"{search.name}-trial-{number}",
        "title": f"Trial {number} of the search {search.name} over {search.recipe}",
        "evaluation.every": report,
        "stop_at": None if target is None else {"accuracy": target},
        "claims": [],
        "card": None,
    }
    return TrainRequest(
        recipe=os.fspath(opened.base.path),
        overrides=tuple(assignments(given)),
        overrides_from=f"search {search.name} trial {number}",
        out=folder,
        resume=(folder / RUN).exists(),
        checkpoint_every=report,
        stop_after=stop_after,
        data=opened.options["data_root"],
        allow_code=opened.options["allow_code"],
        cluster=options.cluster,
        device=options.device,
    )


def reports_in(lines: Iterable[Mapping[str, Any]], prepared: Prepared, search: Search) -> Iterable[tuple[int, float]]:
    """The reports among all lines of a run's metrics: the last point of the run that its update reached, and a score.

    Points count from 1 to the search's `reports`, the end of the run. The score is that of the objective, of a target
    the accuracy; or the training loss, as a mean over the updates since the report before. With several objectives it
    is the accuracy, for the display.
    """
    every, whole = prepared.opened.recipe.evaluation.every, prepared.plan.timeline.num_updates
    metric = search.reported.metric if search.reported and not search.has_goal else "accuracy"
    key = "eval_accuracy" if metric == "train_loss" else f"eval_{metric}"
    losses: list[float] = []
    for line in lines:
        if line.get("key") == "train_loss":
            losses.append(line["value"])
        elif line.get("key") == key:
            passed = round(last_multiple(line["epoch"], every) / every)
            number = search.reports if line["update"] == whole else min(passed, search.reports)
            yield number, fmean(losses) if metric == "train_loss" else line["value"]
            losses = []


def trial_result(
    search: Search,
    runs: Sequence[Sequence[Mapping[str, Any]]],
    recipe: Mapping[str, Any],
    *,
    device_hours: float,
) -> tuple[list[float], dict[str, float]]:
    """The result of a trial whose runs have ended: each score is the mean over the runs.

    A trial that misses the target of its objective has the figures of its whole run, and breaks a constraint by the
    part of the target that it lacks; so a sampler knows how near it came.

    Args:
        search: with the objectives and constraints.
        runs: the lines of each run's `metrics.jsonl`.
        recipe: of the trial, resolved.
        device_hours: of all runs together.
    Returns:
        The values of the objectives in their order; constraint -> by how much it is violated, at most 0 if it is kept.
    """
    each = [run_scores(lines) for lines in runs]
    scores = {metric: fmean([run[metric] for run in each]) for metric in each[0]} | {"device_hours": device_hours}
    violations = recipe_violations(search, recipe)
    for constraint in search.constraints:
        if constraint.metric is not None:
            own = constraint.violations(scores[constraint.metric])
            violations |= {name: it if math.isfinite(it) else 1.0 for name, it in own.items()}  # Optuna takes no NaN
    values = []
    for objective in search.objectives:
        if objective.target is None:
            value = scores[objective.metric]
        else:
            goals = [goal_of(lines, objective, ranks=search.ranks_per_trial) for lines in runs]
            value = fmean(value for value, _ in goals)
            violations[_REACHES.format(objective.target)] = max(lacking for _, lacking in goals)
        values.append(objective.worst if math.isnan(value) else value)
    return values, violations


def diverged_result(search: Search) -> tuple[list[float], dict[str, float]]:
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


def goal_of(lines: Iterable[Mapping[str, Any]], objective: Objective, *, ranks: int) -> tuple[float, float]:
    """What a run took until the first evaluation that reached the objective's target, and the part of it that it lacks.

    Returns:
        (updates, epochs or device-hours until then, or of the whole run if it never did; (target - best) / target, at
        most 0 if it was reached).
    """
    best, hours, last_ms, taken = 0.0, 0.0, None, 0.0
    for line in lines:
        now_ms = line.get("time_ms")
        if line.get("key") != "run_start" and None not in (now_ms, last_ms):  # not the time between two sessions
            hours += ranks * (now_ms - last_ms) / 3.6e6
        last_ms = now_ms
        if line.get("key") == "eval_accuracy":
            best = max(best, line["value"])
            taken = {"updates_to": line["update"], "epochs_to": line["epoch"], "hours_to": hours}[objective.metric]
            if line["value"] >= objective.target:
                break
    return float(taken), (objective.target - best) / objective.target


def run_scores(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The scores of a finished run by metric.

    accuracy, loss    of the last evaluation
    train_loss        mean over the updates since the evaluation before that
    """
    scores: dict[str, float] = {}
    losses: list[float] = []
    for line in lines:
        key = line.get("key")
        if key == "train_loss":
            losses.append(line["value"])
        elif key in ("eval_accuracy", "eval_loss"):
            scores[key.removeprefix("eval_")] = line["value"]
            scores |= {"train_loss": fmean(losses)} if losses else {}
            losses = []
    return scores


def metrics_lines(folder: Path) -> list[dict[str, Any]]:
    """What a run has written so far; a line cut off by a crash is left out."""
    path, lines = folder / METRICS, []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def has_ended(folder: Path, *how: str) -> bool:
    """Whether a run has ended, by its last line: in one of these ways, else with `success` or as `failed`."""
    *_, last = [{}, *metrics_lines(folder)]
    return last.get("key") == "run_stop" and last.get("value") in (how or ("success", "failed"))
