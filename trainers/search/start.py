"""`kilobatch search`: check everything, lock the folder, run the supervisor, and print the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from optuna.exceptions import StorageInternalError

from recipes.errors import InputRefused
from recipes.reading.yaml import block_text
from recipes.search_space.open_search import OpenedSearch, open_search
from trainers.launch.preflight import require_startable
from trainers.launch.request import prepare, refused
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT, EXIT_STOPPED, print_error
from trainers.runs.mpi_ranks import LaunchError, launched_rank, launched_ranks
from trainers.runs.progress import Screen
from trainers.runs.run_folder import LOG, REPORT
from trainers.runs.stop_request import STOP_FILE, handling_signals
from trainers.search.best import absolute_recipe, recipe_path, require_utf8, write_best
from trainers.search.confirm import confirmed_in, confirmed_text
from trainers.search.display import Display, scores, shown, values_text
from trainers.search.dry_run import dry_run_text
from trainers.search.group_worker import launched_groups, run_launched_worker
from trainers.search.placement import placements, rank_starter
from trainers.search.prior import open_prior
from trainers.search.rank_groups import Group
from trainers.search.report import LivePage, write_search_page
from trainers.search.search_folder import (
    check_folder,
    lock_folder,
    require_own_trials,
    study_place,
    write_search_file,
    write_storage_file,
    write_whole,
)
from trainers.search.storage import one_line, opened_storage
from trainers.search.study import (
    best_trials,
    finished,
    gain_of_second_half,
    new_study,
    open_study,
    ranked_trials,
    state_counts,
)
from trainers.search.supervisor import Supervisor
from trainers.search.trial_run import SearchOptions, trial_request

PRIOR = "prior"  # in a search's folder: the search at a small batch that is done first


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """The command line of `kilobatch search`."""

    search: str
    workers: int | None = None
    hosts: str | None = None
    joined: str | None = None  # set by rank 0 of a foreign launcher for its supervisor: see `launched_groups`
    stop_file: Path | None = None  # set for the search of a prior; None: the one in the search's folder
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
    """Search until the budget is spent; returns the exit code: 3 if it was not or no trial is best, 4 after a signal.

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
    if request.dry_run:
        print(dry_run_text(opened, options, groups=len(groups)))
        return 0
    check_folder(folder, opened, resume=request.resume)
    require_startable(opened.base, ranks=1, files=not request.resume)
    place = study_place(folder, opened, storage=request.storage, study=request.study)
    with lock_folder(folder):
        write_search_file(folder, opened)
        if request.stop_file is None:
            options.stop_file.unlink(missing_ok=True)
        code = _search_prior(request, opened, options) if opened.search.prior and opened.search.prior.batch else 0
        return code or _search_in(place, request.storage or place["storage"], opened, options, groups)


def _search_prior(request: SearchRequest, opened: OpenedSearch, options: SearchOptions) -> int:
    """The search at the prior's batch, in a folder of its own within this one; returns its exit code."""
    prior, tree = opened.search.prior, dict(opened.tree)
    tree |= {
        "name": f"{opened.search.name}-{PRIOR}",
        "recipe": absolute_recipe(opened),
        "fixed": {**opened.search.fixed, "batch.global": prior.batch},
        "budget": {"trials": prior.trials},
        "ranks_per_trial": prior.ranks_per_trial or opened.search.ranks_per_trial,
        "enqueue": [],
        "prior": None,
        "confirm": None,
    }
    file, folder = options.folder / f"{PRIOR}.yaml", options.folder / PRIOR
    write_whole(file, block_text(tree))
    study = request.study and f"{request.study}-{PRIOR}"
    begin = {"search": str(file), "out": folder, "study": study, "stop_file": options.stop_file, "resume": False}
    return search(replace(request, **begin))


def _search_in(
    place: dict[str, str], where: str, opened: OpenedSearch, options: SearchOptions, groups: Sequence[Group]
) -> int:
    """Open the study and search; if its storage is lost meanwhile, say so and return `EXIT_FAILED`."""
    folder = options.folder
    prior = open_prior(opened, staged=folder / PRIOR if opened.search.prior and opened.search.prior.batch else None)
    try:
        with opened_storage(where, folder) as storage:
            study = open_study(opened, storage, name=place["study"], owner=place["owner"], prior=prior)
            require_own_trials(folder, study)
            write_storage_file(folder, place)  # only now: the storage can be used
            return _search_study(opened, study, options, groups)
    except StorageInternalError as error:
        what = f"the study in {place['storage']} does not answer any more: {one_line(error, where)}"
        print_error(f"kilobatch: {what}; the same command goes on with it")
        return EXIT_FAILED


