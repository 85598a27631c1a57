"""Runs that differ in the seed alone: the mean of what they end with, and its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.errors import printable_line
from recipes.planning.intervals import interval_of_mean
from recipes.reading.identity import training_tree
from recipes.reading.tree_diff import comparable_tree, compare, value_texts
from recipes.reports.curves import points_text
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.record import Run
from recipes.reports.sections import OUTCOMES
from recipes.reports.wording import number, percent
from recipes.sharing.canonical import digest_of

_MOST_DIFFERENCES = 3  # between groups, that their names tell
_LONGEST_DIFFERENCE = 40  # characters
_MOST_ON_TERMINAL = 40  # figures
_MADE_OF = ("code", "data")  # in the `ids` of an environment
_RANGES = {"accuracy": (0.0, 1.0), "loss": (0.0, math.inf)}  # a metric's is not known
_LARGEST = 1e150  # whose square is finite


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one `group_id`.

    Args:
        name: what tells it from the other groups.
        runs: one of each seed, at its end.
        left_out: others and why, such as `runs/a: failed`.
    """

    name: str
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.runs) + len(self.left_out)


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A figure over the runs of a group.

    Args:
        figure: `accuracy`, `loss`, the name of a metric, or the key of what an extension wrote; a key that is the name
            of one of these is shown as in `extension loss`.
        values: of the runs in which it is finite; for the accuracy perhaps none.
    """

    figure: str
    group: Group
    values: tuple[float, ...]

    @property
    def deviation(self) -> float | None:
        """Of the sample (n - 1); None with one run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of 95 %; None with one run, and where all runs end alike, which shows no spread."""
        if not self.deviation:
            return None
        (low, high), (least, most) = interval_of_mean(self.values), _RANGES.get(self.figure, (-math.inf, math.inf))
        return max(low, least), min(high, most)

    @property
    def cells(self) -> dict[str, str]:
        """A row of the table, by the heads of its columns."""
        is_share = self.figure == "accuracy"
        shown, interval, spread = percent if is_share else number, self.interval, self.deviation
        deviation = "–" if spread is None else f"{100 * spread:.2f} points" if is_share else number(spread)
        return {
            "figure": self.figure or '""',
            "group": self.group.name,
            "runs": str(len(self.values)) + (f" of {self.group.size}" if len(self.values) < self.group.size else ""),
            "mean": shown(statistics.fmean(self.values)) if self.values else "–",
            "deviation": deviation,
            "95 % interval": "–" if interval is None else " to ".join(map(shown, interval)),
        }


def group_id(
    recipe: Mapping[str, Any], dataset: Mapping[str, Any], environment: Mapping[str, Any], wires: Sequence[str]
) -> str:
    """A digest that runs share which differ in the seed alone.

    Their recipes are equal but for the seed, and so are own code, data, kind of device, and the formats of 16 bits in
    which gradients were sent. Kernels, exact mode and the number of ranks may differ: they change the last bits.

    Args:
        recipe, dataset: of `run.yaml`.
        environment: of `environment.json`.
        wires: of `recipes.reports.metrics.rounding_wires`.
    Returns:
        Twelve hexadecimal digits; empty for what no run of kilobatch has written.
    """
    ids = environment.get("ids")
    made_of = [ids.get(what) for what in _MADE_OF] if isinstance(ids, Mapping) else None
    beside = [*wires, *(["gpu"] if _is_on_gpu(environment) else [])]
    try:
        return digest_of([training_tree(recipe, dataset, without=("seed",)), made_of, *beside])[:12]
    except (ValueError, TypeError, AttributeError):
        return ""


def _is_on_gpu(environment: Mapping[str, Any]) -> bool:
    ranks = environment.get("ranks")
    first = ranks[0] if isinstance(ranks, list) and ranks else None
    return isinstance(first, Mapping) and "gpu" in first


def groups(runs: Sequence[Run], labels: Sequence[str]) -> list[Group]:
    """The groups of runs, in the order of their first; none where no two runs differ in the seed alone."""
    by_id: dict[str, list[tuple[Run, str]]] = {}
    for run, label in zip(runs, labels, strict=True):
        found = group_id(run.recipe, run.dataset, run.environment, run.wires)
        by_id.setdefault(found or label, []).append((run, label))
    if all(len({str(run.recipe.get("seed")) for run, _ in group}) == 1 for group in by_id.values()):
        return []
    names = _names([group[0] for group in by_id.values()])
    return [_group(name, group) for name, group in zip(names, by_id.values(), strict=True)]


def _group(name: str, runs: Sequence[tuple[Run, str]]) -> Group:
    by_seed: dict[str, Run] = {}
    left_out = []
    for run, label in runs:
        seed = str(run.recipe.get("seed"))
        if run.outcome != "success":
            how = [OUTCOMES.get(run.outcome, run.outcome).lower(), run.reason.partition(" (")[0]]
            left_out.append(f"{label}: {', '.join(filter(None, how))}")
        elif run.final_accuracy is None:
            left_out.append(f"{label}: not evaluated")
        elif seed in by_seed:
            left_out.append(f"{label}: seed {seed} again")
        else:
            by_seed[seed] = run
    return Group(name=name, runs=tuple(by_seed.values()), left_out=tuple(left_out))


def _names(firsts: Sequence[tuple[Run, str]]) -> list[str]:
    """For each group, by its first run: the recipe's name where it tells, and what differs."""
    runs = [run for run, _ in firsts]
    found = compare([comparable_tree(run.recipe, run.dataset) for run in runs])
    found = [each for each in found if not each.is_words and each.path != ("seed",)]
    columns = [[f"{'.'.join(each.path)} {text}" for text in value_texts(each)] for each in found]
    if len(found) > _MOST_DIFFERENCES or any(len(cell) > _LONGEST_DIFFERENCE for column in columns for cell in column):
        columns = []
    names = [run.name for run in runs]
    if len({*names}) > 1 or not columns:
        columns = [names, *columns]
    devices = ["on GPUs" if _is_on_gpu(run.environment) else "on CPUs" for run in runs]
    wires = [f"{' and '.join(run.wires)} on the wire" if run.wires else "" for run in runs]
    columns += [column for column in (devices, wires) if len({*column}) > 1]
    made = [", ".join(filter(None, cells)) for cells in zip(*columns, strict=True)]
    pairs = zip(made, firsts, strict=True)
    return [
        name if made.count(name) == 1 else f"{name}{_other(run, runs[made.index(name)])} {_place(run, label)}"
        for name, (run, label) in pairs
    ]


