"""Charts as plain data, which `charts.js` draws with uPlot (in `uplot/`, MIT); those of runs, and their table.

A page with charts has `drawn(data)` in its body, and `style()` and `script()`. `data` has the keys

    points    name -> axis -> positions: a set of points may have places on several axes, of which the reader chooses
    ends      axis -> where it ends, whatever a chart has there; an axis that is not named ends with a chart's points
    charts    made by `chart`, each of curves made by `curve`, in the order of the page
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recipes.planning.phase_times import PHASES, busy_seconds
from recipes.reports.curves import reads_better_in_decades
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.noise import noise_windows
from recipes.reports.record import Run
from recipes.reports.sections import loss_text
from recipes.reports.seeds import Group, groups
from recipes.reports.style import DASHES, SERIES
from recipes.reports.wording import number, percent

AXES = ("epochs", "updates", "samples", "time")
_HERE = Path(__file__).parent
_MOST_POINTS = 2000  # of a curve, divided by the number of runs, so that a page stays small
_FEWEST_POINTS = 200
_MOST_STRETCHES = 60  # of a stack
_MOST_EXTENSION_FIGURES = 40  # charts
_MOST_RANKS = 16  # with a curve of their own
_MOST_ROWS = 20

Chart = dict[str, Any]


def script() -> str:
    """uPlot, and what draws the curves of a page with it."""
    files = (_HERE / "uplot" / "uPlot.iife.min.js", _HERE / "charts.js")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def style() -> str:
    """The style sheet of uPlot."""
    return (_HERE / "uplot" / "uPlot.min.css").read_text(encoding="utf-8")


CONTROLS = joined(
    [
        tag("noscript", tag("p", "The curves need JavaScript. Without it, the tables below have their numbers.")),
        tag(
            "form",
            tag("span", "", id="axes"),
            tag("label", "smoothing ", tag("input", id="smoothing", type="range", min="0", max="30", value="5")),
            tag("button", "whole charts", id="reset", type="button"),
            tag("span", "Drag over a chart to zoom; click a name to hide its curve.", class_="muted"),
            id="controls",
            hidden="",
        ),
    ]
)


def drawn(data: dict[str, Any]) -> Markup:
    """Controls, a place for all charts, and the data."""
    return joined([CONTROLS, tag("div", "", id="first", class_="pictures"), charts_markup(data)])


def charts_markup(data: dict[str, Any]) -> Markup:
    """The data of charts as a block that no browser executes."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":  # nothing in it can end the block
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return tag("script", Markup(text), type="application/json", id="curves")


def chart(
    title: str,
    caption: str,
    curves: Sequence[dict[str, Any]],
    *,
    axes: Sequence[str] = AXES,
    logarithmic: str = "",
    may_be: str = "xy",
    percent: bool = False,
    stacked: bool = False,
    ticks: Sequence[str] = (),
) -> Chart:
    """A chart.

    Args:
        title: unlike that of any other chart of the page.
        axes: those that its points have, the first by default.
        logarithmic: `x`, `y` or `xy`: at first.
        may_be: which of them the reader may make logarithmic.
        percent: its values are in percent: the axis stays within 0 and 100.
        stacked: each curve begins on the one before.
        ticks: names of the places 0, 1, ... of an axis without numbers; what follows a line break is in the legend.
    """
    how = {"axes": axes, "logarithmic": logarithmic, "mayBe": may_be, "percent": percent}
    return {"title": title, "caption": caption, **how, "stacked": stacked, "ticks": ticks, "curves": curves}


def curve(at: str, values: Any, label: str, *, style: int = 0, look: str = "line", **more: Any) -> dict[str, Any]:
    """A curve of a chart.

    Args:
        at: its set of points.
        values: of the points; where one is not finite, the curve has none.
        label: its name in the legend.
        style: number of its colour and dashes.
        look: `line`, `step`, `dots` (a line with dots), `smooth` (many noisy points, and their running mean),
            `points` and `hollow` (no line), `top` and `bottom` (points at the edge, whatever their values),
            `highest` and `lowest` (the best of all values so far, along the axis).
        more: `colour`; `dashes` and `width` in pixels; `scales: False`: its values do not widen the axis; `group`:
            curves with the same one have one name in the legend; `names`: of each point, or one of the whole curve.
            Elements of the page with this name as `data-name` are marked when the reader points at it, and back.
    """
    colour, dashes = run_style(style)
    return {"at": at, "values": plain(values), "label": label, "colour": colour, "dashes": dashes, "look": look, **more}


