"""`kilobatch search`: check everything, lock the folder, run the supervisor, and print the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from recipes.errors import InputRefused
from recipes.search_space.open_search import OpenedSearch, open_search
from trainers.launch.preflight import require_startable
from trainers.launch.request import prepare, refused
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT, EXIT_STOPPED, print_error
from trainers.runs.mpi_ranks import LaunchError, launched_rank, launched_ranks
from trainers.runs.progress import Screen
from trainers.runs.run_folder import LOG, REPORT
from trainers.runs.stop_request import STOP_FILE
from trainers.search.best import recipe_path, require_utf8, write_best
from trainers.search.display import Display, scores, values_text
from trainers.search.dry_run import dry_run_text
from trainers.search.group_worker import handling_signals, launched_groups, run_launched_worker
from trainers.search.rank_groups import Group, placements, rank_starter
from trainers.search.report import LivePage, write_search_page
from trainers.search.search_folder import (
    check_folder,
    lock_folder,
    require_own_trials,
    study_address,
    write_search_file,
    write_storage_file,
)
from trainers.search.storage import StorageAddress, is_unreachable, open_storage, root_cause
from trainers.search.storage_cache import refresh
from trainers.search.study import best_trials, finished, new_study, open_study, spent_seconds, state_counts
from trainers.search.supervisor import Supervisor
from trainers.search.transfer import Stages, check_transfer, transfer
from trainers.search.trial_run import SearchOptions, trial_request


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """The command line of `kilobatch search`."""

    search: str
    workers: int | None = None
    hosts: str | None = None
    joined: str | None = None  # set by rank 0 of a foreign launcher for its supervisor: see `launched_groups`
    stop_file: Path | None = None  # set for the searches of a transfer; None: the one in the search's folder
    out: Path | None = None
    resume: bool = False
    dry_run: bool = False
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False
    cluster: str | None = None
    device: str | None = None
    storage: str | None = None
    study: str | None = None


def search(request: SearchRequest) -> int:
    """Search until the budget is spent; returns the exit code: 3 if no trial was completed, 4 after a signal.

    Raises:
        InputRefused: before anything was started or written.
    """
    try:
        return _search(request)
    except InputRefused:
        if launched_rank():
            return EXIT_INPUT  # rank 0 says why
        raise


def _search(request: SearchRequest) -> int:
    words = search_vocabulary(allow_code=request.allow_code)
    opened = open_search(request.search, vocabulary=words, allow_code=request.allow_code, data_root=request.data)
    folder = request.out or Path("runs", f"search-{opened.search.name}")
    if launched_ranks() is not None and not request.dry_run:
        return _run_as_launched_rank(request, opened, folder, launched_ranks() or 1)
    if request.dry_run and launched_rank():
        return 0  # rank 0 prints it
    groups = _groups(request, opened, folder)
    options = SearchOptions(
        folder=folder,
        stop_file=request.stop_file or folder / STOP_FILE,
        hang_seconds=request.hang_seconds,
        cluster=request.cluster,
        device=request.device,
    )
    _require_trainable(opened, options)
    has_stages = opened.search.transfer is not None
    if has_stages:
        check_transfer(opened)
    if request.dry_run:
        print(dry_run_text(opened, options, groups=len(groups)))
        return 0
    check_folder(folder, opened, resume=request.resume)
    files = not request.resume and request.stop_file is None  # a transfer has checked them already
    require_startable(opened.base, ranks=1, files=files)
    address = None if has_stages else study_address(folder, opened, storage=request.storage, study=request.study)
    with lock_folder(folder):
        write_search_file(folder, opened)
        if request.stop_file is None:  # else the transfer has removed an old one, and a file there now counts
            options.stop_file.unlink(missing_ok=True)
        if address is None:
            begin = partial(_begin_stage, replace(request, stop_file=options.stop_file, resume=False))
            return transfer(Stages(opened=opened, folder=folder), begin)
        return _search_in(*address, opened, options, groups)


def _search_in(
    address: StorageAddress, name: str, opened: OpenedSearch, options: SearchOptions, groups: Sequence[Group]
) -> int:
    """Open the study's storage and search; if the storage is lost meanwhile, say so and return `EXIT_FAILED`."""
    try:
        with closing(open_storage(address)) as storage:
            study = open_study(opened, storage, name=name)
            require_own_trials(options.folder, study)
            write_storage_file(options.folder, address, name)  # only now: the storage can be used
            return _search_study(opened, study, options, groups)
    except Exception as error:
        if not is_unreachable(error):
            raise
        what = f"the study in {address.text} does not answer any more: {root_cause(address, error)}"
        print_error(f"kilobatch: {what}; the same command goes on with it")
        return EXIT_FAILED


def _begin_stage(request: SearchRequest, file: Path, folder: Path) -> int:
    study = request.study and f"{request.study}-{folder.name}"
    return search(replace(request, search=str(file), out=folder, study=study))


