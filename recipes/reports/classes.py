"""A section of a report on the last evaluation: which classes are taken for which, and the worst samples."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.json_text import parse_json
from recipes.reports.record import Run
from recipes.reports.wording import counted, number, percent

_MATRIX = 30  # classes; of more, only the most frequent mistakes are shown
_MOST_ROWS = 30
_LARGEST_FILE = 20_000_000  # bytes, of classes.json
_LARGEST_PICTURE = 60_000
_MOST_CLASSES = 100_000
_STRONGEST = 30  # percent of colour in a cell, which leaves its number legible


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The record of an evaluation.

    Args:
        where: update, epoch and split.
        names: of the classes.
        counts: (3, pairs): label, class that the model takes it for, number of samples.
        worst: samples with the largest loss first, each with `label`, `taken_for`, `loss` and its picture.
    """

    where: str
    names: list[str]
    counts: np.ndarray
    worst: list[dict[str, Any]]

    def name(self, label: int) -> str:
        return self.names[label] if 0 <= label < len(self.names) else str(label)


def read_scored(folder: Path) -> Scored | None:
    """The record in `evaluation/` of a run's folder; None where there is none, or another program has written it."""
    try:
        file = folder / "evaluation" / "classes.json"
        if not file.is_file() or file.stat().st_size > _LARGEST_FILE:
            return None
        tree = parse_json(file.read_text(encoding="utf-8"))
        counts = np.array(tree["counts"], dtype=np.int64).reshape(-1, 3).T
        if not counts.size or counts.min() < 0 or counts[:2].max() >= _MOST_CLASSES:
            return None
        worst = [
            {"label": int(one["label"]), "taken_for": int(one["taken_for"]), "loss": one["loss"]}
            | {"picture": _picture(file.with_name(f"worst-{at:02d}.png"))}
            for at, one in enumerate(tree["worst"][:100])
        ]
        where = f"After update {number(tree['update'])}, epoch {number(tree['epoch'])}"
        where += ", on the test split." if tree.get("split") == "test" else "."
        return Scored(where=where, names=list(map(str, tree["classes"])), counts=counts, worst=worst)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _picture(file: Path) -> str:
    data = file.read_bytes() if file.is_file() and file.stat().st_size <= _LARGEST_PICTURE else b""
    return base64.b64encode(data).decode() if data.startswith(b"\x89PNG") else ""


def classes(run: Run) -> Markup:
    """Scores by class, the confusion matrix or the most frequent mistakes, and the worst samples."""
    scored = read_scored(run.folder)
    if scored is None:
        return Markup("")
    few = 1 + scored.counts[:2].max() <= _MATRIX
    return joined(
        [
            tag("h2", "Classes"),
            tag("p", scored.where, class_="muted"),
            _matrix(scored) if few else _mistakes(scored),
            _by_class(scored),
            _worst(scored),
        ]
    )


def _by_class(scored: Scored) -> Markup:
    labels, taken, counts = scored.counts
    size = 1 + int(scored.counts[:2].max())
    right = labels == taken
    correct = np.bincount(labels[right], counts[right], size)
    samples, given = np.bincount(labels, counts, size), np.bincount(taken, counts, size)
    known = np.flatnonzero(samples)
    order = known[np.argsort(correct[known] / samples[known], kind="stable")][:_MOST_ROWS]
    rows = [
        (
            scored.name(label),
            number(int(samples[label])),
            percent(correct[label] / samples[label]),
            percent(correct[label] / given[label]) if given[label] else "–",
        )
        for label in order.tolist()
    ]
    more = f"The {_MOST_ROWS} lowest of {number(len(known))} classes." if len(known) > len(rows) else ""
    heads = ("class", "samples", "found (recall)", "right where named (precision)")
    return tag(
        "details",
        tag("summary", "Scores by class, the lowest first"),
        table(heads, rows, class_="numbers"),
        tag("p", more, class_="muted"),
    )


def _matrix(scored: Scored) -> Markup:
    size = 1 + int(scored.counts[:2].max())
    matrix = np.zeros((size, size), dtype=np.int64)
    matrix[scored.counts[0], scored.counts[1]] = scored.counts[2]
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    rows = []
    for label in range(size):
        cells = [
            _cell(int(matrix[label, taken]), float(shares[label, taken]), right=label == taken) for taken in range(size)
        ]
        rows.append(tag("tr", tag("th", scored.name(label), scope="row"), *cells))
    heads = ("is / taken for", *map(scored.name, range(size)))
    words = "A row for each class: how many of its samples the model takes for which class."
    return joined([table(heads, rows, class_="confusion"), tag("p", words, class_="muted")])


def _cell(count: int, share: float, *, right: bool) -> Markup:
    if not count:
        return tag("td")
    strength = _STRONGEST if right else min(_STRONGEST, 8 + 200 * share)
    colour = "--k009e73" if right else "--kd55e00"
    shade = f"background: color-mix(in srgb, var({colour}) {strength:.0f}%, transparent)"
    return tag("td", number(count), style=shade)


def _mistakes(scored: Scored) -> Markup:
    labels, taken, counts = scored.counts
    wrong = np.flatnonzero(labels != taken)
    order = wrong[np.argsort(-counts[wrong], kind="stable")][:_MOST_ROWS].tolist()
    of = np.bincount(labels, counts)
    rows = [
        (
            scored.name(int(labels[at])),
            scored.name(int(taken[at])),
            number(int(counts[at])),
            percent(counts[at] / of[labels[at]]),
        )
        for at in order
    ]
    heads = ("class", "taken for", "samples", "of the class")
    return joined([tag("h3", "Most frequent mistakes"), table(heads, rows, class_="numbers")])


def _worst(scored: Scored) -> Markup:
    figures = []
    for one in scored.worst:
        name, loss = scored.name(one["label"]), one["loss"]
        words = f"{name}, " + (
            "found" if one["taken_for"] == one["label"] else f"taken for {scored.name(one['taken_for'])}"
        )
        source = f"data:image/png;base64,{one['picture']}"
        image = Markup(f'<img src="{source}" alt="{html.escape(words)}">') if one["picture"] else Markup("")
        caption = tag("figcaption", f"{words}; loss {number(loss) if loss is not None else 'not finite'}")
        figures.append(tag("figure", image, caption))
    title = f"The {counted(len(figures), 'sample')} with the largest loss"
    return joined([tag("h3", title), tag("div", *figures, class_="worst")]) if figures else Markup("")
