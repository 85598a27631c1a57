"""The forecast of a run as text."""

from __future__ import annotations

from recipes.planning.forecast import PARTS, Forecast, SegmentForecast
from recipes.reports.curves import points_text
from recipes.reports.wording import duration

_PART_WORDS = {
    "compute": "compute",
    "exposed": "communication that compute does not hide",
    "contention": "contention of communication and compute",
    "straggling": "waiting for the slowest worker",
    "waiting_for_input": "input",
    "coordination": "coordination of the workers",
}
_COLUMNS = ("compute", "exposed", "contention", "stragglers", "input", "coordination")  # of PARTS, short


def forecast_text(forecast: Forecast) -> str:
    """Totals, a row a segment, and what the figures rest on."""
    low, high = forecast.range_seconds
    workers, node = forecast.plan.workers, forecast.plan.cluster.workers_per_node
    cost = "" if forecast.dollars is None else f", {dollars(forecast.dollars)}"
    hours = f"{rate(forecast.device_hours)} device-hours"
    efficiency = forecast.efficiency
    of = [f"{efficiency['one_device']:.0%} of one device's rate"]
    if workers > node > 1:
        of.append(f"{efficiency['one_node']:.0%} of one node's")
    lines = [
        f"time: {duration(forecast.seconds)}, expected between {duration(low)} and {duration(high)}; {hours}{cost}",
        f"rate: {rate(forecast.samples_per_second)} samples/s, {', '.join(of)} for each device",
        f"bound by: {_PART_WORDS[forecast.bound_by]}, {forecast.share(forecast.bound_by):.0%} of the updates' time",
        "",
        points_text([_row(each) for each in forecast.segments]),
        "",
    ]
    beside = {
        "updates": forecast.update_seconds,
        "evaluations": forecast.evaluation_seconds,
        "checkpoints": forecast.checkpoint_seconds,
        "start": forecast.start_seconds,
    }
    lines.append("of it: " + ", ".join(f"{name} {duration(value)}" for name, value in beside.items() if value))
    lines += ["this rests on:", *(f"  - {line}" for line in forecast.rests_on)]
    return "\n".join(lines)


def _row(each: SegmentForecast) -> dict:
    update, segment = each.update, each.planned.segment
    row = {"update": segment.update, "updates": segment.num_updates, "ms an update": _ms(update.total)}
    row |= {name: _ms(getattr(update, part)) for part, name in zip(PARTS, _COLUMNS, strict=True)}
    return row | {"samples/s": rate(each.samples_per_second), "stage takes": duration(each.seconds)}


def _ms(seconds: object) -> float:
    value = float(seconds) * 1000
    return float(f"{value:.3g}") if value < 100 else round(value)


def rate(per_second: float) -> str:
    """Samples a second in three digits.

    >>> rate(128409.6), rate(12.34)
    ('128,000', '12.3')
    """
    value = float(f"{per_second:.3g}")
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


def dollars(value: float) -> str:
    """Dollars in three digits.

    >>> dollars(12345.0), dollars(7.123)
    ('12,300 dollars', '7.12 dollars')
    """
    value = float(f"{value:.3g}")
    return f"{value:,.0f} dollars" if value >= 100 else f"{value:g} dollars"
