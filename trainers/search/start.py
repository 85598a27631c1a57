"""`kilobatch search`: check everything, lock the folder, run the supervisor, and print the result; or a dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from shlex import quote
from typing import Any

from optuna.exceptions import StorageInternalError

from recipes.errors import InputRefused, refuse_unreachable, refused
from recipes.planning.forecast import forecast
from recipes.planning.timing import NoForecast
from recipes.reading.load import load_tree
from recipes.reading.tree_diff import value_text
from recipes.reports.wording import counted, duration, number
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch, open_search
from recipes.search_space.ranges import values_text
from trainers.launch.model_costs import model_of
from trainers.launch.preflight import require_startable
from trainers.launch.request import Prepared, prepare
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.errors import EXIT_FAILED, EXIT_STOPPED, print_error, print_warnings
from trainers.runs.mpi_ranks import LaunchError, launched_rank, launched_ranks
from trainers.runs.progress import Screen
from trainers.runs.run_folder import LOG, REPORT, lock_folder
from trainers.runs.stop_request import STOP_FILE, handling_signals
from trainers.search import folder as folders
from trainers.search.folder import SEARCH, folder_record
from trainers.search.group import Group
from trainers.search.group_worker import run_launched_worker
from trainers.search.outcome import SearchRequest, trial_request
from trainers.search.placement import placements, require_ssh
from trainers.search.prior import first_values
from trainers.search.results import (
    confirm_folder,
    confirmed_text,
    name_of_best,
    score_text,
    scores,
    trials_text,
    write_best,
)
from trainers.search.status import Display
from trainers.search.study import enqueue, finished, gain_of_second_half, new_study, next_trial, state_of
from trainers.search.supervisor import Supervisor


def search(request: SearchRequest) -> int:
    """Search until the budget is spent; returns the exit code: 3 if it was not or no trial is best, 4 after a signal.

    Raises:
        InputRefused: before anything was started or written.
    """
    with refuse_unreachable():
        if (Path(request.search) / SEARCH).is_file():
            what = f"is the folder of the search {folders.read_record(Path(request.search)).get('study', 'in it')}"
            raise refused(request.search, what, "a search goes on by its own file or name, and this folder as --out")
    words = search_vocabulary(allow_code=request.allow_code)

    def folder_of(opened: OpenedSearch) -> Path:
        return request.out or Path("runs", f"search-{opened.search.name}")

    opened = folders.opened_or_begun_before(
        partial(open_search, request.search, vocabulary=words, allow_code=request.allow_code, data_root=request.data),
        folder_of,
        record=SEARCH,
        require_same=lambda opened, folder: folder_record(folder, opened, resume=True, storage=request.storage),
    )
    folder = folder_of(opened)
    each, launched = opened.search.ranks_per_trial, launched_ranks()
    if launched is not None and not request.dry_run:
        if request.workers not in (None, launched) or request.hosts is not None:
            raise LaunchError(f"{launched} ranks were launched; leave -n and --hosts out")
        if launched < each:
            raise refused("-n", f"{launched} ranks are fewer than the {each} of a trial", f"launch {each} or more")
        folder_record(folder, opened, resume=request.resume, storage=request.storage)
        return run_launched_worker(folder, each=each, ranks=launched)
    if request.dry_run and launched_rank():
        return 0  # rank 0 prints it
    folders.require_storage(request.storage or "sqlite")
    with refuse_unreachable():
        begun = (folder / SEARCH).is_file() and not request.dry_run
    groups, first = _groups(request, opened, folder), [] if begun else first_values(opened)
    _first_trial(opened.search)  # refused also where no first trial needs the sampler
    own = trial_request(opened, 0, opened.valid_point, Path("trial"), request)  # as the recipe is
    device = prepare(own, workers=each).plan.cluster.device
    if request.dry_run:
        print_warnings(opened.base.warnings)
        print(_dry_run_text(opened, request, first, groups=len(groups)))
        return 0
    record = folder_record(folder, opened, resume=request.resume, storage=request.storage)
    is_new = not (request.resume or request.goes_on or begun)
    warnings = require_startable(opened.base, ranks=1, is_new=is_new, on_gpu=device == "gpu")
    storage_name = request.storage or record["storage"]
    with lock_folder(folder):
        (folder / STOP_FILE).unlink(missing_ok=True)
        try:
            with folders.opened_storage(storage_name, folder) as storage:
                study = new_study(opened.search, storage=storage, name=record["study"])
                folders.own_study(study, folder, record)
                measures = [it.metric for it in (*opened.search.objectives, *opened.search.constraints)]
                if "device_hours" not in record and "device_hours" in measures and finished(study):
                    what = "device_hours of the trials before count the start of their ranks, new ones training only"
                    warnings += print_warnings([f"{folder} was begun by an older version: {what}"])
                enqueue(study, first_values(opened, enqueued=len(study.get_trials(deepcopy=False))) if begun else first)
                display = Display(opened, study, folder, Screen(), groups=len(groups))
                for warning in warnings:
                    display.log(f"warning: {warning}")
                return _search_study(Supervisor(opened, request, display, groups, code=record["code"]))
        except StorageInternalError as error:
            what = f"does not answer any more: {folders.root_cause(error, storage_name)}"
            print_error(f"kilobatch: the study in {record['storage']} {what}; the same command goes on with it")
            return EXIT_FAILED


def _search_study(supervisor: Supervisor) -> int:
    """Search, write and print the result; returns the exit code."""
    opened, search, request, display = supervisor.opened, supervisor.search, supervisor.options, supervisor.display
    study, folder = supervisor.study, supervisor.folder
    with display:
        display.say(
            f"search {search.name}: {len(finished(study))} of {search.budget.trials} trials are done, "
            f"{len(supervisor.groups)} side by side, {counted(search.ranks_per_trial, 'rank')} each"
        )
        with handling_signals(supervisor.stop_at_signal):
            supervisor.run()
    confirmed = display.confirmed
    best = []
    if not supervisor.recipe_changed():
        best = write_best(folder, opened, study, confirmed=confirmed, note=display.unconfirmed)
    states = Counter(map(state_of, finished(study)))
    display.say(trials_text(states, search.budget.trials))
    if display.ended_by:
        display.say(f"ended: {display.ended_by} is spent")
    if display.unconfirmed:
        display.say(display.unconfirmed)
    for one in confirmed:
        display.say(f"confirmed: {confirmed_text(search, one)}")
    options = f" -n {search.ranks_per_trial}" if search.ranks_per_trial > 1 else ""
    for name in ("data", "cluster", "device"):
        options += f" --{name} {quote(str(given))}" if (given := getattr(request, name)) else ""
    options += " --allow-code" if request.allow_code else ""
    for trial, path in best:
        found = f"trial {trial.number}, {scores(search, trial.values)}, with {values_text(trial.params)}"
        display.say(f"{name_of_best(confirmed)}: {found}")
        display.say(f"  to train it: kilobatch train {quote(str(path))}{options}")
        if confirmed and not confirmed[0].broken:
            runs = f"{quote(str(confirm_folder(folder, trial.number)))}/seed-*"
            display.say(f"  to share it with its mean: kilobatch recipes pack {runs}")
    if len(search.objectives) == 1 and (gain := gain_of_second_half(study)):
        metric = search.objectives[0].metric
        mean = f"the second half of the trials gained {score_text(metric, gain)} in the mean over all their orders"
        display.say(f"{mean}; as many again usually gain no more")
    display.say(f"report: {folder / REPORT}")
    if supervisor.changed:
        what = f"what {opened.base.path} trains was changed while the search ran: {supervisor.changed}"
        print_error(f"kilobatch: {what}; put it back and type the same command, or give another --out")
        return EXIT_FAILED
    if supervisor.stopped_by:
        print_error(f"kilobatch: stopped by {supervisor.stopped_by}; the same command goes on")
        return EXIT_STOPPED
    if unspent := display.stopped_by:
        print_error(f"kilobatch: {unspent}; mend that, and the same command goes on; log: {folder / LOG}")
    elif not best:  # an outcome, and in a frontier one among others
        kept = " and kept the constraints" if search.constraints else ""
        display.say("no trial reached the target" if search.has_goal else f"no trial was completed{kept}")
    return 0 if best and not unspent else EXIT_FAILED


def _groups(request: SearchRequest, opened: OpenedSearch, folder: Path) -> list[Group]:
    """The groups of ranks; none is started here."""
    each = opened.search.ranks_per_trial
    if request.joined is not None:
        ranks, _, messages = request.joined.partition(":")
        return [Group(number, folder, None, messages=messages) for number in range(int(ranks) // each)]
    useful = each * opened.search.budget.trials
    if (request.workers or 0) > useful:
        what = f"{request.workers:,} ranks are more than all {opened.search.budget.trials:,} trials of the budget need"
        raise refused("-n", what, f"ask for at most {useful:,}")
    placed = placements(each=each, workers=request.workers or launched_ranks(), hosts=request.hosts)
    if request.hosts is not None and not request.dry_run:
        require_ssh(host for own in placed for host in own.hosts)
    idle = (request.workers or 0) - len(placed) * each
    if idle > 0:
        print_warnings([f"{idle} of {request.workers} ranks stay idle: a trial takes {each}"])
    return [Group(number, folder, own) for number, own in enumerate(placed)]


def _first_trial(search: Search, enqueued: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The values of the first trial; InputRefused if the sampler cannot propose any."""
    study = new_study(search)
    enqueue(study, enqueued)
    try:
        return next_trial(study, search).params
    except ValueError as error:
        kind = type(search.sampler).__name__
        raise InputRefused(f"{kind} cannot propose values of this search: {error}") from None


