"""What `kilobatch search --dry-run` prints: the search with all its defaults, what it costs, and the first trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.reading.load import resolved_text
from recipes.reading.yaml import flow_text
from recipes.reports.terminal import plan_text
from recipes.reports.wording import number
from recipes.search_space.open_search import OpenedSearch
from trainers.launch.model_costs import model_of
from trainers.launch.request import prepare
from trainers.search.outcome import SearchRequest, trial_request
from trainers.search.study import enqueue, new_study, next_trial, suggested
from trainers.search.wording import values_text


def dry_run_text(
    opened: OpenedSearch, options: SearchRequest, first: Sequence[Mapping[str, Any]], *, groups: int
) -> str:
    """The search, its cost, and the values, the plan and the recipe of its first trial.

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
    timeline, runs = prepared.plan.timeline, search.budget.trials * search.seeds_per_trial
    side = f"{groups} trials side by side" if groups > 1 else "1 trial at a time"
    space = [f"  {path}: {flow_text(tree)}" for path, tree in opened.tree["space"].items()]
    keys = [f"{key}: {flow_text(value)}" for key, value in opened.tree.items() if key != "space"]
    lines = [
        "\n".join([*keys, "space:", *space]),
        "",
        f"runs: {runs} of {timeline.num_updates} updates like the first, {number(runs * timeline.num_samples)} samples",
        f"ranks: {side}, of {search.ranks_per_trial} each; an hour is {groups * search.ranks_per_trial} device-hours",
        f"first trial: {values_text(values)}",
        "",
        plan_text(replace(prepared.plan, model=model_of(prepared.opened))),
        "",
        resolved_text(prepared.opened.tree, prepared.opened.origins).rstrip(),
    ]
    return "\n".join(lines)
