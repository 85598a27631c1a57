"""What `kilobatch search --dry-run` prints: the space, the budget, what is pruned, and the first trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from recipes.planning.rates import rate_shape, slow_until
from recipes.reading.load import resolved_text
from recipes.reading.open import open_recipe
from recipes.reports.curves import points_text
from recipes.reports.terminal import plan_text
from recipes.reports.wording import counted, duration, number
from recipes.schema import Constraint, Search
from recipes.search_space.open_search import OpenedSearch, assignments
from recipes.search_space.ranges import condition_values
from trainers.launch.model_costs import model_of
from trainers.launch.request import Prepared, prepare
from trainers.search.display import metric_name, short
from trainers.search.study import enqueue, new_study, suggested
from trainers.search.trial_run import SearchOptions, trial_request


def dry_run_text(opened: OpenedSearch, options: SearchOptions, *, groups: int) -> str:
    """The space, the budget, and the first trial: its values, its plan and its recipe.

    Args:
        opened: the search.
        options: of the search.
        groups: how many trials run side by side.
    Raises:
        InputRefused: the first trial cannot be planned.
    """
    search, study = opened.search, new_study(opened.search)
    enqueue(study, opened)
    values = suggested(study.ask(), search)
    prepared = prepare(trial_request(opened, 0, values, Path("trial"), options), workers=search.ranks_per_trial)
    every = prepared.opened.recipe.evaluation.every
    goals = " and ".join(f"{one.direction} {metric_name(one.metric)}" for one in search.objectives)
    lines = [
        f"search {search.name} over {search.recipe}: {goals}",
        "",
        space_text(opened, values),
        "",
        *(f"fixed: {path} {short(value)}" for path, value in search.fixed.items()),
        *(f"constraint: {_constraint_text(constraint)}" for constraint in search.constraints),
        f"sampler: {type(search.sampler).__name__}",
        f"pruner: {pruning_text(opened, prepared)}",
        f"reports: {search.reports} a trial, every {'epoch' if every == 1 else f'{float(every):g} epochs'}",
        *_budget_lines(search, prepared, groups),
        "",
        "plan of the first trial:",
        plan_text(replace(prepared.plan, model=model_of(prepared.opened))),
        "",
        "recipe of the first trial:",
        resolved_text(prepared.opened.tree, prepared.opened.origins).rstrip(),
    ]
    return "\n".join(lines)


def space_text(opened: OpenedSearch, values: Mapping[str, Any]) -> str:
    """The search space as a table, with the values of the first trial."""
    conditional = any(range_.when for range_ in opened.search.space.values())
    rows = []
    for path, tree in opened.tree["space"].items():
        row = {"path": path, "range": _range_text(tree)}
        if conditional:
            when = (tree.get("when") or {}).items()
            row["when"] = ", ".join(f"{name} is {' or '.join(map(short, choices))}" for name, choices in when)
        rows.append({**row, "first trial": short(values[path]) if path in values else "-"})
    return points_text(rows)


def _range_text(tree: Mapping[str, Any]) -> str:
    """A range in words."""
    if tree["kind"] == "Categorical":
        return " | ".join(map(short, tree["choices"]))
    step = tree.get("step")
    parts = (f"{tree['low']} to {tree['high']}", tree["log"] and "log", step not in (None, 1) and f"step {step}")
    return ", ".join(filter(None, parts))


def _constraint_text(constraint: Constraint) -> str:
    ends = (("at most", constraint.at_most), ("at least", constraint.at_least))
    limits = " and ".join(f"{words} {end:g}" for words, end in ends if end is not None)
    if constraint.value is not None:
        return f"{constraint.value} {limits}, or a trial is not trained"
    return f"{metric_name(str(constraint.metric))} {limits}, or a trial is never the best"


def pruning_text(opened: OpenedSearch, prepared: Prepared) -> str:
    """When the pruner may end a trial, and which searched paths keep it from comparing trials.

    Args:
        opened: the search.
        prepared: its first trial.
    """
    search = opened.search
    if search.pruner is None:
        return "none"
    name = type(search.pruner).__name__
    text = f"{name}, in the first trial from epoch {slow_until(prepared.opened.recipe):g} on, where its slow start ends"
    for path in filter(partial(_moves_shape, opened), search.space):
        few = "few" if hasattr(search.space[path], "choices") else "hardly any"
        text += f"\nnot compared: trials whose rate has another shape; {path} changes it, so {few} are pruned"
    return text


def _moves_shape(opened: OpenedSearch, path: str) -> bool:
    """Whether the ends of a range, or two of its choices, give rates of different shapes."""
    search = opened.search
    given = search.fixed | condition_values(search.space, path)[0]
    tried = (assignments({**given, path: value}) for value in search.space[path].ends.values())
    recipes = (open_recipe(opened.base.path, overrides=each, **opened.options).recipe for each in tried)
    return len(set(map(rate_shape, recipes))) > 1


def _budget_lines(search: Search, prepared: Prepared, groups: int) -> list[str]:
    """What the search may cost: trials, samples, hours and device-hours."""
    budget, seeds, ranks = search.budget, search.seeds_per_trial, search.ranks_per_trial
    plan, all_ranks, rounds = prepared.plan.as_tree(), groups * ranks, -(-budget.trials // groups)
    each = f"{plan['num_updates']} updates" + (f" from each of {seeds} seeds" if seeds > 1 else "")
    samples = number(budget.trials * seeds * plan["num_samples"])
    lines = [f"budget: {budget.trials} trials of {each} like the first one, {samples} samples in all"]
    if budget.hours is not None:
        limit = f"{budget.hours * all_ranks:g} device-hours"
        lines.append(f"hours: trials begin within {counted(budget.hours, 'hour')}, up to {limit}")
    if budget.device_hours is not None:
        whole = f"{all_ranks} ranks use in {duration(3600 * budget.device_hours / all_ranks)}"
        lines.append(f"device-hours: trials begin within {budget.device_hours:g}, which {whole}")
    side = f"{groups} trials side by side" if groups > 1 else "1 trial at a time"
    after = f"{counted(rounds, 'trial')} one after the other; an hour of all is {all_ranks:g} device-hours"
    return [*lines, f"ranks: {ranks} a trial, {side}, so as long as {after}"]
