"""Rules on the number formats of the computation."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.lint.case import Case, Fault
from recipes.schema.recipe import Precision

_OF_THE_SCALE = ("loss_scale", "double_after")


def idle_loss_scale(case: Case) -> Iterator[Fault]:
    """A loss scale where nothing is scaled.

    Small gradients become 0 only in float16. bfloat16 and TF32 have the range of float32, and kilobatch does not scale
    the loss with them. The defaults, which the recipe in a run's folder spells out, are not meant.

    Way out: leave `loss_scale` and `double_after` out, or write `compute: mixed16`.
    Source: the formats: 8 bits of exponent in float32, TF32 and bfloat16, 5 in float16; Micikevicius et al. 2018,
        arXiv 1710.03740 (not checked), scale losses for the sake of float16.
    Fires:
        precision: {compute: bfloat16, loss_scale: 1024}
    Quiet:
        precision: {compute: float32, loss_scale: 65536, double_after: 2000}
    """
    compute = case.recipe.precision.compute
    written = case.written.get("precision") or {}
    idle = [f"precision.{key}" for key in _OF_THE_SCALE if key in written and written[key] != getattr(Precision, key)]
    if idle and compute != "mixed16":
        yield Fault(
            keys=(*idle, "precision.compute"),
            what=f"{compute} is computed without a loss scale",
            way_out="leave loss_scale and double_after out, or write `compute: mixed16`",
        )
