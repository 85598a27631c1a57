"""What is known before a search: good recipes, at any batch, around which its first trials are drawn.

Known are a recipe, or the best trials of an earlier search, or those of a search at a small batch that is done first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recipes.errors import InputRefused
from recipes.planning.random_bits import Draws, draws
from recipes.planning.rates import full_rate
from recipes.reading.open import open_recipe
from recipes.reading.read import value_at
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch
from recipes.search_space.ranges import Categorical, is_active
from trainers.runs.run_folder import RECIPE

_RATE, _WARMUP = "learning_rate.reference", "learning_rate.warmup.epochs"
_MOMENTUM = ("optimizer.momentum", "optimizer.mu1", "optimizer.beta1")
_LEAST_BEST = 3  # known trials at the least, where there are as many
_SHARE_BEST = 5  # one in so many finished trials of an earlier search counts as good
_WIDTH = 0.1  # of a range: standard deviation of the draws around a known value. Assumed.
_KEEP = 0.8  # how often a known choice is kept. Assumed.


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Good recipes, from which a search's first trials are drawn.

    The full rate r of a known recipe of batch b becomes, at the batch B of the search, a draw between the square root
    and twice the linear rule, evenly in the logarithm; the draws of one search lie evenly over that range:

        r sqrt(B / b) .. 2 r B / b

    1 - m of a momentum is drawn within a factor of two or so, a warmup between once and twice its epochs, any other
    number around the known one by a tenth of its range, a choice is kept four times in five.

    Args:
        known: resolved recipes, the best first; at least one.
        search: whose trials are drawn.
        own: the resolved recipe of the search with its fixed values.
        first: number of the first trial that is drawn; enqueued ones come before.
    """

    known: Sequence[Mapping[str, Any]]
    search: Search
    own: Mapping[str, Any]
    first: int

    def values(self, number: int) -> dict[str, Any]:
        """The values of a trial by its paths; empty for a trial that is not drawn from what is known."""
        index = number - self.first
        if not 0 <= index < self.search.prior.draws:
            return {}
        recipe, stream = self.known[index % len(self.known)], draws(self.search.seed, "prior", number)
        values = {path: self._drawn(path, index, recipe, stream) for path in self.search.space}
        values = {path: value for path, value in values.items() if value is not None}
        return {path: value for path, value in values.items() if is_active(self.search.space, path, values)}

    def _drawn(self, path: str, index: int, recipe: Mapping[str, Any], stream: Draws) -> Any:
        """A value at a path; None where the known recipe has none that fits."""
        range_, (noise,), u = self.search.space[path], stream.normals(1), stream.uniform()
        try:
            known = value_at(recipe, path)
        except LookupError:
            return None
        if isinstance(range_, Categorical):
            other = range_.choices[stream.integers(len(range_.choices))]
            return known if range_.holds(known) and u < _KEEP else other
        if isinstance(known, bool) or not isinstance(known, int | float):
            return None
        if path == _RATE:
            return range_.nearest(self._rate(recipe, share=_evenly(index)))
        if path == _WARMUP:
            return range_.nearest(known * 2.0**u)
        if path in _MOMENTUM:
            return range_.nearest(1 - min(1.0, (1 - known) * 2.0 ** (noise / 2)))
        if range_.log and known > 0:
            return range_.nearest(known * math.exp(_WIDTH * noise * math.log(range_.high / range_.low)))
        return range_.nearest(known + _WIDTH * noise * (range_.high - range_.low))

    def _rate(self, recipe: Mapping[str, Any], *, share: float) -> float:
        """The reference rate here, `share` of the way from the square root to twice the linear rule."""
        before, then = _formula(recipe), _formula(self.own)
        growth = then["batch"] / before["batch"]
        low, high = sorted((math.sqrt(growth), 2 * growth))
        return before["full"] * low * (high / low) ** share / (then["full"] / then["reference"])


def open_prior(opened: OpenedSearch, *, staged: Path | None = None) -> Prior | None:
    """The prior of a search; None if it has none.

    Args:
        opened: the search.
        staged: folder of the search at a small batch that was done first, with `prior.batch`.
    Raises:
        InputRefused: the batch is searched too, or the earlier search has no finished trial.
        RecipeError: the known recipe does not open.
    """
    prior = opened.search.prior
    if prior is None:
        return None
    if any(path == "batch" or path.startswith("batch.") for path in opened.search.space):
        raise InputRefused("prior: the batch is searched, and a prior needs one batch; give it in `fixed`")
    if prior.recipe is not None:
        beside = opened.path.parent / prior.recipe
        named = beside if prior.recipe.endswith((".yaml", ".yml")) else prior.recipe
        known: list[Mapping[str, Any]] = [open_recipe(named, **opened.options).tree]
    elif prior.search is not None or staged is not None:
        known = _best_recipes(staged or opened.path.parent / str(prior.search))
    else:  # before the search at the small batch has begun
        known = [{**opened.base.tree, "batch": {**opened.base.tree["batch"], "global": prior.batch}}]
    first = len(opened.search.enqueue)
    return Prior(known=known, search=opened.search, own=opened.base.tree, first=first)


def _best_recipes(folder: Path) -> list[Mapping[str, Any]]:
    """The resolved recipes of the best fifth of a search's finished trials, at least three, the best first."""
    from trainers.search.search_folder import ranked_in  # which imports the study, which imports this

    ranked, num_finished = ranked_in(folder)
    recipes = []
    for run in ranked[: max(_LEAST_BEST, num_finished // _SHARE_BEST)]:
        path = next((path for path in (run / RECIPE, run / "run-0" / RECIPE) if path.is_file()), None)
        if path is not None:
            recipes.append(yaml.safe_load(path.read_text(encoding="utf-8")))
    if not recipes:
        raise InputRefused(f"prior: the search in {folder} has no complete trial whose run is still there")
    return recipes


def _formula(recipe: Mapping[str, Any]) -> dict[str, float]:
    """Batch, reference rate and full rate of a resolved recipe, at the start of its batch ramp."""
    batch, rate = recipe["batch"]["global"], recipe["learning_rate"]
    size = batch[0]["size"] if isinstance(batch, list) else batch
    full = full_rate(rate["reference"], size, rule=rate["rule"], per=rate["per"])
    return {"batch": size, "reference": rate["reference"], "full": full}


def _evenly(index: int) -> float:
    """The index-th point of a sequence that fills (0, 1) evenly: 1/2, 1/4, 3/4, 1/8, ... (van der Corput, base 2).

    >>> [_evenly(index) for index in range(4)]
    [0.5, 0.25, 0.75, 0.125]
    """
    point, scale, index = 0.0, 0.5, index + 1
    while index:
        point += scale * (index % 2)
        index, scale = index // 2, scale / 2
    return point