def _other(run: Run, first: Run) -> str:
    """What of own code and data is not that of the first run of this name."""
    mine, its = run.environment.get("ids"), first.environment.get("ids")
    if not (isinstance(mine, Mapping) and isinstance(its, Mapping)):
        return ""
    return "".join(f", other {what}" for what in _MADE_OF if mine.get(what) != its.get(what))


def _place(run: Run, label: str) -> str:
    """The label of a run without its name: `(runs/a)`."""
    return label.removeprefix(f"{run.name} ") if label.startswith(f"{run.name} (") else f"({label})"


def means(found: Sequence[Group]) -> list[Mean]:
    """The figures of groups: the accuracy of all groups, then each other one of those that have it."""
    scored = {"accuracy", "loss"}.union(*(run.metrics for group in found for run in group.runs))
    finals = [[_finals(run, scored) for run in group.runs] for group in found]
    figures = dict.fromkeys(["accuracy", *(figure for group in finals for run in group for figure in run)])
    return [mean for figure in figures for mean in _means_of(figure, found, finals)] if found else []


def _means_of(figure: str, found: Sequence[Group], finals: Sequence[Sequence[Mapping[str, float]]]) -> Iterator[Mean]:
    for group, of_runs in zip(found, finals, strict=True):
        values = (of_run.get(figure, math.nan) for of_run in of_runs)
        finite = tuple(value for value in values if abs(value) < _LARGEST)
        if finite or figure == "accuracy":
            yield Mean(figure=figure, group=group, values=finite)


def _finals(run: Run, scored: Container[str]) -> dict[str, float]:
    """What a run ended with; `scored` are the names of what evaluations measure in any run."""
    loss = {} if run.final_loss is None else {"loss": run.final_loss}
    own = {f"extension {key}" if key in scored else key: series for key, series in run.extension_figures.items()}
    series = {**run.metrics, **own}
    return {"accuracy": run.final_accuracy, **loss} | {name: float(values[-1]) for name, (_, values) in series.items()}


def seeds(runs: Sequence[Run], labels: Sequence[str]) -> Markup:
    """A section of a page: the means of the groups; empty where no two runs differ in the seed alone."""
    found = groups(runs, labels)
    rows = [mean.cells for mean in means(found)]
    if not rows:
        return Markup("")
    words = (
        "Groups of runs that differ in the seed alone: the mean of what the runs ended with, the standard "
        "deviation of the sample (n - 1), and the 95 % interval of the mean by Student's t."
    )
    items = [tag("li", text) for text in _not_averaged(found)]
    return joined(
        [
            tag("h2", "Over seeds"),
            tag("p", words, class_="muted"),
            table([*rows[0]], [[*row.values()] for row in rows], class_="numbers"),
            joined([tag("p", "Not averaged:"), tag("ul", *items, class_="warnings")]) if items else "",
        ]
    )


def seeds_text(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """The same for the terminal: the first figures."""
    found = groups(runs, labels)
    made = means(found)
    figures = list(dict.fromkeys(mean.figure for mean in made))
    rows = [mean.cells for mean in made if mean.figure in figures[:_MOST_ON_TERMINAL]]
    rows = [{head: printable_line(cell) for head, cell in row.items()} for row in rows]
    more = [f"and {len(figures) - _MOST_ON_TERMINAL} more in the page"] if len(figures) > _MOST_ON_TERMINAL else []
    left_out = [printable_line(f"not averaged: {text}") for text in _not_averaged(found)]
    return "\n".join([points_text(rows), *more, *left_out] if rows else [])


def _not_averaged(found: Sequence[Group]) -> list[str]:
    return [text for group in found for text in group.left_out]
