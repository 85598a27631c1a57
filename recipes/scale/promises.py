"""What a scaled recipe does not promise."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.families import MOMENTUM_SGD
from recipes.linear_reach import LINEAR_HOLDS_TO, linear_reach
from recipes.scale.linear import ERRORS_BEYOND
from recipes.scale.request import Request

__all__ = ["not_promised"]


def not_promised(ask: Request) -> Iterator[str]:
    """Conclusions that a reader might draw from the new file and should not, one in a line."""
    kind, largest = ask.value("optimizer.kind"), max(ask.sizes)
    yield "accuracy: the claims of the reference are not carried over, and nobody has trained this file"
    yield (
        "that the rate is the best one: the best rates that Shallue et al. 2018 (arXiv 1811.03600) found follow "
        "neither the linear rule nor the root"
    )
    reach = float(ask.kappa) * linear_reach(ask.opened.recipe)
    if kind in (*MOMENTUM_SGD, "RmspropWarmup") and reach > LINEAR_HOLDS_TO:
        yield f"that linear scaling holds here; Goyal et al. 2017 (arXiv 1706.02677) saw {ERRORS_BEYOND}"
    if kind == "Lars":
        yield (
            "that the points hold elsewhere: they are ResNet-50 on ImageNet to 75.9 %, and between two of them nothing "
            "was run; epochs are those until the decay ends, not until the target"
        )
    if kind == "Lamb":
        yield "that the square root holds for LAMB: it is derived for RMSprop and Adam, whose direction LAMB normalises"
    if 10 * largest > ask.opened.dataset.num_train:
        yield (
            f"that the gradient's noise is as assumed: {largest:,} is more than a tenth of "
            f"{ask.opened.dataset.num_train:,} (Smith et al. 2017, arXiv 1711.00489)"
        )
    if ask.kappa > 1:
        yield (
            "less time: beyond the noise scale of the gradient (McCandlish et al. 2018, arXiv 1812.06162; `train "
            "--noise-scale`) a larger batch takes nearly as many updates"
        )
