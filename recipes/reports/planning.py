"""The forecast of a run as text, and beside what came out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from recipes.planning.forecast import PARTS, Forecast, SegmentForecast
from recipes.planning.phase_times import PHASES
from recipes.reports.curves import points_text
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.record import Run
from recipes.reports.wording import duration, number, percent

_PART_WORDS = {
    "compute": "compute",
    "exposed": "communication that compute does not hide",
    "contention": "contention of communication and compute",
    "straggling": "waiting for the slowest worker",
    "waiting_for_input": "input",
    "coordination": "coordination of the workers",
}
_COLUMNS = ("compute", "exposed", "contention", "stragglers", "input", "coordination")  # of PARTS, short


def forecast_text(forecast: Forecast, by_micro_batch: Mapping[int, Forecast] | None = None) -> str:
    """Totals, a row a segment, and what the figures rest on.

    Args:
        forecast: of the run.
        by_micro_batch: the same run in micro-batches of other sizes.
    """
    ranges = forecast.ranges
    low, high = ranges["seconds"]
    workers, node = forecast.plan.workers, forecast.plan.cluster.workers_per_node
    cost = ""
    if "dollars" in ranges:
        billed = forecast.plan.cluster.billed_devices(workers)
        cost = f", {cost_text(forecast.dollars, ranges['dollars'], devices=workers, billed=billed)}"
    hours = f"{rate(forecast.device_hours)} device-hours {range_text(ranges['device_hours'])}"
    efficiency = forecast.efficiency
    of = [f"{percent(efficiency['one_device'], digits=0)} of what it reaches alone"]
    if workers > node > 1:
        of.append(f"{percent(efficiency['one_node'], digits=0)} of what it reaches in one node")
    lines = [
        f"time: {duration(forecast.seconds)}, expected between {duration(low)} and {duration(high)}; {hours}{cost}",
        f"rate: {rate(forecast.samples_per_second)} samples/s {range_text(ranges['samples_per_second'])}; "
        f"each device reaches {', '.join(of)}",
        f"bound by: {_PART_WORDS[forecast.bound_by]}, {percent(forecast.share(forecast.bound_by), digits=0)} of the "
        "updates' time",
        "",
        points_text([_row(each) for each in forecast.segments]),
        "",
    ]
    lines.append(points_text(list(_part_rows(forecast))))
    if by_micro_batch and len(by_micro_batch) > 1:
        each = (
            f"{size}: {duration(made.seconds)} ({' to '.join(map(duration, made.range_seconds))})"
            for size, made in by_micro_batch.items()
        )
        lines.append(f"in micro-batches of {', '.join(each)}")
    lines += ["this rests on:", *(f"  - {line}" for line in forecast.rests_on)]
    return "\n".join(lines)


def _row(each: SegmentForecast) -> dict:
    update, segment, ranges = each.update, each.planned.segment, each.as_tree()["ranges"]
    row = {"update": segment.update, "updates": segment.num_updates, "ms an update": _ms(update.total)}
    low, high = map(_ms, ranges["seconds_per_update"])
    row["from-to"] = f"{low:g}-{high:g}"
    row |= {name: _ms(getattr(update, part)) for part, name in zip(PARTS, _COLUMNS, strict=True)}
    takes = f"{duration(each.seconds)} ({' to '.join(map(duration, ranges['seconds']))})"
    return row | {
        "samples/s": f"{rate(each.samples_per_second)} {range_text(ranges['samples_per_second'])}",
        "stage takes": takes,
    }


def _part_rows(forecast: Forecast) -> Iterator[dict]:
    """What takes the time of the run, with its range and what that rests on; without what takes none."""
    for part, basis in forecast.bases.items():
        seconds = forecast.seconds_in(part) if part in PARTS else getattr(forecast, part)
        low, high = forecast.ranges[part]
        if high:
            words = _PART_WORDS.get(part, part.removesuffix("_seconds"))
            yield {
                "part of the time": words,
                "takes": duration(seconds),
                "from": duration(low),
                "to": duration(high),
                "rests on": basis,
            }


def range_text(ends: Sequence[float]) -> str:
    """Both ends of a range in three digits.

    >>> range_text((188.2, 285.4))
    '(188 to 285)'
    """
    return f"({rate(ends[0])} to {rate(ends[1])})"


def _ms(seconds: object) -> float:
    value = float(seconds) * 1000
    return float(f"{value:.3g}") if value < 100 or value >= 1e15 else round(value)


def rate(per_second: float) -> str:
    """Samples a second in three digits.

    >>> rate(128409.6), rate(12.34), rate(1e300)
    ('128,000', '12.3', '1e+300')
    """
    value = float(f"{per_second:.3g}")
    return f"{value:,.0f}" if 100 <= value < 1e15 else f"{value:g}"


def dollars(value: float) -> str:
    """Dollars in three digits.

    >>> dollars(12345.0), dollars(7.123)
    ('12,300 dollars', '7.12 dollars')
    """
    return f"{rate(value)} dollars"


def cost_text(value: float, ends: Sequence[float], *, devices: int, billed: int) -> str:
    """Dollars with their range, and the devices that are paid where these are more than are used.

    >>> cost_text(12.0, (9.0, 15.0), devices=26, billed=32)
    '12 dollars (9 to 15), 32 devices billed'
    """
    return f"{dollars(value)} {range_text(ends)}" + f", {billed:,} devices billed" * (billed != devices)


def outcome(run: Run) -> Markup:
    """Prediction against outcome, term by term; nothing for a run whose cluster had no figures to predict from."""
    forecast = run.plan.get("forecast")
    if not isinstance(forecast, dict) or not len(run.updates):
        return Markup("")
    try:
        return _outcome(run, forecast)
    except (KeyError, TypeError, ValueError):  # a stranger's file
        return Markup("")


def _outcome(run: Run, forecast: dict[str, Any]) -> Markup:
    rows = [row for segment in forecast["segments"] for row in _outcome_rows(run, segment)]
    if run.outcome == "success" and len(run.sessions) < 2:  # else it was planned on the last number of workers alone
        was, now = forecast["seconds"], run.seconds
        rows.append(("the run", duration(was), duration(now), _ratio(was, now)))
    low, high = forecast["range_seconds"]
    words = f"Predicted before the run, which was expected to take between {duration(low)} and {duration(high)}. "
    words += "It rests on: " + "; ".join(map(str, forecast["rests_on"])) + ". "
    words += "`kilobatch plan --from` this run's folder plans with what it measured."
    heads = ("", "predicted", "measured", "measured over predicted")
    return joined([tag("h2", "Prediction and outcome"), table(heads, rows, class_="numbers"), tag("p", words)])


def _outcome_rows(run: Run, segment: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """An update of one stage and its parts, medians over those on the last number of workers; none where none was."""
    ends = [s["update"] for s in run.plan["forecast"]["segments"] if s["update"] > segment["update"]]
    start = max(segment["update"], run.first_of_last_workers)
    within = (run.updates.update >= start) & (run.updates.update < min(ends, default=np.inf))
    if not within.any():
        return []
    stage = f"from update {segment['update']:,}: " if len(run.plan["forecast"]["segments"]) > 1 else ""
    pairs = [("an update", segment["seconds_per_update"], float(np.median(run.updates.update_seconds[within])))]
    if len(run.phases) == len(run.updates):
        median = dict(zip(PHASES, np.median(run.phases.seconds[within], axis=0), strict=True))
        own = sum(float(median[name]) for name in ("input", "forward", "backward", "optimizer"))
        exchange = float(np.median(run.phases.exchange_seconds[within]))
        pairs += [
            ("computing, with input", segment["compute"] + segment["waiting_for_input"], own),
            ("communication, hidden or not", segment["communication"], exchange),
            ("communication that is not hidden", segment["exposed"], float(median["exposed"])),
            ("waiting for others", segment["straggling"] + segment["coordination"], float(median["waiting"])),
        ]
    return [(f"{stage}{name}", _milliseconds(was), _milliseconds(now), _ratio(was, now)) for name, was, now in pairs]


def _milliseconds(seconds: float) -> str:
    return f"{number(1000 * seconds, digits=3)} ms"


def _ratio(was: float, now: float) -> str:
    return f"{now / was:.2f}" if was > 1e-6 else "–"
