"""`kilobatch frontier`: one search for each point, in an order in which a point knows its neighbours' optima."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from io import StringIO
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from recipes.errors import InputRefused, RecipeError, refuse_unreachable
from recipes.frontiers.open_frontier import OpenedFrontier, open_frontier
from recipes.frontiers.proposals import beyond_edge, quasi_random, scaled
from recipes.reading.load import load_tree
from recipes.reading.open import open_recipe
from recipes.reading.registry import library_name
from recipes.reading.yaml import block_text
from recipes.reports.wording import counted, percent
from recipes.search_space.open_search import assignments, open_search
from trainers.frontier.page import write_report
from trainers.frontier.report import dry_run_text, frontier_text, planned_time
from trainers.frontier.results import MOST_PARTS, Part, Point, point_folder, read_point, trials_beyond_edge
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.errors import EXIT_FAILED, print_error, print_warnings
from trainers.runs.identity import copy_code
from trainers.runs.mpi_ranks import LaunchError, launched_ranks
from trainers.runs.run_folder import (
    FolderRefused,
    dataset_facts,
    differences,
    lock_folder,
    note_in_log,
    run_identity,
    without_texts,
    write_whole,
)
from trainers.search import folder as folders
from trainers.search.folder import SEARCH, read_study
from trainers.search.outcome import SearchRequest
from trainers.search.results import BEST, confirmed_in, confirmed_text, recipe_text
from trainers.search.start import search

FRONTIER, RECIPES = "frontier.yaml", "recipes.yaml"  # the second: each method's recipe, resolved, and its data
# Keys that may change between two sessions: the points that there are do not depend on them, or their searches see it.
_MAY_CHANGE = ("title", "batches", "seeds", "accuracy_at", "retries", "ranks_per_trial")
_DATA = "dataset"  # in RECIPES: a resolved recipe has only the file's name there, which may change
_CODE = "code"  # in RECIPES: SHA-256 of each file of own code
_SLACK = 1.5  # times the updates of the next smaller batch, which no larger batch should need. Assumed.


def frontier(
    request: SearchRequest, *, overrides: Sequence[str] = (), cluster: str | None = None, as_json: bool = False
) -> int:
    """Search at every point until all budgets are spent; returns the exit code: as that of a search.

    Args:
        request: of a search, but `search` is a frontier's name, its file, or its folder, which is only shown.
        overrides: `a.b=c` as given to `--set`, of the frontier.
        cluster: on which time and cost of every point are planned; None: not.
        as_json: print the result as JSON; all that is said before goes to stderr.
    Raises:
        InputRefused: before anything was started or written.
    """
    if launched_ranks() is not None:
        raise LaunchError("a frontier starts its ranks itself: call it once, with -n, inside the allocation")
    with refuse_unreachable():
        shown = Path(request.search) if (Path(request.search) / FRONTIER).is_file() else None
    how = {"overrides": overrides, "allow_code": request.allow_code, "data_root": request.data}
    words = search_vocabulary(allow_code=request.allow_code)

    def folder_of(opened: OpenedFrontier) -> Path:
        return request.out or Path("runs", f"frontier-{opened.frontier.name}")

    if shown:
        opened = open_frontier(shown / FRONTIER, vocabulary=words, of_run=True, **how)
        if overrides and (changed := _changed_keys(opened, shown)):
            raise FolderRefused(f"{shown} holds another frontier; {'; '.join(changed)}; show it without that --set")
        if edited := _changed_recipes(opened, shown):
            print_warnings([f"epochs and rates are those of the recipe as it is now; {'; '.join(edited)}"])
    else:
        opening = partial(open_frontier, request.search, vocabulary=words, **how)
        opened = folders.opened_or_begun_before(opening, folder_of, record=FRONTIER, require_same=_require_same)
    folder = shown or folder_of(opened)
    if cluster is not None:  # refused now, not after hours
        method = next(iter(opened.frontier.all_methods))
        planned_time(opened, method, opened.frontier.sizes[0], cluster, values={}, updates=1)
    if shown is None:
        _require_same(opened, folder)
    if request.dry_run:
        print_warnings(dict.fromkeys(line for base in opened.bases.values() for line in base.warnings))
        print(dry_run_text(opened, workers=request.workers, as_json=as_json))
        return 0
    code = 0
    if shown is None:
        if not (folder / FRONTIER).is_file():
            _require_startable(opened, request)
        with lock_folder(folder), redirect_stdout(sys.stderr) if as_json else nullcontext():
            write_whole(folder / FRONTIER, block_text(_own_tree(opened)))
            write_whole(folder / RECIPES, block_text(_recipes(opened)))
            code = _run(opened, folder, request)
            write_report(folder, opened, read_points(opened, folder), cluster=cluster)
    print(frontier_text(opened, read_points(opened, folder), cluster=cluster, as_json=as_json))
    return code


def read_points(opened: OpenedFrontier, folder: Path) -> list[Point]:
    """All points in the order in which they run: from the smallest batch on, all methods at each."""
    frontier = opened.frontier
    return [read_point(opened, folder, method, batch) for batch in frontier.sizes for method in frontier.all_methods]


def _own_tree(opened: OpenedFrontier) -> dict[str, Any]:
    """The frontier's file in its folder."""
    recipe = library_name(opened.recipe) or str(opened.recipe.resolve())
    tree = {**opened.tree, "recipe": recipe}
    return {key: value for key, value in tree.items() if key not in ("methods", "space") or value}


