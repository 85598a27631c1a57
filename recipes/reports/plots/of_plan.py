"""The picture of every talk on large batches: time to train and its parts against the number of devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from recipes.planning.forecast import PARTS
from recipes.planning.planner import Plan
from recipes.planning.scan import Scan
from recipes.reports.plots.figure import decades, stacked
from recipes.reports.style import INK, MUTED, SERIES
from recipes.reports.wording import duration

_WORDS = {
    "compute": "compute",
    "exposed": "communication",
    "contention": "contention",
    "straggling": "stragglers",
    "waiting_for_input": "input",
    "coordination": "coordination",
}


def scaling_figure(plan: Plan, times: Scan, published: Sequence[tuple[int, float, str]] = ()) -> Figure:
    """Time to train, the share of its parts, and the efficiency, over devices.

    Args:
        plan: whose recipe and cluster.
        times: over rising numbers of devices.
        published: (devices, seconds, label) of published runs, drawn as dots.
    """
    serve = np.isfinite(times.seconds)
    devices, seconds = times.devices[serve], times.seconds[serve]
    with stacked([3.2, 1.6], width=7.0) as (figure, (above, below)):
        above.plot(devices, seconds / 60, color=SERIES[0], label="predicted")
        above.fill_between(devices, times.fast[serve] / 60, times.slow[serve] / 60, color=SERIES[0], alpha=0.18, lw=0)
        ideal = seconds[0] * devices[0] / devices
        above.plot(devices, ideal / 60, color=MUTED, linewidth=0.9, linestyle="--", label="if it scaled perfectly")
        drawn: list[tuple[int, float]] = []
        for number, taken, label in sorted(published, reverse=True):
            crowded = any(number == other and taken < 2 * time and time < 2 * taken for other, time in drawn)
            left = crowded or number * number > devices[-1] * devices[0] * 8  # at the right edge it would be cut off
            drawn.append((number, taken))
            above.plot([number], [taken / 60], "o", color=SERIES[1], markersize=5)
            above.annotate(
                f"{label}, {duration(taken)}",
                (number, taken / 60),
                xytext=(-6, -12) if left else (6, 5),
                textcoords="offset points",
                fontsize=8,
                ha="right" if left else "left",
                color=INK,
            )
        if published:
            above.plot([], [], "o", color=SERIES[1], markersize=5, label="published, each on its own cluster")
        above.set_xscale("log")
        above.set_yscale("log")
        above.set_ylim(bottom=min([*seconds, *ideal, *(taken for _, taken, _ in published)]) / 60 / 2)
        decades(above)
        above.set_title("time to train (minutes)")
        above.legend(frameon=False, fontsize=8)
        rows = {part: times.parts[part][serve] / seconds for part in PARTS}
        rows = {_WORDS[part]: values for part, values in rows.items() if values.max() > 0.002}
        rows["evaluation and start"] = times.other[serve] / seconds
        below.stackplot(devices, *(100 * values for values in rows.values()), labels=rows, colors=SERIES, alpha=0.85)
        below.set_ylim(0, 100)
        below.set_title("its parts (%)")
        below.set_xlabel(f"devices of {plan.cluster.name}")
        below.legend(frameon=False, fontsize=7, ncols=3, loc="lower left")
        below.set_xlim(devices[0], devices[-1])
        powers = [2**power for power in range(40) if devices[0] <= 2**power <= devices[-1]]
        below.xaxis.set_major_locator(FixedLocator(powers if len(powers) < 9 else powers[::2]))
        below.xaxis.set_major_formatter("{x:,.0f}")
        below.xaxis.set_minor_locator(NullLocator())
        title = f"{plan.recipe.name} on {plan.cluster.name}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure
