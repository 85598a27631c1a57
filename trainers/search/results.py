"""What a search has found: its trials in words, the recipe of the best, and the best trials on fresh seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from recipes.planning.intervals import interval_of_mean
from recipes.reading.load import resolved_text
from recipes.reading.open import open_recipe
from recipes.reports.wording import number, percent
from recipes.schema import Search
from recipes.schema.search import is_of_recipe
from recipes.search_space.open_search import OpenedSearch, plain_path
from trainers.runs.identity import copy_code
from trainers.runs.metrics_file import has_diverged
from trainers.runs.progress_lines import RunState
from trainers.runs.run_folder import write_whole
from trainers.search import study as studies
from trainers.search.folder import files_of_code
from trainers.search.outcome import has_ended, metrics_lines, trial_changes, trial_result
from trainers.search.study import SECONDS, best_trials, rank_seconds_of, ranked_trials, reason_of, state_of

BEST = "best.yaml"
PARETO = "pareto"  # a folder, where there are several objectives
CONFIRM = "confirm"  # in the search's folder: trial-0007/seed-1000, ...
FRESH_SEED = 1000  # added to the recipe's seed, to confirm: far from those of `seeds_per_trial`


def row_of(trial: FrozenTrial, search: Search) -> dict[str, Any]:
    """A trial as the terminal, `status.json` and the page show it.

    One that runs has its last report as score, but none with a target: it reports what it lacks of that.
    """
    last, own, note = trial.last_step, (), reason_of(trial)
    if trial.state == TrialState.COMPLETE:
        own = trial.values
    elif trial.state == TrialState.RUNNING and last is not None:
        own = () if search.has_goal else [trial.intermediate_values[last]]
        note = f"report {last} of {search.reports}"
    return {
        "trial": trial.number,
        "state": state_of(trial),
        "scores": own,
        "text": scores(search, own) if own else "",
        "note": note,
        "values": dict(trial.params),
        "seconds": trial.user_attrs.get(SECONDS, 0.0),
        "rank_seconds": rank_seconds_of(trial, search),
    }


def running_row(seconds: float, rank_seconds: float, run: RunState) -> dict[str, Any]:
    """What a row has of a trial that runs: time of all its runs so far, and the state of its present run."""
    row = {"seconds": seconds, "rank_seconds": rank_seconds, "seconds_left": run.seconds_left}
    return row | {"update": run.updates, "updates": run.total_updates, "epoch": run.epoch}


def device_hours(study: optuna.Study, rows: Iterable[Mapping[str, Any]]) -> float:
    """Ranks times hours of all trials, by their rows, and of the runs with fresh seeds."""
    confirming = study.user_attrs.get(studies.CONFIRM_RANK_SECONDS, {}).values()
    return math.fsum([*(row["rank_seconds"] for row in rows), *confirming]) / 3600


def trials_text(states: Mapping[str, int], of: int) -> str:
    """How many trials ended: 'trials: 5 of 20 ended (3 complete, 2 infeasible, 1 running)'; `states` counts all."""
    ended = sum(count for state, count in states.items() if state not in ("running", "stopped", "paused"))
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"trials: {ended} of {of} ended" + (f" ({counts})" if counts else "")


def metric_words(metric: str) -> str:
    """A metric's name in text."""
    return {"device_hours": "device-hours", "train_loss": "training loss"}.get(metric, metric)


def score_text(metric: str, value: float | None) -> str:
    """A score without its name, empty where there is none: '97.50 %', '210 updates'."""
    if value is None:
        return ""
    of_a_goal = {"updates_to": " updates", "epochs_to": " epochs", "hours_to": " hours"}
    return percent(value) if metric == "accuracy" else number(float(value)) + of_a_goal.get(metric, "")


def scores(search: Search, values: Iterable[float], *, named: bool = False) -> str:
    """The objectives of a trial, several or `named` each with its name: 'accuracy 97.50 %, device-hours 0.5'."""
    pairs = [(objective.metric, value) for objective, value in zip(search.objectives, values, strict=True)]
    named = named or len(pairs) > 1
    return ", ".join(f"{metric_words(pair[0])} {score_text(*pair)}" if named else score_text(*pair) for pair in pairs)