def charts(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, Any]:
    """The charts of one run, or of several over each other."""
    points: dict[str, Any] = {}
    metrics = [partial(_metric, name=name) for name in dict.fromkeys(name for run in runs for name in run.metrics)]
    own = dict.fromkeys(key for run in runs for key in run.extension_figures)
    metrics += [partial(_extension_figure, key=key) for key in list(own)[:_MOST_EXTENSION_FIGURES]]
    others = (_rate, _batch, _throughput, _phases, _ranks, _memory, _noise)
    over_seeds = partial(_over_seeds, found=groups(runs, labels))
    seeds = (partial(over_seeds, what="Accuracy"), partial(over_seeds, what="Evaluation loss"))
    makers = (_accuracy, _loss, _evaluation_loss, *seeds, *metrics, *others)
    made = [_Maker(runs, labels, points) for _ in makers]
    shown = [chart for maker, on in zip(makers, made, strict=True) if (chart := maker(on)) and chart["curves"]]
    reached = [positions(run, np.array([run.epochs_done])) for run in runs]
    ends = {axis: max(known) for axis in AXES if (known := [at[axis][0] for at in reached if axis in at])}
    return {"points": points, "ends": ends, "charts": shown}


class _Maker:
    """Collects the curves of one chart, and the positions of their points."""

    def __init__(self, runs: Sequence[Run], labels: Sequence[str], points: dict[str, Any]) -> None:
        self.runs, self.labels, self._points = runs, labels, points
        self.alone = len(runs) == 1
        self.most = max(_FEWEST_POINTS, _MOST_POINTS // len(runs))  # points of a curve
        self.curves: list[dict[str, Any]] = []

    def add(
        self,
        index: int,
        points: tuple[str, np.ndarray],
        values: np.ndarray,
        label: str,
        look: str,
        *,
        scales: bool = True,
    ) -> None:
        """A curve of the run of this index; of several runs each has its own colour, of one run each curve."""
        at = f"{index} {points[0]}"
        self._points.setdefault(at, positions(self.runs[index], points[1]))
        wider = {} if self.alone else {"width": 1.5 + 1.5 * min(3, len(self.runs) - 1 - index)}  # seen below others
        label, style = (label, len(self.curves)) if self.alone else (self.labels[index], index)
        self.curves.append(curve(at, values, label, style=style, look=look, scales=scales, **wider))

    def updates(self, index: int, values: np.ndarray, label: str, look: str, *, scales: bool = True) -> None:
        """A curve over the updates of a run: the mean over equal stretches where there are many."""
        run = self.runs[index]
        if len(run.updates):
            stretches = np.array_split(np.arange(len(run.updates)), min(self.most, len(run.updates)))
            first = np.array([stretch[0] for stretch in stretches])
            means = values[first] if look == "step" else np.array([values[one].mean() for one in stretches])
            end = values[-1] if look == "step" else np.nan  # the last update has a width too
            places = np.append(run.updates.epoch[first], run.epochs_done)
            self.add(index, ("updates", places), np.append(means, end), label, look, scales=scales)

    def band(self, index: int, values: np.ndarray, label: str, *, style: int) -> None:
        """Mean and standard deviation over runs, a row each, at the evaluations of the run of this index."""
        at = f"{index} evaluations"
        self._points.setdefault(at, positions(self.runs[index], self.runs[index].evaluations.epoch))
        with np.errstate(over="ignore", invalid="ignore"):  # a loss may be infinite
            mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
        self.curves.append(curve(at, mean, label, style=style, look="dots", group=label))
        for edge in (mean - deviation, mean + deviation):
            self.curves.append(curve(at, edge, label, style=style, group=label, width=1))

    def chart(
        self, title: str, caption: str, *, logarithmic: bool = False, percent: bool = False, stacked: bool = False
    ) -> Chart:
        return chart(
            title,
            caption,
            self.curves,
            logarithmic="y" if logarithmic else "",
            percent=percent,
            stacked=stacked,
            may_be="x" if stacked else "xy",
        )


def run_style(index: int) -> tuple[str, list[float]]:
    """Colour and dashes, in pixels, of the curve with this index."""
    dashes = DASHES[index // len(SERIES) % len(DASHES)]
    return SERIES[index % len(SERIES)], [] if dashes == "-" else [3 * length for length in dashes[1]]


def positions(run: Run, epochs: np.ndarray) -> dict[str, list[float]]:
    """Where points at these epochs lie on each axis: epochs, updates, samples, and seconds since the start."""
    updates = run.updates
    if not len(updates):
        return {"epochs": plain(epochs)}
    known = np.append(updates.epoch, run.epochs_done)
    axes = {
        "updates": np.append(updates.update, updates.update[-1] + 1),
        "samples": np.append(updates.samples, updates.samples[-1] + updates.global_batch_size[-1]),
        "time": np.append(0.0, updates.elapsed_seconds),
    }
    found = {name: np.interp(epochs, known, values) for name, values in axes.items() if np.isfinite(values).all()}
    return {name: plain(values) for name, values in {"epochs": epochs, **found}.items()}


def numbers(run: Run) -> Markup:
    """Evaluations, at most 20 evenly spread, and the training loss there: what the curves show, in a table."""
    scored = run.evaluations
    if not len(scored):
        return Markup("")
    chosen = np.unique(np.linspace(0, len(scored) - 1, min(_MOST_ROWS, len(scored))).round().astype(int))
    losses = np.interp(scored.update[chosen], run.updates.update + 1, run.updates.loss) if len(run.updates) else None
    rows = [
        (
            number(float(scored.epoch[at])),
            number(int(scored.update[at])),
            percent(float(scored.accuracy[at])),
            "–" if np.isnan(scored.loss[at]) else loss_text(float(scored.loss[at])),  # it may not have been written
            loss_text(None if losses is None else float(losses[row])),
        )
        for row, at in enumerate(chosen)
    ]
    heads = ("epoch", "updates", "accuracy", "evaluation loss", "training loss")
    return tag(
        "details",
        tag("summary", "The curves in numbers"),
        table(heads, rows, class_="numbers"),
        class_="numbers",
        open="",
    )


def _accuracy(on: _Maker) -> Chart:
    for index, run in enumerate(on.runs):
        scored = np.isfinite(run.evaluations.accuracy)
        if scored.any():
            points = ("scored", run.evaluations.epoch[scored])
            on.add(index, points, 100 * run.evaluations.accuracy[scored], "accuracy", "dots")
    return on.chart("Accuracy (%)", "Of each evaluation, over the whole evaluation set.", percent=True)


def _loss(on: _Maker) -> Chart:
    caption = "Of each update before it was applied, faint; the line is its running mean."
    return _loss_chart(on, "Loss", caption, training=True, evaluation=on.alone)


def _evaluation_loss(on: _Maker) -> Chart:
    caption = "Of each evaluation, over the whole evaluation set."
    return _loss_chart(on, "Evaluation loss", caption, training=False, evaluation=not on.alone)


def _loss_chart(on: _Maker, title: str, caption: str, *, training: bool, evaluation: bool) -> Chart:
    """Logarithmic if the losses span more than a factor of 20; of several runs those that failed do not count."""
    ended = [run.outcome != "failed" for run in on.runs]
    losses = [np.empty(0)]
    for index, run in enumerate(on.runs):
        counts = ended[index] or not any(ended)
        if training:
            on.updates(index, run.updates.loss, "training", "smooth", scales=counts)
            losses += [run.updates.loss] if counts else []
        if evaluation and np.isfinite(run.evaluations.loss).any():
            points = ("evaluations", run.evaluations.epoch)
            on.add(index, points, run.evaluations.loss, "evaluation", "dots", scales=counts)
            losses += [run.evaluations.loss] if counts else []
    known = np.concatenate(losses)
    known = known[np.isfinite(known) & (known > 0)]
    caption += " The axis fits the runs that did not fail." if any(ended) and not all(ended) else ""
    return on.chart(title, caption, logarithmic=bool(len(known) and known.max() > 20 * known.min()))


def _over_seeds(on: _Maker, *, found: Sequence[Group], what: str) -> Chart:
    """Of each group of runs that were evaluated at the same epochs."""
    is_accuracy = what == "Accuracy"
    for style, group in enumerate(found):
        scored = [run.evaluations for run in group.runs]
        if len(scored) > 1 and all(np.array_equal(each.epoch, scored[0].epoch) for each in scored):
            values = np.array([100 * each.accuracy if is_accuracy else each.loss for each in scored])
            on.band([run is group.runs[0] for run in on.runs].index(True), values, group.name, style=style)
    caption = "Mean of the runs that differ in the seed alone; thin: one standard deviation above and below."
    return on.chart(f"{what} over seeds{' (%)' * is_accuracy}", caption, percent=is_accuracy)


def _metric(on: _Maker, *, name: str) -> Chart:
    for index, run in enumerate(on.runs):
        if name in run.metrics:
            epochs, values = run.metrics[name]
            on.add(index, (f"metric {name}", epochs), values, name, "dots")
    return on.chart(f"Metric {name}", "Of each evaluation, over the whole evaluation set.")


def _extension_figure(on: _Maker, *, key: str) -> Chart:
    for index, run in enumerate(on.runs):
        if key in run.extension_figures:
            epochs, values = run.extension_figures[key]
            stretches = np.array_split(np.arange(len(values)), min(on.most, len(values)))
            means = np.array([values[stretch].mean() for stretch in stretches])
            first = np.array([stretch[0] for stretch in stretches])
            on.add(index, (f"extension {key}", epochs[first]), means, key, "dots")
    return on.chart(f"Extension: {key}", "As an extension wrote it.")


def _rate(on: _Maker) -> Chart:
    for index, run in enumerate(on.runs):
        on.updates(index, run.updates.learning_rate, "learning rate", "step")
    rates = np.concatenate([run.updates.learning_rate for run in on.runs])
    return on.chart("Learning rate", "As each update used it.", logarithmic=reads_better_in_decades(rates))


def _batch(on: _Maker) -> Chart:
    if len({size for run in on.runs for size in run.updates.global_batch_size.tolist()}) > 1:
        for index, run in enumerate(on.runs):
            on.updates(index, run.updates.global_batch_size, "global batch", "step")
    return on.chart("Global batch (samples)", "As each update used it.")


def _throughput(on: _Maker) -> Chart:
    for index, run in enumerate(on.runs):
        seconds = np.where(run.updates.update_seconds > 0, run.updates.update_seconds, np.nan)
        on.updates(index, run.updates.global_batch_size / seconds, "samples per second", "smooth")
    return on.chart("Samples per second", "Of each update; evaluations and checkpoints are not counted.")


def _phases(on: _Maker) -> Chart:
    if on.alone and len(on.runs[0].phases):
        measured = on.runs[0].phases
        stretches = np.array_split(np.arange(len(measured)), min(_MOST_STRETCHES, len(measured)))
        epochs = np.array([measured.epoch[stretch[0]] for stretch in stretches])
        means = np.array([1000 * np.median(measured.seconds[stretch], axis=0) for stretch in stretches])
        epochs, means = np.append(epochs, on.runs[0].epochs_done), np.vstack([means, means[-1]])
        for name, values in zip(PHASES, means.T, strict=True):
            on.add(0, ("stretches", epochs), values, name, "line")
    caption = "Median over stretches of updates of the workers' mean: what the time of an update was spent on."
    return on.chart("Time by phase (ms an update)", caption, stacked=True)


def _ranks(on: _Maker) -> Chart:
    """The own work of each rank; with many ranks the slowest, the fastest and the median."""
    lines = on.runs[0].phases.ranks if on.alone else ()
    if lines and len(lines[0].seconds) > 1:
        busy = np.array([1000 * busy_seconds(line.seconds) for line in lines])
        _by_rank(on, np.array([line.epoch for line in lines]), busy)
    return on.chart("Own work of each rank (ms an update)", "Without waiting for others and without the exchange.")


def _memory(on: _Maker) -> Chart:
    if on.alone:
        for name, words in (("resident_bytes", ""), ("gpu_pool_bytes", "GPU ")):
            lines = [line for line in on.runs[0].phases.ranks if name in line.memory]
            if lines:
                gigabytes = np.array([line.memory[name] for line in lines]) / 1e9
                _by_rank(on, np.array([line.epoch for line in lines]), gigabytes, words=words, at="memory")
    return on.chart("Peak memory of each rank so far (GB)", "The resident set, and what CuPy's pools hold on a GPU.")


def _by_rank(on: _Maker, epochs: np.ndarray, values: np.ndarray, *, words: str = "", at: str = "ranks") -> None:
    if values.shape[1] <= _MOST_RANKS:
        named = {f"{words}rank {rank}": column for rank, column in enumerate(values.T)}
    else:
        named = {"largest": values.max(axis=1), "median": np.median(values, axis=1), "smallest": values.min(axis=1)}
        named = {f"{words}{name}": column for name, column in named.items()}
    for name, column in named.items():
        on.add(0, (at, epochs), column, name, "dots")


def _noise(on: _Maker) -> Chart:
    for index, run in enumerate(on.runs):
        known = [window for window in noise_windows(run) if window.scale is not None]
        if known:
            points = ("windows", np.array([(window.first_epoch + window.last_epoch) / 2 for window in known]))
            values = np.array([window.scale.value for window in known])
            errors = 2 * np.array([window.scale.standard_error for window in known])
            on.add(index, points, values, "noise scale", "dots")
            if on.alone:
                on.add(index, points, values + errors, "two standard errors above", "line")
                on.add(index, points, np.maximum(values - errors, 0.1 * values), "and below", "line")
                on.updates(index, run.updates.global_batch_size, "global batch", "step")
    caption = "Of the SGD gradient, by stretches of updates; what is below is cut at a tenth."
    return on.chart("Noise scale (samples)", caption, logarithmic=True)


def plain(values: Any) -> list[Any]:
    """Numbers in six digits for JSON, null where they are not finite."""
    return list(_rounded(np.asarray(values, dtype=np.float64)))


def _rounded(values: np.ndarray) -> Iterator[float | int | None]:
    for value in values.tolist():
        if not np.isfinite(value):
            yield None
        else:
            yield int(value) if value.is_integer() else float(f"{value:.6g}")
