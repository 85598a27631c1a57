"""One self-contained HTML page on one run, or on several beside each other."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from recipes.reading.tree_diff import comparable_tree, compare, value_texts
from recipes.reports import charts, sections
from recipes.reports.classes import classes
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.noise import loss_scale, noise, phases
from recipes.reports.planning import outcome
from recipes.reports.record import Run
from recipes.reports.seeds import seeds
from recipes.reports.style import PAGE
from recipes.reports.wording import duration, number, percent

# A second line of defence: even unescaped text could load and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_LIVE_SECONDS = 3  # between two looks of a live page


def write_page(runs: Sequence[Run], path: str | Path) -> None:
    """Writes the report on one run, or on several beside each other, as HTML, whole or not at all.

    Raises:
        ValueError: no runs.
        OSError: the file cannot be written.
    """
    path = Path(path)
    partial = path.parent / f"{path.name}.partial"
    try:
        text = page_text(runs)
        partial.unlink(missing_ok=True)  # perhaps a stranger's link, which would be written through
        with open(partial, "x", encoding="utf-8", errors="replace") as file:  # paths may be no UTF-8
            file.write(text)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()  # the disk may be full: free what the partial file occupies
        raise


@np.errstate(over="ignore", invalid="ignore")  # a diverged run, or a stranger's, has numbers of any size
def page_text(runs: Sequence[Run], *, live: bool = False) -> str:
    """The page as text.

    Args:
        runs: one, or several to compare.
        live: the page, which a server must give, asks for itself anew every few seconds until no run goes on.

    Raises:
        ValueError: no runs.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    title = runs[0].title if len(runs) == 1 else f"{len(runs)} runs compared"
    labels = labels_of(runs)
    data = charts.charts(runs, labels)
    body = joined(
        [
            tag("p", "", id="state", class_="muted", role="status"),
            _single(runs[0], data) if len(runs) == 1 else _comparison(runs, labels),
            charts.charts_markup(data),
        ]
    )
    goes_on = live and any(run.outcome == "unfinished" for run in runs)
    return document(title, body, style=charts.style(), script=charts.script(), live=_LIVE_SECONDS if goes_on else 0.0)