def column_names(paths: Iterable[str]) -> dict[str, str]:
    """Path -> its last word, with as many words before it as distinguish it from the others.

    >>> column_names(["epochs", "learning_rate.warmup.epochs", "1 - optimizer.momentum"])
    {'epochs': 'epochs', 'learning_rate.warmup.epochs': 'warmup.epochs', '1 - optimizer.momentum': '1 - momentum'}
    """
    plain = {path: plain_path(path) for path in paths}
    endings = {it: [it.split(".", skip)[-1] for skip in reversed(range(it.count(".") + 1))] for it in plain.values()}
    counts = Counter(ending for own in endings.values() for ending in own)
    short = {it: next((ending for ending in own if counts[ending] == 1), it) for it, own in endings.items()}
    return {path: path.removesuffix(it) + short[it] for path, it in plain.items()}


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """A trial's recipe, trained again on fresh seeds: the objective of each, their mean and its 95 % interval.

    `broken`: of how many the run diverged, missed the target or breaks a constraint.
    """

    trial: int
    values: Sequence[float]
    mean: float
    low: float
    high: float
    broken: int = 0

    @property
    def finite(self) -> list[float]:
        """The values of the runs that have one: not of those that missed the target, or whose loss is not finite."""
        return [value for value in self.values if math.isfinite(value)]


def best_by_seeds(study: optuna.Study, confirmed: Sequence[Confirmed]) -> list[FrozenTrial]:
    """The best trial, by fresh seeds if trials were confirmed; with several objectives all on the Pareto front."""
    first = [one.trial for one in confirmed[:1]]
    return [trial for trial in ranked_trials(study) if trial.number in first] or best_trials(study)


def name_of_best(confirmed: Sequence[Confirmed]) -> str:
    """`best`, with a limit where all its fresh seeds diverged, missed the target or broke a constraint."""
    all_broken = bool(confirmed) and confirmed[0].broken == len(confirmed[0].values)
    return "best in its own run only (no fresh seed confirms it)" if all_broken else "best"


def write_best(
    folder: Path, opened: OpenedSearch, study: optuna.Study, *, confirmed: Sequence[Confirmed] = (), note: str = ""
) -> list[tuple[FrozenTrial, Path]]:
    """Write the recipe of the best trial, or those of the Pareto front, each in a file of its number; returns both.

    Own code that they name is copied into `code` beside them.
    `confirmed` as by `confirmed_in`; `note` goes into the head of the file too.
    """
    notes = [confirmed_text(opened.search, one) for one in confirmed[:1]] + [note] * bool(note)
    best, front = best_by_seeds(study, confirmed), folder / PARETO
    several = len(opened.search.objectives) > 1
    written = [(trial, front / f"trial-{trial.number:04d}.yaml" if several else folder / BEST) for trial in best]
    for trial, path in written:
        path.parent.mkdir(exist_ok=True)
        copy_code(path.parent, files_of_code(opened.base, opened.search.space))
        write_whole(path, recipe_text(opened, trial, notes))
    for path in set(front.glob("trial-*.yaml")) - {path for _, path in written}:
        path.unlink()
    return written


def recipe_text(opened: OpenedSearch, trial: FrozenTrial, notes: Sequence[str]) -> str:
    """The recipe's file as text: values that the search changed have the origin `search NAME trial 17`.

    It begins with the scores and `notes`, has no `extends` and no claims, and is evaluated as often as the recipe that
    was searched over.
    """
    search, base = opened.search, opened.base
    given = dict(trial.params)
    dataset = base.path.parent / base.recipe.dataset
    if dataset.suffix in (".yaml", ".yml") and dataset.is_file():  # relative to the recipe's own file
        given["dataset"] = str(dataset.resolve())
    recipe = open_recipe(base.path, **trial_changes(search, trial.number, given), **opened.options)
    seeds = f", the mean of {search.seeds_per_trial} seeds," if search.seeds_per_trial > 1 else ""
    first = f"{scores(search, trial.values, named=True)}{seeds} in trial {trial.number} of the search {search.name}"
    head = f"# {'; '.join([first, *notes])} ({str(trial.datetime_complete)[:19]})\n"
    if "dataset" in given:
        head += "# `dataset` is a path of this machine; `kilobatch recipes pack` of this file takes that file along\n"
    return head + resolved_text(recipe.tree, recipe.origins)


