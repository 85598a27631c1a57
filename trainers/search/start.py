"""From a command line to a search: check everything, take the folder, work, and say what came of it."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from recipes.open_search import OpenedSearch, open_search
from trainers.faults import EXIT_FAILED, EXIT_STOPPED
from trainers.launch import LaunchError, launched_ranks
from trainers.request import prepare, refused
from trainers.run_folder import LOG, REPORT, FolderRefused, dataset_facts, differences, require_usable
from trainers.search.best import BEST, write_best
from trainers.search.display import Display, values_text
from trainers.search.dry_run import dry_run_text
from trainers.search.page import write_search_page
from trainers.search.storages import Place, lost, open_storage, read_place
from trainers.search.study import best_trial, finished, open_study
from trainers.search.supervisor import SearchOptions, Supervisor
from trainers.search.trial_run import trial_request
from trainers.vocabulary import search_vocabulary

SEARCH, STORAGE, _LOCK = "search.yaml", "storage.yaml", "lock"
# What may change between two sessions of one search: it makes no trial another one.
_MAY_CHANGE = ("title", "budget", "retries", "ranks_per_trial")


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """What `kilobatch search` was asked for, word for word."""

    search: str
    workers: int | None = None
    out: Path | None = None
    resume: bool = False
    dry_run: bool = False
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False
    storage: str | None = None
    study: str | None = None


def search(request: SearchRequest) -> int:
    """Search until the budget is spent; returns the exit code: 3 where no trial was completed, 4 after a signal.

    Raises:
        InputRefused: before anything was started or written.
    """
    if launched_ranks() is not None:
        raise LaunchError("a search starts the ranks of its trials by itself; run it without mpiexec or srun")
    words = search_vocabulary(allow_code=request.allow_code)
    opened = open_search(request.search, vocabulary=words, allow_code=request.allow_code, data_root=request.data)
    groups = _groups(request, opened)
    _require_trainable(request, opened)
    if request.dry_run:
        print(dry_run_text(opened, groups=groups, data=request.data, allow_code=request.allow_code))
        return 0
    folder = request.out or Path("runs", f"search-{opened.search.name}")
    _check_folder(request, folder, opened)
    place, study_name = _place(request, folder, opened)
    folder.mkdir(parents=True, exist_ok=True)
    with _sole_supervisor(folder):
        _write_whole(folder / SEARCH, _identity(opened))
        study = open_study(opened, open_storage(place), name=study_name)
        _write_whole(folder / STORAGE, {"storage": place.said, "study": study_name})  # it can be used: remembered
        options = SearchOptions(
            folder=folder,
            groups=groups,
            hang_seconds=request.hang_seconds,
            data=request.data,
            allow_code=request.allow_code,
        )
        try:
            return _work(opened, study, options)
        except Exception as error:
            if not lost(error):
                raise
            print(f"kilobatch: {place.said} does not answer any more; the same command goes on", file=sys.stderr)
            return EXIT_FAILED


def _work(opened: OpenedSearch, study: Any, options: SearchOptions) -> int:
    console = Console()
    display = Display(search=opened.search, folder=options.folder, console=console, groups=options.groups)
    display.know(study.get_trials(deepcopy=False))
    supervisor = Supervisor(opened, study, options, display)
    with display:
        done, budget = len(finished(study)), opened.search.budget.trials
        ranks = opened.search.ranks_per_trial
        display.say(
            f"search {opened.search.name}: {done} of {budget} trials are done, {options.groups} side by side, "
            f"{ranks} rank{'s' if ranks > 1 else ''} each"
        )
        with _stop_signals(supervisor):
            supervisor.run()
    best = best_trial(study)
    if best is not None:  # which another supervisor of the study may have found
        write_best(options.folder, opened, best, data=options.data, allow_code=options.allow_code)
    write_search_page(options.folder, study, opened.search)
    return _verdict(study, options.folder, display, stopped=supervisor.stopping)


def _verdict(study: Any, folder: Path, display: Display, *, stopped: bool) -> int:
    """The last lines, and the exit code."""
    ended, best = finished(study), best_trial(study)
    states = [trial.state.name for trial in ended]
    display.say(
        f"{len(ended)} trials: {states.count('COMPLETE')} complete, {states.count('PRUNED')} pruned, "
        f"{states.count('FAIL')} failed"
    )
    if best is not None:
        display.say(f"best: trial {best.number}, {study.direction.name.lower()}d to {best.value:.6g}, with")
        display.say(f"  {values_text(best.params)}")
        display.say(f"recipe: {folder / BEST}; to train it: kilobatch train {folder / BEST}")
        display.say(f"report: {folder / REPORT}")
    if stopped:
        print("kilobatch: stopped by a signal; the same command goes on", file=sys.stderr)
        return EXIT_STOPPED
    if best is None:
        print(f"kilobatch: no trial was completed; log: {folder / LOG}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _groups(request: SearchRequest, opened: OpenedSearch) -> int:
    each = opened.search.ranks_per_trial
    workers = request.workers or each
    if workers < each:
        raise refused("-n", f"{workers} ranks are fewer than the {each} of a trial", f"ask for {each} or more")
    if workers % each:
        print(f"warning: {workers % each} of {workers} ranks stay idle: a trial takes {each}", file=sys.stderr)
    return workers // each


def _require_trainable(request: SearchRequest, opened: OpenedSearch) -> None:
    """Refuse a recipe that could not be trained with the values it has itself."""
    options = {"data": request.data, "allow_code": request.allow_code}
    prepare(trial_request(opened, 0, {}, Path("trial"), **options), workers=opened.search.ranks_per_trial)


def _identity(opened: OpenedSearch) -> dict[str, Any]:
    """What the sessions of one search must agree on."""
    tree = {key: value for key, value in opened.tree.items() if key not in _MAY_CHANGE}
    return {"search": tree, "recipe": opened.base.tree, "dataset": dataset_facts(opened.base.dataset)}


def _check_folder(request: SearchRequest, folder: Path, opened: OpenedSearch) -> None:
    """Refuse a folder that holds something else than this search.

    Raises:
        FolderRefused: it does, or `--resume` finds no search there.
    """
    if not (folder / SEARCH).is_file():
        if request.resume:
            raise FolderRefused(f"there is no search in {folder} to go on with; leave --resume out to begin one")
        require_usable(folder, resume=False)
        return
    before = yaml.safe_load((folder / SEARCH).read_text(encoding="utf-8"))
    changed = differences(before, yaml.safe_load(yaml.safe_dump(_identity(opened))))
    if changed:
        raise FolderRefused(
            f"{folder} holds another search; {'; '.join(changed)}; go on with the search it began with, or begin "
            "anew in another --out"
        )


def _place(request: SearchRequest, folder: Path, opened: OpenedSearch) -> tuple[Place, str]:
    """Where the study is kept and its name: as asked for, else as the folder remembers.

    Raises:
        FolderRefused: the folder's search has its study elsewhere.
    """
    path = folder / STORAGE
    before = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    place = read_place(request.storage or before.get("storage", "sqlite"), folder)
    name = request.study or before.get("study", opened.search.name)
    now = {"storage": place.said, "study": name}
    changed = differences(before, now) if before else []
    if changed:
        raise FolderRefused(
            f"{folder} has its study elsewhere; {'; '.join(changed)}; leave the option out, or begin anew in another --out"
        )
    return place, name


def _write_whole(path: Path, tree: dict[str, Any]) -> None:
    """Write a file of the search's folder, once."""
    if not path.exists():
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(yaml.safe_dump(tree, sort_keys=False, width=120), encoding="utf-8")
        partial.rename(path)


@contextmanager
def _sole_supervisor(folder: Path) -> Iterator[None]:
    """Refuse a second supervisor in a folder; the system releases the lock of one that is killed."""
    with open(folder / _LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise FolderRefused(
                f"process {file.read().strip() or 'unknown'} searches in {folder} already; wait for it, or end it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def _stop_signals(supervisor: Supervisor) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks all trials to stop after their update, the second ends them."""

    def note(number: int, frame: object) -> None:
        if supervisor.stopping:
            supervisor.kill()
            return
        os.write(2, b"\nstopping after this update, with checkpoints; once more to end at once\n")
        supervisor.ask_to_stop()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