def document(title: str, body: Markup, *, style: str = "", script: str = "", live: float = 0.0) -> str:
    """A whole page in the reports' style, with a title as heading, which loads nothing from elsewhere.

    Args:
        style, script: more of both; constants of the program, without text of a run.
        live: seconds after which the page is read anew, by `charts.script` only what changed; 0: never.
    """
    policy = policy_of(script, live=bool(live))
    again = f'<noscript><meta http-equiv="refresh" content="{live:.0f}"></noscript>'
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(again if live else ""),
            tag("title", f"{title} – kilobatch"),
            tag("style", Markup(PAGE + style)),
        ]
    )
    end = tag("script", Markup(script)) if script else ""
    asks = {"data_live": f"{live:g}"} if live else {}
    page = tag("html", tag("head", head), tag("body", tag("main", tag("h1", title), body), end, **asks), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def policy_of(script: str, *, live: bool) -> str:
    """The Content-Security-Policy of a page: only this script runs, and if it is live it may ask its server."""
    # HTML's escaping does not apply in a style sheet or a script. Only the script with this sum may run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _POLICY + (f"; script-src 'sha256-{digest}'" if script else "") + ("; connect-src 'self'" if live else "")


def _single(run: Run, data: dict[str, Any]) -> Markup:
    model = run.recipe.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    facts = [run.name, kind, run.recipe.get("dataset"), run.environment.get("date")]
    return joined(
        [
            tag("div", " · ".join(str(fact) for fact in facts if fact), class_="muted"),
            tag("div", sections.verdict(run), id="now"),
            charts.CONTROLS,
            tag("div", "", id="first", class_="pictures"),
            tag("div", sections.tiles(run), id="tiles"),
            sections.changes(run),
            tag("h2", "Over the run") if len(data["charts"]) > 2 else "",
            tag("div", "", id="more", class_="pictures"),
            tag("div", charts.numbers(run), id="numbers"),
            tag("div", *_details(run), id="details"),
        ]
    )


def _details(run: Run) -> list[Markup]:
    parts = (sections.warnings, classes, noise, loss_scale, phases, outcome, sections.plan, sections.claims)
    return [part(run) for part in (*parts, sections.reproduction, sections.recipe, sections.environment)]


def _comparison(runs: Sequence[Run], labels: Sequence[str]) -> Markup:
    finished = [run for run in runs if run.final_accuracy is not None]
    words = "No run was evaluated."
    if finished:
        leader = max(finished, key=lambda run: run.final_accuracy)
        lowest = min(run.final_accuracy for run in finished)
        best = f"with {percent(leader.final_accuracy)} accuracy"
        words = f"{_label(leader, runs)} ends best, {best}; the lowest of {len(finished)} runs is {percent(lowest)}."
        if len(finished) == 1:
            words = f"{_label(leader, runs)} alone was evaluated, and ends {best}."
        elif lowest == leader.final_accuracy:
            words = f"{len(finished)} runs end alike, {best}."
    pairs = list(zip(labels, runs, strict=True))
    details = [
        tag("details", tag("summary", label), sections.verdict(run), charts.numbers(run), *_details(run))
        for label, run in pairs
    ]
    return joined(
        [
            tag("p", words, class_="verdict"),
            charts.CONTROLS,
            tag("div", "", id="first", class_="pictures"),
            tag("div", _comparison_table(runs), id="tiles"),
            seeds(runs, labels),
            _differences(runs),
            tag("h2", "Over the runs"),
            tag("div", "", id="more", class_="pictures"),
            tag("h2", "Each run"),
            *details,
        ]
    )


def _comparison_table(runs: Sequence[Run]) -> Markup:
    when = sections.final_or_last(runs)
    heads = ("run", "", f"{when} accuracy", "best", f"{when} loss")
    heads = (*heads, "epochs", "updates", "workers", "time", "samples/s")
    rows = [
        (
            joined([_swatch(index), _label(run, runs)]),
            sections.OUTCOMES.get(run.outcome, run.outcome),
            percent(run.final_accuracy),
            percent(run.evaluations.accuracy[run.best]) if run.best is not None else "–",
            sections.loss_text(run.final_loss),
            number(run.epochs_done),
            number(len(run.updates)),
            sections.workers(run),
            duration(run.seconds),
            number(run.samples_per_second, digits=3),
        )
        for index, run in enumerate(runs)
    ]
    return table(heads, rows, class_="numbers")


def _differences(runs: Sequence[Run]) -> Markup:
    """The values that differ between the recipes, as in `kilobatch recipes diff`."""
    compared = compare([comparable_tree(run.recipe, run.dataset) for run in runs])
    differences = [difference for difference in compared if not difference.is_words]
    if not differences:
        words = "The recipes of these runs are the same in every value that training reads."
        return joined([tag("h2", "What differs"), tag("p", words)])
    heads = ("key", *(_label(run, runs) for run in runs))
    rows = [(".".join(difference.path), *value_texts(difference)) for difference in differences]
    return joined([tag("h2", "What differs"), table(heads, rows, class_="differences")])


def labels_of(runs: Sequence[Run]) -> list[str]:
    """What each run is called beside the others."""
    return [_label(run, runs) for run in runs]


def _label(run: Run, runs: Sequence[Run]) -> str:
    """The recipe's name; if several runs have the same, with as much of the folder's path as tells them apart."""
    others = [other.folder.parts for other in runs if other is not run and other.name == run.name]
    parts = run.folder.parts
    tails = (parts[-size:] for size in range(1, len(parts) + 1))
    tail = next((tail for tail in tails if all(other[-len(tail) :] != tail for other in others)), parts)
    return f"{run.name} ({Path(*tail)})" if others else run.name


def curves(runs: Sequence[Run]) -> Markup:
    """The curves of runs alone, for a page with the style and script of `charts`."""
    data = charts.charts(runs, labels_of(runs))
    return joined([tag("h2", "Runs"), charts.drawn(data)])


def _swatch(index: int) -> Markup:
    colour, dashes = charts.run_style(index)
    stroke = f'stroke="var(--k{colour[1:]})" stroke-width="3" stroke-dasharray="{",".join(map(str, dashes))}"'
    line = f'<line x1="0" y1="5" x2="24" y2="5" {stroke}/>'
    return Markup(f'<svg class="swatch" viewBox="0 0 24 10" aria-hidden="true">{line}</svg>')
