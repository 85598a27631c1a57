"""A forecast of what the remaining trials of a search will cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from recipes.errors import InputRefused
from recipes.reports.wording import duration, number
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch
from trainers.search.search_folder import STORAGE, check_folder, study_of
from trainers.search.study import SECONDS, finished
from trainers.search.successive_halving import has_rungs
from trainers.search.transfer import Stages

_NOTHING = "nothing is known before a trial has ended; then this, and the table of the search, go by those that have"


def cost_lines(
    opened: OpenedSearch, folder: Path, *, groups: int, data: Path | None = None, allow_code: bool = False
) -> list[str]:
    """Device-hours and hours of the remaining trials, from the mean of those that have ended.

    The mean, not the median: the forecast is of their sum. A transfer has a line for each of its two searches.

    Args:
        opened: the search.
        folder: of the search; it need not exist.
        groups: how many trials run side by side.
        data, allow_code: as for `open_search`.
    """
    if opened.search.transfer is None:
        return [f"cost: {_cost(opened, folder, groups)}"]
    stages = Stages(opened=opened, folder=folder, data=data, allow_code=allow_code)
    found = []
    for name in stages.names:
        file = folder / f"{name}.yaml"
        said = _cost(stages.open(file), folder / name, groups) if file.exists() else _NOTHING
        found.append(f"cost of {name}: {said}")
    return found


def _cost(opened: OpenedSearch, folder: Path, groups: int) -> str:
    if not (folder / STORAGE).is_file():
        return _NOTHING
    try:
        check_folder(folder, opened, resume=True)
        with study_of(folder, opened) as study:
            ended = finished(study)
    except InputRefused as refusal:
        return f"not known: {refusal}"
    timed = [trial.user_attrs[SECONDS] for trial in ended if SECONDS in trial.user_attrs]
    return _words(opened.search, timed, left=opened.search.budget.trials - len(ended), groups=groups)


def _words(search: Search, timed: Sequence[float], *, left: int, groups: int) -> str:
    if not timed:
        return _NOTHING
    ranks, each = search.ranks_per_trial, fmean(timed)
    words = f"{len(timed)} trial{'s' if len(timed) > 1 else ''} took {_device_hours(sum(timed), ranks)}, "
    words += f"{duration(each)} each in the mean ({duration(min(timed))} to {duration(max(timed))})"
    if left <= 0:
        return f"{words}; none is left"
    about = "at least" if has_rungs(search) else "about"  # the higher rungs, with the longer runs, come last
    words += f"; the {left} left would take {about} {_device_hours(left * each, ranks)}, "
    words += f"{duration(-(-left // groups) * each)} on {groups * ranks} rank{'s' if groups * ranks > 1 else ''}"
    limited = search.budget.hours is not None or search.budget.device_hours is not None
    return words + (", unless a limit of the budget ends it before" if limited else "")


def _device_hours(seconds: float, ranks: int) -> str:
    return f"{number(seconds * ranks / 3600, digits=3)} device-hours"
