"""The batch up to which a recipe uses linear scaling."""

from __future__ import annotations

from recipes.rates import learning_rate_at
from recipes.schema import Recipe

__all__ = ["LINEAR_HOLDS_TO", "linear_reach"]

LINEAR_HOLDS_TO = 8192  # samples: Goyal et al. 2017, arXiv 1706.02677, figure 3


def linear_reach(recipe: Recipe) -> float:
    """The largest batch whose linearly scaled rate this recipe uses.

        max over the ramp of min(B, rate / reference * per), and the first batch

    A step of the ramp counts by its actual rate: if the batch doubles while the rate falls to a fifth (Smith et al.
    2017: grow the batch instead of decaying the rate), the reach stays. With `rule: none`, `per` is the first batch.
    """
    formula, ramp = recipe.learning_rate, recipe.batch.global_
    per = ramp.sizes[0] if formula.rule == "none" else formula.per
    steps = zip(ramp.boundaries[1:], ramp.sizes[1:], strict=True)
    reached = [min(size, learning_rate_at(recipe, start) / formula.reference * per) for start, size in steps]
    return max([ramp.sizes[0], *reached])
