"""One self-contained HTML page on one run, or on several beside each other."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from recipes.reading.tree_diff import comparable_tree, compare, value_texts
from recipes.reports import sections
from recipes.reports.html import Markup, inline_svg, joined, table, tag
from recipes.reports.noise import loss_scale, noise, phases
from recipes.reports.planning import outcome
from recipes.reports.record import Run
from recipes.reports.style import PAGE
from recipes.reports.wording import duration, number, percent

# A second line of defence: even unescaped text could load and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def write_page(runs: Sequence[Run], path: str | Path) -> None:
    """Writes the report on one run, or on several beside each other, as HTML, whole or not at all.

    Raises:
        ValueError: no runs.
        OSError: the file cannot be written.
    """
    path = Path(path)
    partial = path.parent / f"{path.name}.partial"
    try:
        partial.write_text(page_text(runs), encoding="utf-8", errors="replace")  # paths may be no UTF-8
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()  # the disk may be full: free what the partial file occupies
        raise


def page_text(runs: Sequence[Run]) -> str:
    """The page as text.

    Raises:
        ValueError: no runs.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    title = runs[0].title if len(runs) == 1 else f"{len(runs)} runs compared"
    return document(title, _single(runs[0]) if len(runs) == 1 else _comparison(runs))


def document(title: str, body: Markup, *, style: str = "", script: str = "", refresh: float = 0.0) -> str:
    """A whole page in the reports' style, with a title as heading, which loads nothing from elsewhere.

    Args:
        style, script: more of both; constants of the program, without text of a run.
        refresh: seconds after which a reader without scripts gets the page anew; 0: never.
    """
    # HTML's escaping does not apply in a style sheet or a script. Only the script with this sum may run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = _POLICY + (f"; script-src 'sha256-{digest}'" if script else "")
    again = f'<noscript><meta http-equiv="refresh" content="{refresh:.0f}"></noscript>'
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(again if refresh else ""),
            tag("title", f"{title} – kilobatch"),
            tag("style", Markup(PAGE + style)),
        ]
    )
    end = tag("script", Markup(script)) if script else ""
    page = tag("html", tag("head", head), tag("body", tag("main", tag("h1", title), body), end), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _single(run: Run) -> Markup:
    model = run.recipe.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    facts = [run.name, kind, run.recipe.get("dataset"), run.environment.get("date")]
    return joined(
        [
            tag("div", " · ".join(str(fact) for fact in facts if fact), class_="muted"),
            sections.verdict(run),
            sections.tiles(run),
            pictures([run]),
            *_details(run),
        ]
    )


def _details(run: Run) -> list[Markup]:
    parts = (noise, loss_scale, phases, outcome, sections.plan, sections.claims, sections.recipe, sections.warnings)
    return [part(run) for part in (*parts, sections.environment, sections.reproduction)]


def _comparison(runs: Sequence[Run]) -> Markup:
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
    details = [tag("details", tag("summary", _label(run, runs)), sections.verdict(run), *_details(run)) for run in runs]
    return joined(
        [
            tag("p", words, class_="verdict"),
            _comparison_table(runs),
            pictures(runs),
            _differences(runs),
            tag("h2", "Each run"),
            *details,
        ]
    )


def _comparison_table(runs: Sequence[Run]) -> Markup:
    heads = ("run", "", "final accuracy", "best", "final loss", "epochs", "updates", "workers", "time", "samples/s")
    rows = [
        (
            joined([_swatch(index), _label(run, runs)]),
            sections.OUTCOMES.get(run.outcome, run.outcome),
            percent(run.final_accuracy),
            percent(run.evaluations.accuracy[run.best]) if run.best is not None else "–",
            number(run.final_loss),
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


def _label(run: Run, runs: Sequence[Run]) -> str:
    """The recipe's name, or the folder's if several runs have the same."""
    shared = sum(other.name == run.name for other in runs) > 1
    return f"{run.name} ({run.folder.name})" if shared else run.name


def pictures(runs: Sequence[Run]) -> Markup:
    """Loss, accuracy and the like of runs against epochs; empty if there is nothing to draw."""
    from recipes.reports.plots import run_pictures, svg_text

    figures = []
    for index, picture in enumerate(run_pictures(runs)):
        drawing = inline_svg(svg_text(picture.figure), prefix=f"p{index}", label=f"{picture.title}. {picture.caption}")
        figures.append(tag("figure", drawing, tag("figcaption", picture.caption)))
    return joined([tag("h2", "Pictures"), tag("div", *figures, class_="pictures")]) if figures else Markup("")


def _swatch(index: int) -> Markup:
    from recipes.reports.plots import run_style

    colour, dashes = run_style(index)
    pattern = "" if dashes == "-" else ",".join(str(2 * length) for length in dashes[1])
    stroke = f'stroke="var(--k{colour[1:]})" stroke-width="3" stroke-dasharray="{pattern}"'
    line = f'<line x1="0" y1="5" x2="24" y2="5" {stroke}/>'
    return Markup(f'<svg class="swatch" viewBox="0 0 24 10" aria-hidden="true">{line}</svg>')