def confirm_folder(folder: Path, number: int) -> Path:
    """The folder of the runs that train trial `number` again, seed-1000 and so on; `folder` is the search's."""
    return folder / CONFIRM / f"trial-{number:04d}"


def ended_confirmations(folder: Path, number: int) -> list[Path]:
    """The runs with fresh seeds of trial `number` that have ended with a result; `folder` is the search's."""
    return [run for run in sorted(confirm_folder(folder, number).glob("seed-*")) if has_ended(run)]


def to_confirm(search: Search, study: optuna.Study) -> list[FrozenTrial]:
    """The trials that `confirm` trains again, the best first."""
    return studies.distinct(ranked_trials(study))[: search.confirm.top] if search.confirm else []


def confirmed_in(folder: Path, search: Search, study: optuna.Study) -> tuple[list[Confirmed], tuple[int, int]]:
    """What runs with fresh seeds say of the trials that are the best now, the best first.

    Each by as many runs as all of them have, at least 2, so that none wins for want of an opponent. A run without a
    result, killed or failed, has not ended: the next session tries it again. Those of which the fewest runs are
    `broken` come first, then the best mean, then the best by its own run: a target that is missed is never best.

    Returns:
        (the confirmed trials, (how many of the runs have ended with a result, how many there are to be)).
    """
    objective, confirmed, best = search.objectives[0], [], to_confirm(search, study)
    seeds = search.confirm.seeds if best else 0
    ended = [ended_confirmations(folder, trial.number)[:seeds] for trial in best]
    least = min(map(len, ended), default=0)
    for trial, runs in zip(best, ended, strict=True) if least > 1 else ():
        values, broken = [], 0
        for run in runs[:least]:
            value, breaks = objective.worst, has_diverged(run)  # perhaps before its first evaluation
            if not breaks:
                (value, *_), violations = trial_result(search, [metrics_lines(run)])
                breaks = any(violation > 0 for violation in violations.values())
            values.append(objective.worst if breaks and search.has_goal else value)
            broken += breaks
        low, high = interval_of_mean(values) if all(map(math.isfinite, values)) else (-math.inf, math.inf)
        lowest = -math.inf if is_of_recipe(objective.metric) else 0.0
        highest = 1.0 if objective.metric == "accuracy" else math.inf
        low, high = max(lowest, low), min(highest, high)
        one = Confirmed(trial=trial.number, values=values, mean=fmean(values), low=low, high=high, broken=broken)
        confirmed.append(one)
    sign = -1 if objective.direction == "maximize" else 1
    confirmed.sort(key=lambda one: (one.broken, sign * one.mean))
    return confirmed, (sum(map(len, ended)), seeds * len(best))


def confirmed_text(search: Search, confirmed: Confirmed) -> str:
    """A confirmed trial in words: 'trial 7: 98.40 % (95 %: 97.90 % to 98.90 %) by 2 fresh seeds, 98.20 %, 98.60 %'.

    Where a seed has no finite value there is no mean: 'trial 1: 1 of 2 fresh seeds reached the target, in 210 updates'.
    """
    metric, num_seeds = search.objectives[0].metric, len(confirmed.values)
    values = ", ".join(score_text(metric, value) for value in confirmed.finite)
    if len(confirmed.finite) < num_seeds:
        did = "reached the target" if search.has_goal else f"came to a finite {metric_words(metric)}"
        did += " and kept the constraints" if search.constraints and search.has_goal else ""
        some = f"{len(confirmed.finite) or 'none'} of {num_seeds} fresh seeds {did}"
        return f"trial {confirmed.trial}: {some}" + (f", {'in ' * search.has_goal}{values}" if values else "")
    mean, low, high = (score_text(metric, figure) for figure in (confirmed.mean, confirmed.low, confirmed.high))
    by = f"{num_seeds} fresh seeds, {values}"
    if confirmed.broken:
        by += f"; {confirmed.broken} diverged, missed the target or broke a constraint"
    return f"trial {confirmed.trial}: {mean} (95 %: {low} to {high}) by {by}"