def _recipes(opened: OpenedFrontier) -> dict[str, Any]:
    found = {}
    for method, base in opened.bases.items():
        space = {**opened.frontier.space, **opened.frontier.all_methods[method].space}
        made_of = {_DATA: dataset_facts(base.dataset), _CODE: folders.code_of_search(base, space)}
        found[method] = run_identity(base.tree) | made_of
    return found


@refuse_unreachable()
def _require_same(opened: OpenedFrontier, folder: Path) -> None:
    """Refuse a folder that holds another frontier."""
    changed, spans = _changed_keys(opened, folder) + _changed_recipes(opened, folder), _changed_spans(opened, folder)
    if changed or spans:
        which = "" if changed else f"leave {' and '.join(f'{batch:,}' for batch in spans)} out of `batches`, or "
        lines = "; ".join([*changed, *chain.from_iterable(spans.values())])
        raise FolderRefused(f"{folder} holds another frontier; {lines}; {which}begin anew in another --out")


def _changed_keys(opened: OpenedFrontier, folder: Path) -> list[str]:
    """What differs from the frontier in its folder: of its budget the trials may change, and methods may be added."""

    def kept(tree: dict[str, Any]) -> dict[str, Any]:
        same = {key: value for key, value in tree.items() if key not in _MAY_CHANGE}
        methods = {name: method for name, method in tree.get("methods", {}).items() if name in both}
        budget = {key: value for key, value in tree["budget"].items() if key != "trials"}
        return same | {"budget": budget, "methods": methods}

    if not (folder / FRONTIER).is_file():
        return []
    before, now = load_tree(folder / FRONTIER, kind=None)[0], _plain(_own_tree(opened))
    both = before.get("methods", {}).keys() & now.get("methods", {}).keys()
    return differences(kept(before), kept(now))


def _changed_recipes(
    opened: OpenedFrontier, folder: Path, *, where: tuple[str, str] = ("in the run", "now")
) -> list[str]:
    """What differs from the recipes that the searches in its folder began with."""
    if not (folder / RECIPES).is_file():
        return []
    before, now, lines = load_tree(folder / RECIPES, kind=None)[0], _plain(_recipes(opened)), []
    for name in sorted(before.keys() & now.keys()):
        was = {key: now[name][key] for key in (_DATA, _CODE)} | before[name]  # which older folders do not have
        was[_DATA] = without_texts(was[_DATA])
        code = {_CODE: None}
        lines += differences(was | code, now[name] | code, f"recipe of {name}", where=where)
        lines += [f"{line} in the recipe of {name}" for line in folders.code_changes(was[_CODE], now[name][_CODE])]
    return lines


