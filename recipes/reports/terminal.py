"""Text for a terminal: the curves of a recipe, drawn with braille dots, and a plan."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipes.planning.planner import Plan
from recipes.reports.curves import points_text, reads_better_in_decades, recipe_curves
from recipes.reports.wording import counted, number, percent, size
from recipes.schema import Dataset, Recipe

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bits of a braille cell: four rows of two dots
_BLANK = 0x2800
_SOMETIMES = {  # in a plan's memory
    "averaged_weights_bytes": "averaged weights",
    "sums_bytes": "sums of exact mode",
    "ordered_weights_bytes": "weights in PyTorch's order",
}
_MARGIN = 9  # columns of the axis labels and the axis

_Ticks = Sequence[tuple[float, str]]
_Curve = tuple[np.ndarray, np.ndarray]


def curve_text(recipe: Recipe, dataset: Dataset, width: int | None = None, height: int = 24) -> str:
    """Learning rate, global batch size and, where it moves, image size against epochs.

    Args:
        recipe: whose curves.
        dataset: what an epoch is of.
        width: characters of a line, at least 30; None for those of the terminal, but from 30 to 80.
        height: lines, at least 12.
    Returns:
        Lines without colours or control characters; the batch as one sentence where it does not move.
    Raises:
        ValueError: the picture would be too small to read.
    """
    width = min(max(shutil.get_terminal_size().columns, 30), 80) if width is None else width
    if width < 30 or height < 12:
        raise ValueError(f"a picture of {width} x {height} characters cannot be read; give at least 30 x 12")
    curves = recipe_curves(recipe)
    sizes = np.unique(curves.global_batch_size[1])
    moving = [("global batch size (samples)", curves.global_batch_size, 0.0)] if len(sizes) > 1 else []
    if curves.image_size is not None:
        moving.append(("image size (pixels)", curves.image_size, float(curves.image_size[1].min())))
    rows = max(4 - len(moving), height // (2 + 2 * len(moving)))
    canvas = _Canvas(end=float(recipe.epochs), columns=width - _MARGIN)
    lines = [f"{recipe.name}: {recipe.epochs:g} epochs of {dataset.name}, {dataset.num_train:,} samples each"]
    sentence = len(sizes) == 1
    lines += _rate_lines(canvas, curves.learning_rate, height - 4 - (rows + 1) * len(moving) - sentence)
    for title, curve, low in moving:
        lines += [title, *_step_lines(canvas, curve, low, rows)]
    lines += _epoch_axis(canvas)
    if sentence:
        lines.append(f"global batch size: {sizes[0]:,.0f} samples throughout")
    return "\n".join(line.rstrip()[:width] for line in lines)


def _rate_lines(canvas: _Canvas, curve: _Curve, rows: int) -> list[str]:
    epochs, rates = curve
    high = float(rates.max()) or 1.0  # of a run that is cut short, it may be 0
    if not reads_better_in_decades(rates):
        step = _round_step(high / 4)
        values = [high, *(step * index for index in range(int(high / step) + 1))]
        ticks = [(value / high, f"{value:.3g}") for value in values]
        return ["learning rate", *canvas.drawn(epochs, rates / high, ticks, rows)]
    low = float(rates[rates > 0].min())
    decades = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    over = math.log(high) - math.log(low)
    ticks = [((math.log(value) - math.log(low)) / over, f"{value:.3g}") for value in (high, low, *decades)]
    heights = (np.log(np.maximum(rates, low)) - math.log(low)) / over
    return ["learning rate (logarithmic)", *canvas.drawn(epochs, heights, ticks, rows)]


def _step_lines(canvas: _Canvas, curve: _Curve, low: float, rows: int) -> list[str]:
    epochs, values = curve
    span = float(values.max()) - low
    ticks = [((value - low) / span, f"{value:,.0f}") for value in (*np.unique(values)[::-1], low)]
    return canvas.drawn(epochs, (values - low) / span, ticks, rows)


@dataclass(frozen=True, kw_only=True)
class _Canvas:
    """A canvas for curves over [0, end], `columns` cells wide, each of two by four dots."""

    end: float
    columns: int

    def drawn(self, epochs: np.ndarray, heights: np.ndarray, ticks: _Ticks, rows: int) -> list[str]:
        """The lines of a curve with heights from 0 to 1; of several ticks on one line only the first is written."""
        cells = np.full((rows, self.columns), _BLANK)
        across = np.minimum(epochs / self.end * 2 * self.columns, 2 * self.columns - 1).astype(int)
        down = np.rint((1 - heights) * (4 * rows - 1)).astype(int)
        for index, column in enumerate(across):
            low, high = sorted((down[max(index - 1, 0)], down[index]))
            for row in range(low, high + 1):
                cells[row // 4, column // 2] |= _DOTS[row % 4][column % 2]
        labels: dict[int, str] = {}
        for height, label in ticks:
            labels.setdefault(round((1 - height) * (4 * rows - 1)) // 4, label)
        return [
            f"{labels.get(row, ''):>{_MARGIN - 2}} {'┤' if row in labels else '│'}{''.join(map(chr, cells[row]))}"
            for row in range(rows)
        ]


def _epoch_axis(canvas: _Canvas) -> list[str]:
    axis, labels = ["─"] * canvas.columns, [" "] * (canvas.columns + _MARGIN)
    step = _round_step(canvas.end / max(2, canvas.columns // 12))
    for tick in range(int(canvas.end / step * (1 + 1e-9)) + 1):
        index = min(round(tick * step / canvas.end * canvas.columns), canvas.columns - 1)
        axis[index] = "┬"
        text = f"{tick * step:g}"
        start = min(index + _MARGIN - len(text) // 2, len(labels) - len(text))
        labels[start : start + len(text)] = text
    words = "epochs"
    labels[: len(words)] = words
    return [" " * (_MARGIN - 1) + "└" + "".join(axis), "".join(labels)]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least`.

    >>> _round_step(15.0), _round_step(0.03)
    (20.0, 0.05)
    """
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


