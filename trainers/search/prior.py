"""What is known before a search, a recipe or the best trials of another one: its first trials are drawn around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from recipes.errors import InputRefused, listed
from recipes.planning.random_bits import draws
from recipes.planning.rates import full_rate
from recipes.reading.open import open_recipe
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch, is_number, value_in
from recipes.search_space.ranges import Categorical, active_values
from trainers.runs.errors import print_warnings
from trainers.runs.run_folder import RECIPE
from trainers.search.folder import SEARCH, read_record, read_study, run_folders
from trainers.search.study import finished, ranked_trials

_OPTIMIZER = "optimizer.kind"
_RATE, _WARMUP = "learning_rate.reference", "learning_rate.warmup.epochs"
_MOMENTUM = ("optimizer.momentum", "optimizer.mu1", "optimizer.beta1")
_LEAST_BEST = 3  # known trials at the least, where there are as many
_SHARE_BEST = 5  # one in so many finished trials of an earlier search counts as good
_WIDTH = 0.1  # of a range: standard deviation of the draws around a known value. Assumed.
_KEEP = 0.8  # how often a known choice is kept. Assumed.


def first_values(opened: OpenedSearch, *, enqueued: int = 0) -> list[dict[str, Any]]:
    """The values of the trials that a search tries first: those of `enqueue`, and what is drawn from its prior.

    A warning is printed if the prior lacks values of the space or has another optimizer.

    Args:
        enqueued: trials that the study has. If nothing more is to be drawn, the prior need not be there any more.
    Raises:
        InputRefused: the batch is searched too, or the earlier search has no complete trial.
        RecipeError: the known recipe does not open.
    """
    first, search = list(opened.enqueued), opened.search
    if search.prior is not None and enqueued < min(len(first) + search.prior.draws, search.budget.trials):
        if any(path == "batch" or path.startswith("batch.") for path in search.space):
            raise InputRefused("prior: the batch is searched, and a prior needs one batch; give it in `fixed`")
        known = _known_recipes(opened)
        print_warnings(_warnings(search, known, opened.base.tree))
        for index in range(search.prior.draws):
            first.append(drawn_values(search, known[index % len(known)], opened.base.tree, index=index))
    return first[: search.budget.trials]


def _warnings(search: Search, known: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> Iterator[str]:
    """Where the known recipes are no measure for this search: keys of its space that none has, another optimizer."""
    if unknown := [path for path in search.space if not any(_has(recipe, path) for recipe in known)]:
        yield f"the prior knows nothing of {listed(unknown)}: the sampler draws the first values too"
    kinds, kind = dict.fromkeys(recipe["optimizer"]["kind"] for recipe in known), own["optimizer"]["kind"]
    if _OPTIMIZER not in search.space and (others := [other for other in kinds if other != kind]):
        what = f"the prior has the optimizer {listed(others)}, and this search {kind}"
        yield f"{what}: a rate that is good for one optimizer is seldom good for another"


def _has(recipe: Mapping[str, Any], path: str) -> bool:
    try:
        value_in(recipe, path)
    except LookupError:
        return False
    return True


def drawn_values(search: Search, known: Mapping[str, Any], own: Mapping[str, Any], *, index: int) -> dict[str, Any]:
    """A draw around a known recipe: values by their paths, without those that the known recipe lacks.

    Args:
        known, own: resolved recipes: the known one, and that of the search with its fixed values.
    """
    stream, values = draws(search.seed, "prior", index), {}
    for path, range_ in search.space.items():
        (noise,), u = stream.normals(1), stream.uniform()
        other = range_.choices[stream.integers(len(range_.choices))] if isinstance(range_, Categorical) else None
        try:
            value = value_in(known, path)
        except LookupError:
            continue
        if isinstance(range_, Categorical):
            values[path] = value if range_.holds(value) and u < _KEEP else other
        elif is_number(value):
            if path == _RATE:
                value = _rate(known, own, share=(index + 0.5) / search.prior.draws)
            elif path == _WARMUP:
                value *= 2.0**u
            elif path in _MOMENTUM:
                value = 1 - min(1.0, (1 - value) * 2.0 ** (noise / 2))
            else:
                value = range_.moved(value, _WIDTH * noise)
            values[path] = range_.nearest(value)
    return active_values(search.space, values.__getitem__)


def _rate(known: Mapping[str, Any], own: Mapping[str, Any], *, share: float) -> float:
    """A reference rate for `own`, from what is known at another batch.

        full rate of own = low * (high / low) ** share
        low, high = the smaller and the larger of  r sqrt(B / b)  and  2 r B / b

    r: the known full rate at batch b; B: the batch of `own`.
    """
    (batch, scale), (own_batch, own_scale) = map(_batch_and_scale, (known, own))
    growth = own_batch / batch
    low, high = sorted((math.sqrt(growth), 2 * growth))
    return known["learning_rate"]["reference"] * scale * low * (high / low) ** share / own_scale


def _batch_and_scale(recipe: Mapping[str, Any]) -> tuple[int, float]:
    """The first batch of a resolved recipe, and its full rate there over its reference rate."""
    batch, rate = recipe["batch"]["global"], recipe["learning_rate"]
    size = batch[0]["size"] if isinstance(batch, list) else batch
    return size, full_rate(1.0, size, rule=rate["rule"], per=rate["per"])


def _known_recipes(opened: OpenedSearch) -> list[Mapping[str, Any]]:
    """The known recipe, resolved; or those of the best fifth of an earlier search's finished trials, at least three."""
    prior, parent = opened.search.prior, opened.path.parent
    if prior.recipe is not None:
        named = parent / prior.recipe if prior.recipe.endswith((".yaml", ".yml")) else prior.recipe
        return [open_recipe(named, **opened.options).tree]
    folder = parent / prior.search
    if not (folder / SEARCH).is_file():
        raise InputRefused(f"prior: there is no search in {folder}; a search's folder has a file {SEARCH}")
    with read_study(folder) as study:
        best = ranked_trials(study)[: max(_LEAST_BEST, len(finished(study)) // _SHARE_BEST)]
    seeds = read_record(folder)["search"]["seeds_per_trial"]
    runs = [run_folders(folder, trial.number, seeds=seeds)[0] / RECIPE for trial in best]
    recipes = [yaml.safe_load(run.read_text(encoding="utf-8")) for run in runs if run.is_file()]
    if not recipes:
        raise InputRefused(f"prior: the search in {folder} has no complete trial whose run is still there")
    return recipes