def _search_study(opened: OpenedSearch, study: Any, options: SearchOptions, groups: Sequence[Group]) -> int:
    console, folder = Screen(), options.folder
    display = Display(search=opened.search, folder=folder, console=console, groups=len(groups))
    page = LivePage(folder, study, opened.search)
    supervisor = Supervisor(opened, study, options, display, groups, page)
    display.add_trials(study.get_trials(deepcopy=False), spent_seconds=supervisor.earlier_seconds)
    with display:
        done, budget = len(finished(study)), opened.search.budget.trials
        ranks = opened.search.ranks_per_trial
        display.say(
            f"search {opened.search.name}: {done} of {budget} trials are done, {len(groups)} side by side, "
            f"{ranks} rank{'s' if ranks > 1 else ''} each"
        )
        with handling_signals(partial(_stop_at_signal, supervisor)):
            supervisor.run()
    display.confirmed = confirmed = confirmed_in(folder, opened.search)
    write_best(folder, opened, study, confirmed=next(iter(confirmed), None))
    write_search_page(folder, study, opened.search, confirmed=confirmed)
    return _print_result(study, opened, options, display, supervisor)


def _print_result(
    study: Any, opened: OpenedSearch, options: SearchOptions, display: Display, supervisor: Supervisor
) -> int:
    """Print the result; returns the exit code."""
    search, best, folder = opened.search, best_trials(study), options.folder
    display.say(state_counts(finished(study)))
    confirmed = confirmed_in(folder, search)
    for one in confirmed:
        display.say(f"confirmed: trial {one.trial}, {confirmed_text(search, one)}")
    if confirmed:
        best = [trial for trial in ranked_trials(study) if trial.number == confirmed[0].trial]
    for trial in best:
        path = recipe_path(folder, search, trial)
        display.say(f"best: trial {trial.number}, {scores(search, trial.values)}, with {values_text(trial.params)}")
        display.say(f"  to train it: kilobatch train {quote(str(path))}{_as_trials(opened, options)}")
    if len(search.objectives) == 1 and (gain := gain_of_second_half(study)):
        metric = search.objectives[0].metric
        display.say(f"the second half of the trials gained {shown(metric, gain)}; as many again usually gain no more")
    display.say(f"report: {folder / REPORT}")
    if supervisor.stopped_by:
        print_error(f"kilobatch: stopped by {supervisor.stopped_by}; the same command goes on")
        return EXIT_STOPPED
    unspent = supervisor.unspent()
    if unspent:
        print_error(f"kilobatch: {unspent}; mend that, and the same command goes on; log: {folder / LOG}")
        return EXIT_FAILED
    if not best:
        kept = " and kept the constraints" if search.constraints or search.has_goal else ""
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
    if (request.workers or 0) > useful and request.stop_file is None:  # the search of a prior may have fewer trials
        what = f"{request.workers:,} ranks are more than all {opened.search.budget.trials:,} trials of the budget need"
        raise refused("-n", what, f"ask for at most {useful:,}")
    placed = placements(each=each, workers=request.workers or launched_ranks(), hosts=request.hosts)
    idle = (request.workers or 0) - len(placed) * each
    if idle > 0:
        print_error(f"warning: {idle} of {request.workers} ranks stay idle: a trial takes {each}")
    return [Group(number, folder, rank_starter(own), hosts=own.hosts) for number, own in enumerate(placed)]


def _run_as_launched_rank(request: SearchRequest, opened: OpenedSearch, folder: Path, ranks: int) -> int:
    """Run one of the ranks that a foreign launcher started.

    Raises:
        LaunchError: `-n` is another number of ranks, or `--hosts` was given.
        RecipeError: they are too few for one trial.
    """
    search, each = opened.search, opened.search.ranks_per_trial
    if request.workers not in (None, ranks) or request.hosts is not None:
        raise LaunchError(f"{ranks} ranks were launched; leave -n and --hosts out")
    if ranks < each:
        raise refused("-n", f"{ranks} ranks are fewer than the {each} of a trial", f"launch {each} or more")
    if search.prior is not None and search.prior.ranks_per_trial not in (None, each):
        what = "the ranks that were launched are divided once, and its trials take others than those of this search"
        raise refused("prior.ranks_per_trial", what, "leave it out, or let `kilobatch search -n` start the ranks")
    check_folder(folder, opened, resume=request.resume)
    study_place(folder, opened, storage=request.storage, study=request.study)
    phases = [folder / PRIOR, folder] if search.prior is not None and search.prior.batch else [folder]
    return run_launched_worker(folder, phases=phases, each=each, ranks=ranks)


def _require_trainable(opened: OpenedSearch, options: SearchOptions) -> None:
    """Refuse a recipe that cannot be trained with its own values, and a sampler whose package is not installed."""
    require_utf8(opened)
    new_study(opened.search)
    opened.search.sampler.build(seed=0)
    open_prior(opened)
    prepare(trial_request(opened, 0, {}, Path("trial"), options), workers=opened.search.ranks_per_trial)


def _stop_at_signal(supervisor: Supervisor, number: int, frame: object) -> None:
    """The first stop signal asks all trials to stop after their update, the second ends them."""
    if supervisor.stopping:
        supervisor.kill()
        return
    supervisor.request_stop("a signal")
    with suppress(OSError):  # a `| tee` was ended by the same Ctrl-C
        os.write(2, b"\nstopping after this update, with checkpoints; once more to end at once\n")
