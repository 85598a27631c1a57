"""What `kilobatch search --dry-run` prints: the space, the first trial, the budget, and a forecast of the cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.rates import slow_until
from recipes.reading.load import resolved_text
from recipes.reports.curves import points_text
from recipes.reports.terminal import plan_text
from recipes.reports.wording import duration, number
from recipes.schema import Constraint, Search
from recipes.search_space.open_search import OpenedSearch
from trainers.launch.model_costs import model_of
from trainers.launch.request import Prepared, prepare
from trainers.search.display import metric_name, short
from trainers.search.search_folder import STORAGE, check_folder, study_of
from trainers.search.study import SECONDS, finished, new_study, suggested
from trainers.search.successive_halving import has_rungs
from trainers.search.trial_run import SearchOptions, trial_request

_NO_FORECAST = (
    "nothing is known before a trial has ended; then this, and the table of the search, go by those that have"
)


def dry_run_text(
    opened: OpenedSearch, options: SearchOptions, *, groups: int
) -> str:
    """The space, the budget, and the first trial: its values, its plan and its recipe.

    Args:
        opened: the search.
        options: of the search, whose folder has its trials if it has begun.
        groups: how many trials run side by side.
        large: the second search of a transfer, as it would be if the recipe itself were the best of the first.
    Raises:
        InputRefused: the first trial cannot be planned.
    """
    search, study = opened.search, new_study(opened.search)
    for values in opened.enqueued[:1]:
        study.enqueue_trial(values)
    values = suggested(study.ask(), search)
    prepared = prepare(trial_request(opened, 0, values, Path("trial"), options), workers=search.ranks_per_trial)
    every = prepared.opened.recipe.evaluation.every
    goals = (f"{objective.direction} {metric_name(objective.metric)}" for objective in search.objectives)
    lines = [
        f"search {search.name} over {search.recipe}: {' and '.join(goals)}",
        "",
        space_text(opened, values),
        "",
        *(f"fixed: {path} {short(value)}" for path, value in search.fixed.items()),
        *(f"constraint: {_constraint_text(constraint)}" for constraint in search.constraints),
        f"sampler: {type(search.sampler).__name__}",
        f"pruner: {_pruner_text(search)}",
        f"reports: {search.reports} a trial, every {'epoch' if every == 1 else f'{float(every):g} epochs'}"
        + (f"; {_warmup_text(prepared)}" if search.pruner and not has_rungs(search) else ""),
        *_budget_lines(search, prepared, groups),
        *cost_lines(opened, options.folder, groups=groups),
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


def _pruner_text(search: Search) -> str:
    if search.pruner is None:
        return "none"
    shares = ", ".join(str(share) for share in getattr(search.pruner, "shares", ()))
    return type(search.pruner).__name__ + (f", over runs of {shares} of the epochs" if shares else "")


def _warmup_text(prepared: Prepared) -> str:
    end = slow_until(prepared.opened.recipe)
    if not end:
        return "the first trial has no slow start: it may be pruned from its first report on"
    return f"the first trial is not pruned before epoch {end:g}, where its slow start ends"


def _budget_lines(search: Search, prepared: Prepared, groups: int) -> list[str]:
    """What the search may cost: trials, samples, hours and device-hours."""
    budget, seeds, ranks = search.budget, search.seeds_per_trial, search.ranks_per_trial
    plan, all_ranks = prepared.plan.as_tree(), groups * ranks
    each = f"{plan['num_updates']} updates"
    each += f" from each of {seeds} seeds" if seeds > 1 else ""
    samples = budget.trials * seeds * plan["num_samples"]
    rounds = -(-budget.trials // groups)
    lines = [f"budget: {budget.trials} trials of {each} like the first one, {number(samples)} samples in all"]
    if budget.hours is not None:
        limit, plural = f"{budget.hours * all_ranks:g} device-hours", "" if budget.hours == 1 else "s"
        lines.append(f"hours: trials begin within {budget.hours:g} hour{plural}, up to {limit}")
    if budget.device_hours is not None:
        whole = f"{all_ranks} ranks use in {duration(3600 * budget.device_hours / all_ranks)}"
        lines.append(f"device-hours: trials begin within {budget.device_hours:g}, which {whole}")
    lines.append(
        f"ranks: {ranks} a trial, {groups} trial{'s side by side' if groups > 1 else ' at a time'}, so as long as "
        f"{rounds} trial{'s' if rounds > 1 else ''} one after the other; an hour of all is "
        f"{all_ranks:g} device-hours"
    )
    return lines


def cost_lines(opened: OpenedSearch, folder: Path, *, groups: int) -> list[str]:
    """Device-hours and hours of the remaining trials, from the mean of those that have ended.

    The mean, not the median: the forecast is of their sum. A transfer has a line for each of its two searches.
    """
    return [f"cost: {_cost(opened, folder, groups)}"]


def _cost(opened: OpenedSearch, folder: Path, groups: int) -> str:
    if not (folder / STORAGE).is_file():
        return _NO_FORECAST
    try:
        check_folder(folder, opened, resume=True)
        with study_of(folder, opened.search) as study:
            ended = finished(study)
    except InputRefused as refusal:
        return f"not known: {refusal}"
    timed = [trial.user_attrs[SECONDS] for trial in ended if SECONDS in trial.user_attrs]
    if not timed:
        return _NO_FORECAST
    search, left, each = opened.search, opened.search.budget.trials - len(ended), fmean(timed)
    ranks = groups * search.ranks_per_trial

    def device_hours(seconds: float) -> str:
        return f"{number(seconds * search.ranks_per_trial / 3600, digits=3)} device-hours"

    text = f"{len(timed)} trial{'s' if len(timed) > 1 else ''} took {device_hours(sum(timed))}, "
    text += f"{duration(each)} each in the mean ({duration(min(timed))} to {duration(max(timed))})"
    if left <= 0:
        return f"{text}; none is left"
    about = "at least" if has_rungs(search) else "about"  # the higher rungs, with the longer runs, come last
    text += f"; the {left} left would take {about} {device_hours(left * each)}, "
    text += f"{duration(-(-left // groups) * each)} on {ranks} rank{'s' if ranks > 1 else ''}"
    limited = search.budget.hours is not None or search.budget.device_hours is not None
    return text + (", unless a limit of the budget ends it before" if limited else "")
