"""The loss scale of a run in mixed precision, over its updates."""

from __future__ import annotations

import numpy as np

from recipes.reports.markup import Markup, joined, tag
from recipes.reports.record import Run
from recipes.reports.wording import number


def loss_scale(run: Run) -> Markup:
    """The loss scale, and which updates were repeated; nothing for a run in float32."""
    known = np.isfinite(run.updates.loss_scale) & np.isfinite(run.updates.overflows)
    if not known.any():
        return Markup("")
    scales, overflows = run.updates.loss_scale[known], run.updates.overflows[known]
    words = f"The scale began at {number(float(scales[0]))} and ended at {number(float(scales[-1]))}, the smallest "
    words += f"being {number(float(scales.min()))} and the largest {number(float(scales.max()))}. "
    again = np.flatnonzero(overflows)
    if len(again):
        at = run.updates.update[known][again]
        words += (
            f"{number(len(again))} of {number(len(scales))} updates overflowed in float16 and were done again at a "
        )
        words += f"smaller scale, {number(int(overflows.sum()))} times in all; the first was update "
        words += f"{number(int(at[0]))}, the last update {number(int(at[-1]))}. "
        words += "Nothing of an attempt that overflowed is in this run but the time it took."
    else:
        words += "No update overflowed."
    return joined([tag("h2", "Loss scale"), tag("p", words)])
