"""A small picture of a recipe's curves for a page of text: SVG of a few kilobytes, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from recipes.planning.rates import batch_size_at, image_size_at, learning_rate_at, momentum_at
from recipes.reports.curves import reads_better_in_decades
from recipes.reports.style import DARK, GRID, INK, MUTED, SERIES
from recipes.schema import Recipe

_WIDTH, _LEFT, _RIGHT = 720, 64, 12  # pixels
_NUM_POINTS = 652  # of a curve: about one for each pixel
_RATE_HEIGHT, _STEP_HEIGHT, _HEAD, _GAP, _FOOT = 150, 48, 24, 14, 30
_STRAIGHT = 0.25  # pixels by which a point may lie beside the line that stands for it

_Value = Callable[[float], float]


def curve_picture(recipe: Recipe) -> str:
    """Learning rate against epochs, below it batch and image size if they change; constants are given as text.

    Colours follow the reader's light or dark mode.
    """
    end = float(recipe.epochs)
    panels: list[tuple[str, _Value, int]] = [("learning rate", lambda t: learning_rate_at(recipe, t), _RATE_HEIGHT)]
    for words, ramp, value_at in (
        ("global batch size", recipe.batch.global_, batch_size_at),
        ("image size", recipe.image_size, image_size_at),
    ):
        if ramp is not None and len(set(ramp.sizes)) > 1:
            panels.append((words, lambda t, value_at=value_at: value_at(recipe, t), _STEP_HEIGHT))
    parts, top = [], 0.0
    for index, (words, value_at, height) in enumerate(panels):
        values = [float(value_at(end * point / _NUM_POINTS)) for point in range(_NUM_POINTS + 1)]
        shown = [f'<g transform="translate({_LEFT},{top + _HEAD:g})">', *_panel(words, values, height, index)]
        parts += [*shown, "</g>"]
        top += _HEAD + height + _GAP
    parts += _epoch_axis(end, top - _GAP)
    height = top - _GAP + _FOOT
    parts.append(_text(_WIDTH - _RIGHT, 14, _constants(recipe), anchor="end", class_="muted"))
    return _document(parts, height, f"{recipe.name}: learning rate and batch against epochs")


def _constants(recipe: Recipe) -> str:
    sizes = set(recipe.batch.global_.sizes)
    words = [f"batch {recipe.batch.global_.sizes[0]:,}"] if len(sizes) == 1 else []
    momentum = momentum_at(recipe, 0.0)
    moves = " at first" if recipe.schedules.momentum is not None else ""
    words += [] if momentum is None else [f"momentum {momentum:g}{moves}"]
    words += ["stand-ins for what nobody published"] if recipe.open else []
    return ", ".join(words)


def _panel(words: str, values: Sequence[float], height: int, index: int) -> Iterator[str]:
    """A curve with its axis; heights count from the top of the panel."""
    width = _WIDTH - _LEFT - _RIGHT
    high = max(values) or 1.0  # of a run that is cut short, it may be 0
    if reads_better_in_decades(np.array(values)):
        words += " (logarithmic)"
        low = min(value for value in values if value > 0)
        powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high)) + 1)
        marks = [high, *(10.0**power for power in reversed(powers))]
        top, over = math.log(high), math.log(high) - math.log(low)
        downs = {value: height * (top - math.log(max(value, low))) / over for value in {*values, *marks}}
    else:
        # So that small changes of a large number, such as an image's side, are visible, the axis does not begin at 0.
        low = max(0.0, 2 * min(values) - high) if high / 2 < min(values) < high else 0.0
        marks = [high] if low or height < _RATE_HEIGHT else [high, high / 2]
        downs = {value: height * (high - value) / (high - low) for value in {*values, *marks}}
    yield _text(4 - _LEFT, -8, words, class_="head")
    taken: list[float] = []
    for value in marks:
        yield f'<path class="grid" d="M0 {downs[value]:.1f}H{width}"/>'
        if all(abs(downs[value] - other) >= 11 for other in taken):
            taken.append(downs[value])
            yield _text(-6, downs[value] + 3.5, _label(value), anchor="end", class_="muted")
    yield f'<path class="axis" d="M0 0V{height}H{width}"/>'
    yield f'<path class="curve c{index}" d="{_line([downs[value] for value in values], width)}"/>'
    for first, last in _plateaus(values):
        middle = width * (first + last) / 2 / (len(values) - 1)
        down = downs[values[first]]
        # Above the line, but below the text over the panel.
        yield _text(middle, down - 4 if down > 8 else down + 13, _label(values[first]), anchor="middle", class_="muted")


def _plateaus(values: Sequence[float]) -> list[tuple[int, int]]:
    """First and last index of each stretch that is constant for a twentieth of the curve, if there are two to eight."""
    edges = [0, *(index for index in range(1, len(values)) if values[index] != values[index - 1]), len(values)]
    stretches = [(first, after - 1) for first, after in pairwise(edges) if after - first > len(values) / 20]
    return stretches if 1 < len(stretches) <= 8 else []


def _line(heights: Sequence[float], width: float) -> str:
    """A path through evenly spaced points, without those on a straight line between their neighbours."""
    points = [(width * index / (len(heights) - 1), height) for index, height in enumerate(heights)]
    kept, lowest, highest = [points[0]], -math.inf, math.inf  # slopes that pass all points since the last one kept
    for before, (x, y) in pairwise(points[1:]):
        x_0, y_0 = kept[-1]
        lowest = max(lowest, (before[1] - _STRAIGHT - y_0) / (before[0] - x_0))
        highest = min(highest, (before[1] + _STRAIGHT - y_0) / (before[0] - x_0))
        if not lowest < (y - y_0) / (x - x_0) < highest:
            kept.append(before)
            lowest, highest = -math.inf, math.inf
    kept.append(points[-1])
    return "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in kept)


def _epoch_axis(end: float, top: float) -> Iterator[str]:
    width = _WIDTH - _LEFT - _RIGHT
    step = next(
        factor * 10.0**power for power in range(-2, 16) for factor in (1, 2, 5) if end / (factor * 10.0**power) <= 10
    )
    for number in range(int(end / step + 1e-9) + 1):
        across = _LEFT + width * number * step / end
        yield f'<path class="axis" d="M{across:.1f} {top:g}v4"/>'
        yield _text(across, top + 16, f"{number * step:g}", anchor="middle", class_="muted")
    yield _text(4, top + 16, "epochs", class_="muted")


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _text(across: float, down: float, words: str, *, anchor: str = "start", class_: str) -> str:
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}" class="{class_}">{escaped}</text>'


def _document(parts: Sequence[str], height: float, label: str) -> str:
    rules = [".curve{fill:none;stroke-width:2;stroke-linejoin:round}", ".grid,.axis{fill:none;stroke-width:1}"]
    rules += [f"text{{font:11px system-ui,-apple-system,'Segoe UI',sans-serif;fill:{INK}}}", ".head{font-weight:600}"]
    rules += [*_colours({colour: colour for colour in DARK})]
    rules += ["@media(prefers-color-scheme:dark){", f"text{{fill:{DARK[INK]}}}", *_colours(DARK), "}"]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img">'
    title = label.replace("&", "&amp;").replace("<", "&lt;")
    return "\n".join([head, f"<title>{title}</title>", f"<style>{''.join(rules)}</style>", *parts, "</svg>\n"])


def _colours(named: dict[str, str]) -> Iterator[str]:
    yield f".muted{{fill:{named[MUTED]}}}.grid{{stroke:{named[GRID]}}}.axis{{stroke:{named[MUTED]}}}"
    yield from (f".c{index}{{stroke:{named[colour]}}}" for index, colour in enumerate(SERIES[:3]))
