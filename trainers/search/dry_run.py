"""What a search would do, in words."""

from __future__ import annotations

from pathlib import Path

from recipes.open_search import OpenedSearch
from recipes.reports.plan_text import plan_text
from recipes.reports.points import points_text
from trainers.request import prepare
from trainers.search.study import enqueue, new_study, suggested
from trainers.search.trial_run import trial_request, warmup_end


def dry_run_text(opened: OpenedSearch, *, groups: int, data: Path | None = None, allow_code: bool = False) -> str:
    """The space, the first trial with its plan, and the budget.

    Raises:
        InputRefused: the first trial cannot be planned.
    """
    search, study = opened.search, new_study(opened.search)
    enqueue(study, opened)
    values = suggested(study.ask(), search)
    rows = [
        {"path": path, "range": _range_text(opened.tree["space"][path]), "first trial": values.get(path, "-")}
        for path in search.space
    ]
    request = trial_request(opened, 0, values, Path("trial"), data=data, allow_code=allow_code)
    prepared = prepare(request, workers=search.ranks_per_trial)
    timeline, trials = prepared.plan.timeline, search.budget.trials
    rounds = -(-trials // groups)
    warmup = warmup_end(prepared)
    lines = [
        f"search {search.name} over {search.recipe}: {search.objective.direction} {search.objective.metric}",
        "",
        points_text(rows),
        "",
        *(f"fixed: {path} {value}" for path, value in search.fixed.items()),
        f"sampler: {type(search.sampler).__name__}",
        f"pruner: {type(search.pruner).__name__ if search.pruner else 'none'}",
        f"reports: {search.reports} a trial, every {prepared.opened.recipe.evaluation.every:g} epochs; "
        f"the first trial is not pruned before epoch {warmup:g}, where its warmup ends",
        f"budget: {trials} trials of {timeline.num_updates} updates like the first one"
        + ("" if search.budget.hours is None else f", begun within {search.budget.hours:g} hours"),
        f"ranks: {search.ranks_per_trial} a trial, {groups} trials side by side, "
        f"so as long as {rounds} trial{'s' if rounds > 1 else ''} one after the other",
        "",
        "plan of the first trial:",
        plan_text(prepared.plan),
    ]
    return "\n".join(lines)


def _range_text(tree: dict) -> str:
    """A range in words."""
    if tree["kind"] == "Categorical":
        return " | ".join(str(choice) for choice in tree["choices"])
    step = tree.get("step")
    words = [f"{tree['low']} to {tree['high']}"]
    words += ["log"] if tree["log"] else []
    words += [f"step {step}"] if step not in (None, 1) else []
    return ", ".join(words)
