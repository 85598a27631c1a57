"""What `kilobatch search --dry-run` prints: the space, the budget, and the first trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.planning.timeline import Timeline
from recipes.reading.load import resolved_text
from recipes.reports.curves import points_text
from recipes.reports.terminal import plan_text
from recipes.reports.wording import number
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch
from trainers.launch.model_costs import model_of
from trainers.launch.request import prepare
from trainers.search.outcome import SearchRequest, trial_request
from trainers.search.study import enqueue, new_study, next_trial, suggested
from trainers.search.wording import metric_name, short

_BROKEN = ("not trained", "never the best")  # by a constraint on the recipe, on what a trial came to


def dry_run_text(
    opened: OpenedSearch, options: SearchRequest, first: Sequence[Mapping[str, Any]], *, groups: int
) -> str:
    """The space, the budget, and the first trial: its values, its plan and its recipe.

    Args:
        opened, options: the search, and its command line.
        first: values of the trials that are tried first.
        groups: how many trials run side by side.
    Raises:
        InputRefused: the first trial cannot be planned.
    """
    search, study = opened.search, new_study(opened.search)
    enqueue(study, first)
    values = suggested(next_trial(study, search), search)
    prepared = prepare(trial_request(opened, 0, values, Path("trial"), options), workers=search.ranks_per_trial)
    every = prepared.opened.recipe.evaluation.every
    goals = " and ".join(f"{one.direction} {metric_name(one.metric)}" for one in search.objectives)
    lines = [f"search {search.name} over {search.recipe}: {goals}", "", _space_text(opened, values), ""]
    lines += [f"fixed: {path} {short(value)}" for path, value in search.fixed.items()]
    for constraint in search.constraints:
        kept = " and ".join(constraint.violations(0))
        lines.append(f"constraint: {kept}, or a trial is {_BROKEN[constraint.value is None]}")
    lines.append(f"sampler: {type(search.sampler).__name__}")
    lines.append(f"reports: {search.reports} a trial, every {'epoch' if every == 1 else f'{float(every):g} epochs'}")
    lines += _budget_lines(search, prepared.plan.timeline, groups)
    lines += ["", "plan of the first trial:", plan_text(replace(prepared.plan, model=model_of(prepared.opened)))]
    recipe = resolved_text(prepared.opened.tree, prepared.opened.origins).rstrip()
    return "\n".join([*lines, "", "recipe of the first trial:", recipe])


def _space_text(opened: OpenedSearch, values: Mapping[str, Any]) -> str:
    """The search space as a table, with the values of the first trial."""
    rows = []
    for path, tree in opened.tree["space"].items():
        first = short(values[path]) if path in values else "-"
        rows.append({"path": path, "range": _range_text(tree), "first trial": first})
    return points_text(rows)


def _range_text(tree: Mapping[str, Any]) -> str:
    """A range in words."""
    parts = [f"where {name} is {' or '.join(map(short, choices))}" for name, choices in tree["when"].items()]
    if tree["kind"] == "Categorical":
        return ", ".join([" | ".join(map(short, tree["choices"])), *parts])
    step = tree["step"] not in (None, 1) and f"step {tree['step']}"
    return ", ".join(filter(None, [f"{tree['low']} to {tree['high']}", tree["log"] and "log", step, *parts]))


def _budget_lines(search: Search, timeline: Timeline, groups: int) -> list[str]:
    """What the search may cost, and its ranks."""
    budget, seeds, ranks = search.budget, search.seeds_per_trial, search.ranks_per_trial
    each = f"{timeline.num_updates} updates" + (f" from each of {seeds} seeds" if seeds > 1 else "")
    samples = number(budget.trials * seeds * timeline.num_samples)
    limits = {"hours": budget.hours, "device-hours": budget.device_hours}
    side = f"{groups} trials side by side" if groups > 1 else "1 trial at a time"
    return [
        f"budget: {budget.trials} trials of {each} like the first one, {samples} samples in all",
        *(f"{name}: trials begin within {limit:g}" for name, limit in limits.items() if limit is not None),
        f"ranks: {ranks} a trial, {side}; an hour of all is {groups * ranks} device-hours",
    ]