def plan_text(plan: Plan, *, of_workers: str = "") -> str:
    """The plan: a row a segment, then memory and warnings; `of_workers` is added behind their number."""
    tree = plan.as_tree()
    scored = f", {counted(tree['held_out'], 'sample')} held out to be scored" if "held_out" in tree else ""
    lines = [
        f"{tree['recipe']} on {tree['dataset']}{scored}, "
        f"{counted(tree['workers'], 'worker')} of {tree['cluster']}{of_workers}: "
        f"{counted(tree['num_updates'], 'update')}, {counted(tree['num_samples'], 'sample')}, "
        f"computed in {tree['compute']}",
        "",
        points_text([_plan_row(segment) for segment in tree["segments"]]),
        "",
    ]
    why = f"may differ with the number of workers; {plan.why_not_exact}"
    lines.append(f"bits: {'the same on any number of workers' if plan.exact else why}")
    if plan.busy < 1:
        fit = " or ".join(map(str, plan.workers_all_busy))
        busy = percent(plan.busy, digits=0)
        lines.append(f"workers compute {busy} of the time, and wait for others the rest; {fit} would not wait")
    shares = {segment["update"]: max(segment["samples_per_worker"]) for segment in tree["segments"]}
    lines += _memory_lines(tree["memory"], shares)
    return "\n".join(lines + [f"warning: {warning}" for warning in tree["warnings"]])


def _memory_lines(memory: dict | None, shares: dict[int, int]) -> list[str]:
    """What takes memory on a device, and what other micro-batches would take.

    Args:
        memory: of a plan.
        shares: samples of the fullest worker in an update, by the first update of each segment.
    """
    if memory is None:
        return ["memory of a device: not known, the model is not built; your own is with --allow-code"]
    parts = [
        f"weights {size(memory['weights_bytes'])}",
        *_halves(memory),
        f"gradients {size(memory['gradients_bytes'])}",
        f"optimizer state {size(memory['optimizer_state_bytes'])}",
        *(f"{words} {size(memory[key])}" for key, words in _SOMETIMES.items() if key in memory),
    ]
    if memory["total_bytes"] is None:
        return [f"memory of a device: {' + '.join(parts)}, and the activations, which are not known"]
    parts += [f"activations {size(memory['activations_bytes'])}", f"workspace {size(memory['workspace_bytes'])}"]
    rows = (
        f"{row['micro_batch_size']}: {size(row['total_bytes'])} in {counted(row['accumulation_steps'], 'step')}"
        for row in memory["choices"]
    )
    ends = f" ({' to '.join(map(size, memory['range_bytes']))})" if memory["range_bytes"] else ""
    most, share = memory["largest_that_fits"], shares[memory["update"]]
    limit = f"a worker has only {share}" if most == share else f"the largest that fits is {most or 'none'}"
    return [
        f"memory of a device: {' + '.join(parts)} = {size(memory['total_bytes'])}{ends} of "
        f"{size(memory['device_bytes'])}; {memory['rests_on']}",
        f"micro-batches: {'; '.join(rows)}; {limit}",
    ]


def _halves(memory: dict) -> list[str]:
    halves = {half: memory.get(f"{half}_weights_bytes") for half in ("float16", "bfloat16")}
    return [f"their {half} casts {size(taken)}" for half, taken in halves.items() if taken is not None]


def _plan_row(segment: dict) -> dict:
    shares = segment["samples_per_worker"]
    first, last = (number(rate, digits=3) for rate in segment["learning_rate"])
    return {
        "epoch": segment["epoch"],
        "update": segment["update"],
        "updates": segment["num_updates"],
        "batch": segment["global_batch_size"],
        "share": f"{min(shares)}-{max(shares)}" if min(shares) < max(shares) else shares[0],
        "micro_batch": segment["micro_batch_size"],
        "accumulation": segment["accumulation_steps"],
        "norm_span": segment["norm_span"],
        **({} if segment["image_size"] is None else {"image_size": segment["image_size"]}),
        "teams": f"{segment['num_teams']} x {counted(segment['team_size'], 'worker')}",
        "idle": segment["idle_workers"],
        "rate, first and last": f"{first}, {last}",
    }