def _dry_run_text(
    opened: OpenedSearch, options: SearchRequest, first: Sequence[Mapping[str, Any]], *, groups: int
) -> str:
    """Space, trials, samples and, on a cluster with rates, time before the start; what the first trial changes."""
    search, values = opened.search, _first_trial(opened.search, first)
    each, trials, confirm = search.ranks_per_trial, search.budget.trials, search.confirm
    prepared = prepare(trial_request(opened, 0, values, Path("trial"), options), workers=each)
    timeline = prepared.plan.timeline
    runs, words = trials * search.seeds_per_trial, "{} runs with all seeds"
    if search.rungs is not None:
        runs, words = search.rungs.whole_runs(trials, reports=search.reports), "at least {} whole runs with rungs"
    fresh = min(confirm.top, trials) * confirm.seeds if confirm else 0
    runs += fresh
    samples = runs * timeline.num_samples
    goals = [one.metric + (f" {one.target:g}" if one.target is not None else "") for one in search.objectives]
    space = load_tree(opened.path, kind="search")[0]["space"]
    as_runs = f", {words.format(number(runs))}" if runs != trials else ""
    side = f"{groups} trials side by side" if groups > 1 else "1 trial at a time"
    lines = [
        f"search {search.name} over {search.recipe}: {', '.join(goals)}",
        *(f"tuned: {path} {value_text(range_)}" for path, range_ in space.items()),
        *([f"fixed: {values_text(search.fixed)}"] if search.fixed else []),
        f"first trial: {values_text(values)}; {timeline.num_updates:,} updates, {timeline.num_samples:,} samples",
        f"{counted(trials, 'trial')}{as_runs}: {number(samples)} samples, if all are as long as the first",
        *([f"confirm: {fresh} of these runs, but none once hours or device_hours are spent"] if fresh else []),
        f"{side}, {counted(each, 'rank')} each; time: {_time_text(prepared, rounds=ceil(runs / groups))}",
    ]
    return "\n".join(lines)


def _time_text(prepared: Prepared, *, rounds: int) -> str:
    """The time of so many runs one after the other, by the plan of one, if its cluster has hardware."""
    plan = prepared.plan
    try:
        seconds = forecast(replace(plan, model=model_of(prepared.opened)) if plan.cluster.hardware else plan).seconds
    except NoForecast as error:
        return f"not planned: {error}"
    return f"{duration(rounds * seconds)}, with {duration(seconds)} a run on {plan.cluster.name}"
