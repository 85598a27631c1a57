"""`report.html` of a search: the best trials, pictures, then every trial; it refreshes while the search runs."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, create_trial

from recipes.reports.html import Markup, inline_svg, joined, table, tag
from recipes.reports.page import document
from recipes.reports.wording import duration, number
from recipes.schema import Search
from trainers.runs.run_folder import REPORT, write_whole
from trainers.search.best import Confirmed, confirmed_rows
from trainers.search.study import RATE, SECONDS, begun, best_trials, state_counts, state_of
from trainers.search.wording import column_names, metric_name, row_of, scores, short, shown

_FEW = 10  # with fewer complete trials an importance or a contour would be drawn from chance
_GOOD = 5  # trials that importance takes for the good ones, where a tenth of all are fewer
_SHARE = 0.03  # of the time that drawing a live page may take

_STYLE = """
.hit { stroke: transparent !important; stroke-width: 9px !important; stroke-dasharray: none !important; }
.picking g[data-trial]:not(.on) { opacity: .25; }
g.on path:not(.hit) { stroke: var(--ink) !important; stroke-width: 2.2px !important; }
tr.on td { background: var(--shade); }
output:empty { display: none; }
table.trials td:last-child:not(:empty) { min-width: 22rem; }
output { position: sticky; bottom: 0; display: block; padding: .4rem 0; background: var(--paper); font-size: .875rem; }
"""


def write_search_page(
    folder: Path, study: optuna.Study, search: Search, *, confirmed: Sequence[Confirmed] = (), refresh: float = 0.0
) -> Path:
    """Write the page of a search into its folder, whole or not at all.

    Args:
        folder, study, search: of the search.
        confirmed: trials trained again on fresh seeds, the best first, if they were.
        refresh: seconds after which the page loads itself again, while the search runs; 0: it has ended.
    """
    trials = begun(study)
    best, rows = best_trials(study), confirmed_rows(search, confirmed)
    running = f"The search runs; this is its state of {time.strftime('%Y-%m-%d %H:%M:%S')}."
    body = [
        tag("div", f"search over {search.recipe}", class_="muted"),
        tag("p", _verdict(search, best, confirmed), class_="verdict"),
        tag("p", _spent(search, trials), class_="muted"),
        *([tag("p", running, class_="muted", data_refresh=f"{refresh:.0f}")] if refresh else []),
        *([tag("h2", "Confirmed"), table([*rows[0]], [[*row.values()] for row in rows])] if rows else []),
        *([tag("h2", "Not beaten in everything"), _table(best, search, best)] if len(search.objectives) > 1 else []),
        _pictures(_figures(study, search)),
        tag("h2", "Trials"),
        _table(trials, search, best),
        tag("output"),
    ]
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    how = {"style": _STYLE, "script": script, "refresh": refresh}
    write_whole(folder / REPORT, document(search.title or search.name, joined(body), **how))
    return folder / REPORT


class LivePage:
    """The page of a search that runs.

    Args:
        folder, study, search: as for `write_search_page`.
        every_seconds: between two writings, at least; drawing takes at most 3 % of the time.
    """

    def __init__(self, folder: Path, study: optuna.Study, search: Search, *, every_seconds: float = 20.0) -> None:
        self._what, self._every, self._next = (folder, study, search), every_seconds, 0.0

    def write_if_due(self, confirmed: Sequence[Confirmed] = ()) -> None:
        """Write the page anew if it is old enough, with the trials that are confirmed so far."""
        began = time.monotonic()
        if began >= self._next:
            write_search_page(*self._what, confirmed=confirmed, refresh=self._every)
            self._every = max(self._every, (time.monotonic() - began) / _SHARE)
            self._next = began + self._every


def _verdict(search: Search, best: list[FrozenTrial], confirmed: Sequence[Confirmed]) -> str:
    if confirmed:
        mean = shown(search.objectives[0].metric, confirmed[0].mean)
        return f"Trial {confirmed[0].trial} is best, with {mean} in the mean of {len(confirmed[0].values)} fresh seeds."
    if not best:
        return "No trial is complete." if not search.constraints else "No complete trial keeps the constraints."
    if len(search.objectives) > 1:
        return f"{len(best)} trials are beaten by no other one in everything." if len(best) > 1 else "One beats all."
    kept = " of those that keep the constraints" if search.constraints else ""
    return f"Trial {best[0].number} is best{kept}, with {scores(search, best[0].values)}."


def _spent(search: Search, trials: list[FrozenTrial]) -> str:
    """How many trials ended in which state, and their device-hours."""
    hours = sum(trial.user_attrs.get(SECONDS, 0.0) for trial in trials) * search.ranks_per_trial / 3600
    return f"{state_counts(trials)}; {number(hours, digits=3)} device-hours." if trials else ""


def _table(trials: list[FrozenTrial], search: Search, best: list[FrozenTrial]) -> Markup:
    metrics, best = [objective.metric for objective in search.objectives], {trial.number for trial in best}
    heads = ("trial", *column_names(search.space), *map(metric_name, metrics), "state", "time", "")
    rows = []
    for trial in trials:
        row = row_of(trial, search)
        own = map(shown, metrics, row["scores"] or [None] * len(metrics))
        texts = (
            tag("a", str(trial.number), href=f"{row['folder']}/"),
            *(short(row["values"][path]) if path in row["values"] else "" for path in search.space),
            *(tag("b", text) if trial.number in best else text for text in own),
            *(row["state"], duration(row["seconds"]), row["note"]),
        )
        rows.append(tag("tr", *(tag("td", text) for text in texts), data_trial=str(trial.number)))
    return table(heads, rows, class_="trials")


def _pictures(figures: Iterator[tuple[Any, str]]) -> Markup:
    from recipes.reports.plots import svg_text
    from recipes.reports.plots.of_search import CURVE

    tags = []
    for index, (figure, caption) in enumerate(figures):
        svg = inline_svg(svg_text(figure), prefix=f"p{index}", label=caption)
        svg = re.sub(rf'id="p\d+-{CURVE}(\d+)"', r'data-trial="\1"', svg)
        tags.append(tag("figure", Markup(svg), tag("figcaption", caption)))
    return joined([tag("h2", "Pictures"), tag("div", *tags, class_="pictures")]) if tags else Markup("")


def _figures(study: optuna.Study, search: Search) -> Iterator[tuple[Any, str]]:
    """All plots for which there are trials enough."""
    from recipes.reports.plots import of_search

    trials = study.get_trials(deepcopy=False)
    points = [_point(trial) for trial in trials]
    scored = [point for point in points if point.scores]
    goals = [of_search.Goal(metric_name(one.metric), one.direction == "maximize") for one in search.objectives]
    if any(point.reports for point in points):
        words = "What trials reported on their way, pruned ones dashed. Point at a curve or at a row of the table."
        yield of_search.curves_figure(points, goals[0]), words
    if len(goals) == 1 and scored:
        yield of_search.history_figure(scored, goals[0]), "Every trial, and the best so far."
    front = [trial.number for trial in best_trials(study)]
    for at, goal in list(enumerate(goals))[1:] if scored else ():
        words = f"Trials that no other one beats in everything, by {goals[0].metric} and {goal.metric}."
        yield of_search.front_figure(scored, front, (goals[0], goal), at=at), words
    pairs = [(trial.user_attrs.get(RATE), point) for trial, point in zip(trials, points, strict=True)]
    rates = [(*pair, point) for pair, point in pairs if pair and point.scores]
    if len({batch for batch, _, _ in rates}) > 1:
        words = "The full rate of every trial at its batch; the lines begin at the best one of the smallest batch."
        yield of_search.rate_figure(rates, goals[0]), words
    whole = [trial for trial, point in zip(trials, points, strict=True) if point.state == "complete"]
    for at, goal in enumerate(goals) if whole else ():
        yield from _by_optuna(search, at, goal, whole, scored)


def _point(trial: FrozenTrial) -> Any:
    from recipes.reports.plots.of_search import TrialPoint

    own = tuple(trial.values or ())
    state = state_of(trial) if all(map(math.isfinite, own)) else "diverged"
    reports = trial.intermediate_values
    return TrialPoint(number=trial.number, state=state, scores=own, values=trial.params, reports=reports)


def _by_optuna(search: Search, at: int, goal: Any, whole: list[FrozenTrial], scored: list[Any]) -> Iterator[Any]:
    """Optuna's pictures of the objective of index `at`, over the complete trials `whole`; slices over all `scored`."""
    from optuna.visualization import matplotlib as plots

    from recipes.reports.plots import of_search
    from recipes.reports.plots.figure import restyled

    names = dict(zip(search.space, column_names(search.space), strict=True))
    view = _view(search, at, whole, names)
    params = [name for path, name in names.items() if len({str(trial.params.get(path)) for trial in whole}) > 1]
    if params:
        axes = _drawn(plots.plot_parallel_coordinate, view, params=params, target_name=goal.metric)
        words = "The values of every complete trial; those of the best fifth in orange."
        yield of_search.parallel_figure(axes, list(map(_point, whole)), goal, at=at), words
    if params and len(whole) >= _FEW:
        good = max(0.1, _GOOD / len(whole))
        how = {"params": params, "evaluator": optuna.importance.PedAnovaImportanceEvaluator(target_quantile=good)}
        axes = _drawn(plots.plot_param_importances, view, target_name=goal.metric, **how)
        best = f"the best {max(_GOOD, round(good * len(whole)))} of {len(whole)} whole trials"
        words = f"What {best} have in common in {goal.metric} (PED-ANOVA): a hint only."
        yield of_search.importance_figure(axes, goal), words
        shares = _drawn(optuna.importance.get_param_importances, view, **how)
        often = [name for name in shares if sum(name in trial.params for trial in view.get_trials(False)) >= _FEW]
        if len(often) > 1:
            axes = _drawn(plots.plot_contour, view, params=often[:2], target_name="")
            yield restyled(axes, title=goal.metric), "Between whole trials, by the two values that matter most."
    for path, range_ in search.space.items():
        others = [point for point in scored if point.state != "complete" and path in point.values]
        positions = [point.values[path] for point in others]
        if any(path in trial.params for trial in whole):
            axes = _drawn(plots.plot_slice, view, params=[names[path]], target_name="")
            positions = [repr(short(value)) for value in positions] if hasattr(range_, "choices") else positions
            words = f"Every trial by its {path}; the other values differ too."
            yield of_search.slice_figure(axes, others, positions, goal, at=at), words


def _view(search: Search, at: int, trials: list[FrozenTrial], names: dict[str, str]) -> optuna.Study:
    """A study of these trials by one objective, with short names; choices are texts, numbers too."""
    view = optuna.create_study(direction=search.objectives[at].direction)
    for trial in trials:
        params, distributions = {}, {}
        for path, value in trial.params.items():
            kind = trial.distributions[path]
            if isinstance(kind, CategoricalDistribution):
                value, kind = short(value), CategoricalDistribution(list(map(short, kind.choices)))
            params[names[path]], distributions[names[path]] = value, kind
        view.add_trial(create_trial(value=trial.values[at], params=params, distributions=distributions))
    return view


def _drawn(plot: Any, view: optuna.Study, **how: Any) -> Any:
    """A plot of Optuna, without warnings that it is experimental, minimizes (PED-ANOVA) and has a single value."""
    from recipes.reports.plots.figure import drawn_elsewhere

    with drawn_elsewhere(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="PedAnovaImportanceEvaluator computes|Attempting to set identical")
        return plot(view, **how)