def _changed_spans(opened: OpenedFrontier, folder: Path) -> dict[int, list[str]]:
    """Batches whose searches began with other norm groups; an older version made them the greatest common divisor."""
    found, key = {}, "batch.norm_span"
    for batch, method in product(opened.frontier.sizes, opened.frontier.all_methods):
        for file in sorted(point_folder(folder, method, batch).glob("search-*.yaml")):
            before, now = load_tree(file, kind=None)[0]["fixed"].get(key), opened.norm_span(method, batch)
            for line in differences(before, now, f"{key} of {method} at batch {batch:,}"):
                found.setdefault(batch, {})[line] = None  # once, although it is so in each of its searches
    return {batch: list(lines) for batch, lines in found.items()}


def _plain(tree: dict[str, Any]) -> dict[str, Any]:
    return yaml.safe_load(block_text(tree))


def _run(opened: OpenedFrontier, folder: Path, request: SearchRequest) -> int:
    def say(text: str) -> None:
        print(text, flush=True)
        note_in_log(folder, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def recipe_changed() -> bool:
        if change := _recipe_change(opened, folder):
            what = f"what {opened.recipe} trains was changed while the frontier ran: {change}"
            print_error(f"kilobatch: {what}; put it back and type the same command, or give another --out")
        return bool(change)

    points = read_points(opened, folder)
    for number, point in enumerate(points, 1):
        name = f"point {number} of {len(points)}: {point.method} at batch {point.batch:,}"
        while (file := _next_search(opened, folder, point)) is not None:
            if recipe_changed():
                return EXIT_FAILED
            say(f"{name}, {file.stem.replace('-', ' ')}")
            points_of_method = (point_folder(folder, point.method, batch) for batch in opened.frontier.sizes)
            goes_on = any(next(each.rglob(SEARCH), None) for each in points_of_method)  # a search of the method began
            code, missed = _search(file, replace(request, goes_on=goes_on)), point.missed
            point = read_point(opened, folder, point.method, point.batch)
            (part,) = (part for part in point.parts if part.file == file)
            if code and not (part.is_spent and part.best is None):  # that no trial is the best is a result
                return code  # the search has said why
            if point.missed > missed:
                say(f"{name}: most fresh seeds of the best trial missed the goal")
            elif not part.is_spent:
                return EXIT_FAILED
        stale = [part for part in point.parts if part.best is not None and part.best_recipe is None]
        if stale and recipe_changed():
            return EXIT_FAILED
        for part in stale:
            _write_best(opened, part)
        write_report(folder, opened, read_points(opened, folder))
        say(f"{name}: {_found_text(point)}")
    return 0


def _found_text(point: Point) -> str:
    """What the searches of a point have found at their end."""
    if point.has_figure:
        accuracy = "" if point.has_target else f"{percent(point.figure)} after "
        missed = point.runs.count(math.inf)
        note = f"; {missed} of {counted(len(point.runs), 'fresh seed')} missed the goal" if missed else ""
        return f"{accuracy}{point.updates:g} updates, {point.epochs:.3g} epochs, rate {point.rate:.3g}{note}"
    if not point.has_target:
        return "every trial diverged"
    if point.figure is not None:
        return "most fresh seeds of every trial that reached the goal missed it"
    if point.cap is None:
        return "no trial reached the goal"
    return f"no trial reached the goal within {point.cap:,} updates, {_SLACK:g} times those of the next smaller batch"


def _write_best(opened: OpenedFrontier, part: Part) -> None:
    """Write the recipe of the best trial where its search did not, since the recipe was another one at its end."""
    search = open_search(part.file, **opened.options)
    with read_study(part.folder) as study:
        confirmed, _ = confirmed_in(part.folder, search.search, study)
    own = [confirmed_text(search.search, one) for one in confirmed if one.trial == part.best.number]
    copy_code(part.folder, folders.files_of_code(search.base, search.search.space))
    write_whole(part.folder / BEST, recipe_text(search, part.best, own))


def _recipe_change(opened: OpenedFrontier, folder: Path) -> str:
    """What differs in the recipes from when this session wrote them down, in a line; empty if nothing does."""
    try:
        now = open_frontier(folder / FRONTIER, **opened.options)
    except InputRefused as error:
        return str(error)
    return "; ".join(_changed_recipes(now, folder, where=("before", "now")))


def _require_startable(opened: OpenedFrontier, request: SearchRequest) -> None:
    """Refuse what the first search of each method would refuse, by a dry run of it that prints nothing."""
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
        for method in opened.bases:
            file = Path(folder, f"{method}.yaml")
            write_whole(file, block_text(opened.search_tree(method, opened.frontier.sizes[0])))
            _search(file, replace(request, dry_run=True))


def _search(file: Path, request: SearchRequest) -> int:
    own = yaml.safe_load(file.read_text(encoding="utf-8"))
    most = own["budget"]["trials"] * own["ranks_per_trial"]  # more ranks than that are refused
    workers = request.workers and min(request.workers, most)
    return search(replace(request, search=str(file), workers=workers, out=file.with_suffix("")))


def _next_search(opened: OpenedFrontier, folder: Path, point: Point) -> Path | None:
    """The file of the search that a point needs next, written or brought up to date; None if it needs none."""
    tree = opened.search_tree(point.method, point.batch)
    few = {"trials": trials_beyond_edge(tree["budget"]["trials"])}
    for part in point.parts:
        now = tree if part is point.parts[0] else {**tree, "budget": few}
        same = {key: now[key] for key in ("budget", "confirm", "retries", "ranks_per_trial")}
        same["confirm"] = now["confirm"] and now["confirm"] | {"top": 1 + len(part.missed)}
        write_whole(part.file, block_text(part.tree | same))
    point = read_point(opened, folder, point.method, point.batch)
    if unspent := [part.file for part in point.parts if not part.is_spent]:
        return unspent[0]
    file = point_folder(folder, point.method, point.batch) / f"search-{len(point.parts)}.yaml"
    seed, of_this = opened.frontier.seed, f"{point.method} {point.batch} {file.stem}"
    if not point.parts:
        near = _neighbours(read_points(opened, folder), point)
        factor = opened.rate_factor(point.method, point.batch)
        optima = [other.optimum for other in near]
        first = scaled(point.space, optima, batch=point.batch, rate_factor=factor)
        first += quasi_random(point.space, tree["sampler"]["n_startup_trials"], seed=seed, point=of_this)
        smaller = [other for other in near if other.batch < point.batch and point.has_target]
        most = min((_SLACK * _needed(other) for other in smaller), default=math.inf)
        if most < opened.longest(point.method, point.batch)[1]:
            tree["objective"]["at_most"] = math.ceil(most)
    elif (wider := _wider(opened, point)) and len(point.parts) < MOST_PARTS:
        first = quasi_random({**point.space, **wider}, few["trials"] // 2, seed=seed, point=of_this)
        ranges = {path: {"kind": type(range_).__name__, **asdict(range_)} for path, range_ in wider.items()}
        tree |= {"name": f"{tree['name']}-wider-{len(point.parts)}", "budget": few}
        tree["space"] |= ranges
        if point.has_target:
            tree["objective"]["at_most"] = max(1, _best(point) - 1)
    else:
        return None
    tree["enqueue"] = first[: tree["budget"]["trials"]]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, block_text(tree))
    return file


def _best(point: Point) -> int:
    return int(point.best_part.best.values[0])


def _needed(point: Point) -> float:
    """Updates to the goal by its seeds, or by its best trial if that is more: one trial may be luck."""
    return max(point.figure, _best(point))


def _neighbours(points: Sequence[Point], point: Point) -> list[Point]:
    """The nearest smaller and the nearest larger batch of the same method that have reached the goal."""
    if not point.opened.frontier.neighbours:
        return []
    others = [other for other in points if other.method == point.method and other.optimum is not None]
    smaller = [other for other in others if other.batch < point.batch]
    larger = [other for other in others if other.batch > point.batch]
    return smaller[-1:] + larger[:1]


def _wider(opened: OpenedFrontier, point: Point) -> dict[str, Any]:
    """The ranges to search beyond the edges at which the optimum lies; none where that was done and found no better."""
    if point.optimum is None or point.best_part is not point.parts[-1]:
        return {}
    base, fixed = opened.bases[point.method], opened.search_tree(point.method, point.batch)["fixed"]

    def accepted(path: str, value: Any) -> bool:
        try:
            open_recipe(base.path, overrides=assignments({**fixed, path: value}), **opened.options)
        except RecipeError:
            return False
        return True

    beyond = beyond_edge(point.space, point.optimum.values)
    return {path: it for path, it in beyond.items() if all(accepted(path, end) for end in it.ends.values())}