def _search_study(opened: OpenedSearch, study: Any, options: SearchOptions, groups: Sequence[Group]) -> int:
    console = Screen()
    display = Display(search=opened.search, folder=options.folder, console=console, groups=len(groups))
    display.add_trials(study.get_trials(deepcopy=False), spent_seconds=spent_seconds(study))
    page = LivePage(options.folder, study, opened.search)
    supervisor = Supervisor(opened, study, options, display, groups, page)
    with display:
        done, budget = len(finished(study)), opened.search.budget.trials
        ranks = opened.search.ranks_per_trial
        display.say(
            f"search {opened.search.name}: {done} of {budget} trials are done, {len(groups)} side by side, "
            f"{ranks} rank{'s' if ranks > 1 else ''} each"
        )
        with handling_signals(partial(_stop_at_signal, supervisor)):
            supervisor.run()
    refresh(study)  # what other supervisors have finished meanwhile
    for trial in best_trials(study)[:1]:  # a session killed before it wrote them, or another supervisor, found it
        write_best(options.folder, opened, study, trial)
    write_search_page(options.folder, study, opened.search)
    return _print_result(study, opened, options, display, stopped_by=supervisor.stopped_by)


def _print_result(
    study: Any, opened: OpenedSearch, options: SearchOptions, display: Display, *, stopped_by: str
) -> int:
    """Print the result; returns the exit code."""
    search, ended, best, folder = opened.search, finished(study), best_trials(study), options.folder
    display.say(state_counts(ended))
    for trial in best:
        path = recipe_path(folder, search, trial)
        display.say(f"best: trial {trial.number}, {scores(search, trial.values)}, with {values_text(trial.params)}")
        display.say(f"  to train it: kilobatch train {quote(str(path))}{_as_trials(opened, options)}")
    display.say(f"report: {folder / REPORT}")
    if stopped_by:
        print_error(f"kilobatch: stopped by {stopped_by}; the same command goes on")
        return EXIT_STOPPED
    if not best:
        kept = " and kept the constraints" if search.constraints else ""
        print_error(f"kilobatch: no trial was completed{kept}; log: {folder / LOG}")
        return EXIT_FAILED
    return 0


def _as_trials(opened: OpenedSearch, options: SearchOptions) -> str:
    """The options of `kilobatch train` with which a recipe is trained as the trials were."""
    ranks = opened.search.ranks_per_trial
    flags = {"-n": ranks if ranks > 1 else None, "--cluster": options.cluster, "--device": options.device}
    flags["--data"] = opened.options["data_root"]
    words = "".join(f" {flag} {quote(str(value))}" for flag, value in flags.items() if value is not None)
    return words + (" --allow-code" if opened.options["allow_code"] else "")


def _groups(request: SearchRequest, opened: OpenedSearch, folder: Path) -> list[Group]:
    """The groups of ranks; none is started here."""
    each = opened.search.ranks_per_trial
    if request.joined is not None:
        return launched_groups(request.joined, folder, each=each)
    useful = each * opened.search.budget.trials
    if (request.workers or 0) > useful and request.stop_file is None:  # one part of a transfer has fewer trials
        what = f"{request.workers:,} ranks are more than all {opened.search.budget.trials:,} trials of the budget need"
        raise refused("-n", what, f"ask for at most {useful:,}")
    hosts = placements(each=each, workers=request.workers or launched_ranks(), hosts=request.hosts)
    idle = (request.workers or 0) - len(hosts) * each
    if idle > 0:
        print_error(f"warning: {idle} of {request.workers} ranks stay idle: a trial takes {each}")
    return [Group(number, folder, rank_starter(placement)) for number, placement in enumerate(hosts)]


def _run_as_launched_rank(request: SearchRequest, opened: OpenedSearch, folder: Path, ranks: int) -> int:
    """Run one of the ranks that a foreign launcher started.

    Raises:
        LaunchError: `-n` is another number of ranks, or `--hosts` was given.
        RecipeError: they are too few for one trial.
    """
    each = opened.search.ranks_per_trial
    if request.workers not in (None, ranks) or request.hosts is not None:
        raise LaunchError(f"{ranks} ranks were launched; leave -n and --hosts out")
    if ranks < each:
        raise refused("-n", f"{ranks} ranks are fewer than the {each} of a trial", f"launch {each} or more")
    check_folder(folder, opened, resume=request.resume)
    phases = [folder]
    if opened.search.transfer is not None:
        phases = [folder / name for name in Stages(opened=opened, folder=folder).names]
    else:
        study_address(folder, opened, storage=request.storage, study=request.study)
    return run_launched_worker(folder, phases=phases, each=each, ranks=ranks)


def _require_trainable(opened: OpenedSearch, options: SearchOptions) -> None:
    """Refuse a recipe that cannot be trained with its own values, and a sampler whose package is not installed."""
    require_utf8(opened)
    new_study(opened.search)
    for share in {Fraction(1), *getattr(opened.search.pruner, "shares", ())}:
        request = trial_request(opened, 0, {}, Path("trial"), options, share=share)
        prepare(request, workers=opened.search.ranks_per_trial)


def _stop_at_signal(supervisor: Supervisor, number: int, frame: object) -> None:
    """The first stop signal asks all trials to stop after their update, the second ends them."""
    if supervisor.stopping:
        supervisor.kill()
        return
    supervisor.request_stop("a signal")
    with suppress(OSError):  # a `| tee` was ended by the same Ctrl-C
        os.write(2, b"\nstopping after this update, with checkpoints; once more to end at once\n")
