"""The parent of the ranks: checks a request, starts its ranks and shows their progress, or joins a launcher's ranks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import IO, Any

from recipes.errors import InputRefused, printable
from recipes.planning.planner import Plan
from recipes.reports.wording import counted
from trainers.launch.join_ranks import (
    check_folder,
    join_world,
    lock_for_run,
    nothing_left,
    report_failure,
    report_run,
    train_together,
)
from trainers.launch.preflight import require_startable
from trainers.launch.request import Prepared, TrainRequest, prepare
from trainers.runs.cores import usable_cores
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT, EXIT_STOPPED, print_error, print_warnings, waited_for
from trainers.runs.heartbeat import clear_heartbeats, read_heartbeat
from trainers.runs.metrics_file import last_line, require_another_end, session_starts
from trainers.runs.mpi_ranks import (
    HYDRA,
    THREADS,
    Ranks,
    idle_nodes,
    launched_by_us,
    launched_rank,
    launched_ranks,
    limit_threads,
    start_ranks,
)
from trainers.runs.rank_exits import describe_first_exit, hold_exit_socket
from trainers.runs.run_folder import (
    LOG,
    METRICS,
    RANKS,
    REPORT,
    FolderRefused,
    claimed,
    default_folder,
    newest_by_name,
    note_in_log,
    share_lock,
)
from trainers.runs.stop_request import (
    STOP_FILE,
    handling_signals,
    noting_early_signals,
    remove_old_request,
    request_stop,
    requester_text,
)
from trainers.runs.watchdog import ParentWatch, startup_seconds


def start_or_join(request: TrainRequest, *, on_signal: Callable[[int], None] = lambda number: None) -> int:
    """Run a request, as the parent of its ranks or as one of them; returns the exit code.

    Args:
        on_signal: called with the number of each signal that asks the ranks to stop.
    Raises:
        InputRefused: before anything was started or written.
    """
    if (ranks := launched_ranks()) is not None:
        return _join(request, ranks)
    prepared = prepare(request, workers=request.workers)
    local = prepared.plan.recipe.updater.local_steps
    asked = request.workers or (local and local.replicas)
    workers = asked or ranks_that_pay(prepared.plan, cores=usable_cores())
    if workers != prepared.plan.workers:
        prepared = prepare(request, workers=workers)
    folder = request.out or default_folder(prepared.opened.recipe.name)
    if request.out is not None:
        check_folder(request, folder, prepared)
    if request.resume and (done := nothing_left(folder, prepared)):
        print(printable(done))
        return report_run(folder) if request.report and not (folder / REPORT).exists() else 0
    on_gpu = prepared.plan.cluster.device == "gpu"
    warnings = require_startable(prepared.opened, ranks=workers, is_new=not request.resume, on_gpu=on_gpu)
    request = replace(request, warnings=tuple(warnings))
    folder = folder if request.out is not None else claimed(folder)
    with lock_for_run(folder, resume=request.resume) as held:
        return _start(request, prepared, folder, held, workers, on_signal)


def ranks_that_pay(made: Plan, *, cores: int) -> int:
    """The fewest ranks, at most one a core, on which a run takes as short as on any number of them.

    One where the run is on a GPU, or where a rank has several BLAS threads.
    """
    several = made.cluster.device != "cpu" or any((os.environ.get(name) or "1") != "1" for name in THREADS)
    numbers = [(planned.segment.num_updates, planned.division.num_groups) for planned in made.segments]
    steps = {ranks: sum(n * -(-groups // ranks) for n, groups in numbers) for ranks in range(1, cores + 1)}
    return 1 if several else min(steps, key=lambda ranks: (steps[ranks], ranks))


def _start(
    request: TrainRequest,
    prepared: Prepared,
    folder: Path,
    held: IO[bytes],
    workers: int,
    on_signal: Callable[[int], None],
) -> int:
    """Start the ranks here and show their progress until they end."""
    share_lock(held)  # with rank 0, which may outlive this process
    before = last_line(folder)
    earlier = session_starts(folder / METRICS) if request.resume else None
    with _StopSignals(folder, on_signal) as signals:
        clear_heartbeats(folder)
        tree = replace(request, out=folder, workers=None).as_tree()
        as_rank = ["train", request.recipe, "--as-rank", json.dumps(tree)]  # it gets its number from MPI
        threads = 1 if prepared.plan.exact else None
        started = signals.ranks = start_ranks(workers, as_rank, log=folder / LOG, threads=threads)
        watch = ParentWatch(
            folder,
            started,
            seconds=startup_seconds(request.watchdog_seconds),
            stopped_seconds=request.watchdog_seconds,
        )
        from trainers.runs.progress import Screen, follow, print_line  # while the ranks load theirs
        from trainers.runs.progress_lines import RunState

        if request.verbosity >= -1 and (idle := idle_nodes()):
            what = f"all ranks start on this node, and this job of Slurm has {counted(idle, 'other node')}"
            print_warnings([f"{what}; `srun kilobatch train R`, without -n, starts them on all"])
        console = Screen()
        console.quiet = request.verbosity < -1
        if not console.is_terminal and request.verbosity >= 0:
            print_line(console, f"run: {folder}")
        if request.cluster is not None and request.workers is None and request.verbosity >= 0:
            cluster = prepared.plan.cluster
            text = f"{workers} of the {cluster.num_workers} workers of cluster {cluster.name}: more are no faster here"
            print_line(console, f"{text}; -n takes another number")
        code = follow(
            folder,
            started.process,
            console,
            RunState.of(prepared.plan.timeline, prepared.stop_after_update),
            earlier=earlier,
            printed=[f"warning: {warning}" for warning in request.warnings],
            verbosity=request.verbosity,
        )
    failure = watch.close()
    if failure is None and (left := started.left_behind()):
        failure = f"mpiexec's process beside the ranks was killed, and {len(left)} ranks trained on; they are ended"
    if failure is not None:
        started.kill()
    has_begun = not folder.is_dir() or last_line(folder) != before  # a folder that was moved away may have updates
    if signals.asked and code not in (EXIT_INPUT, EXIT_FAILED) and not has_begun:
        print_error("kilobatch: stopped by a signal before an update was done; the same command starts it again")
        return EXIT_STOPPED
    if failure is not None:
        said = [line for line in started.errors().splitlines() if not line.startswith(HYDRA)]
        print_error("".join(f"{line}\n" for line in said), end="")
        _print_failure(folder, failure)
        if request.report:
            report_failure(folder)
        return EXIT_FAILED
    code = _verdict(code, folder, before, started, ended_at_once_by=signals.ended_at_once_by)
    if request.measure_noise and code in (0, EXIT_STOPPED):
        from recipes.reports.noise import noise_lines
        from recipes.reports.record import open_run

        with suppress(InputRefused):  # the report says why its record cannot be read
            for line in noise_lines(open_run(folder)):
                print_line(console, line)
    if request.report and code in (0, EXIT_STOPPED):
        code = report_run(folder) or code
    elif request.report and code == EXIT_FAILED:
        report_failure(folder)
    if code == 0:
        report = f"  report: {folder / REPORT}" if request.report else ""
        print_line(console, f"run: {folder}{report}")
    return code


def _join(request: TrainRequest, ranks: int) -> int:
    """Train as one of the ranks that a launcher started."""
    hold_exit_socket(launched_rank())
    threads = limit_threads()
    try:
        with noting_early_signals():
            code = train_together(request, join_world(ranks), threads=threads)
    except InputRefused:
        if launched_rank() == 0 or waited_for():
            raise
        sys.exit(EXIT_INPUT)  # rank 0 says why
    return 0 if launched_by_us() else code  # mpiexec calls any other code a failure; our parent reads the last line


class _StopSignals:
    """While ranks run: the first stop signal asks them to stop after their update, the second kills them.

    Installed before the ranks start, so that no signal is lost and no rank is left behind; removes an old stop file.
    """

    def __init__(self, folder: Path, on_signal: Callable[[int], None]) -> None:
        self.ranks: Ranks | None = None
        self._on_signal = on_signal
        self.ended_at_once_by: str | None = None
        self.asked = False
        self._folder = folder
        self._handling = handling_signals(self._note)

    def __enter__(self) -> _StopSignals:
        remove_old_request(self._folder / STOP_FILE)
        self._handling.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._handling.__exit__(None, None, None)
        if self.ranks is not None and self.ranks.process.poll() is None:
            self.ranks.kill()

    def _note(self, number: int, frame: object) -> None:
        self._on_signal(number)
        if self.asked and self.ranks is not None:
            self._end_at_once("a second signal")
            return
        self.asked = True
        message = "stopping after this update, with a checkpoint; once more to end at once"
        try:
            request_stop(self._folder / STOP_FILE, "signal")
        except OSError as error:  # the folder was removed, perhaps: then no checkpoint can be written either
            message = f"the ranks cannot be asked to stop, and are ended: {error}"
            self._end_at_once("a signal")
        with suppress(OSError):  # a `| tee` was ended by the same Ctrl-C
            os.write(2, f"\n{message}\n".encode())

    def _end_at_once(self, by: str) -> None:
        if self.ranks is not None:
            self.ended_at_once_by = by
            self.ranks.kill()


def _verdict(code: int, folder: Path, before: dict[str, Any], ranks: Ranks, *, ended_at_once_by: str | None) -> int:
    """The exit code of a run: good only if mpiexec says so and the ranks wrote a last line, other than that before."""
    errors = ranks.errors()
    last = last_line(folder)
    ended = last.get("key") == "run_stop" and last != before
    records = [read_heartbeat(folder, rank) for rank in range(ranks.num_ranks)]
    finished = {record.rank for record in records if record is not None and record.finished}
    if code == 0 and ended and last["value"] != "failed" and len(finished) == ranks.num_ranks:
        clear_heartbeats(folder)
        if last["value"] == "success" or last["reason"] == "--stop-after":
            return 0
        print_error(f"kilobatch: stopped by {requester_text(last['reason'], folder / STOP_FILE)}; {_way_on(folder)}")
        return EXIT_STOPPED
    if ended_at_once_by:
        print_error(f"kilobatch: ended at once, by {ended_at_once_by}; {_way_on(folder)}")
        return EXIT_STOPPED
    refused = code == EXIT_INPUT and bool(errors) and last == before  # else a rank left with 2 in mid-run
    if refused:  # all ranks may say the same
        errors = "".join(dict.fromkeys(errors.splitlines(keepends=True)))
    print_error(errors, end="")
    if refused:
        return EXIT_INPUT
    cause = ""
    if code != EXIT_FAILED or not errors:
        gone = code == 0 and not (folder / RANKS).is_dir()
        cause = describe_first_exit(code, ranks.exits.order(), finished, last, errors)
        cause = f"{folder / RANKS} was removed while the run trained" if gone else cause
    _print_failure(folder, cause)
    return EXIT_FAILED


def _print_failure(folder: Path, cause: str) -> None:
    """Print why a run failed, and write it to its log; without a cause the ranks have said it themselves."""
    if cause:
        print_error(f"kilobatch: {cause}")
        note_in_log(folder, f"kilobatch: {cause}")
    print_error(f"kilobatch: the run failed; log: {folder / LOG}; {_way_on(folder)}")


def _way_on(folder: Path) -> str:
    try:
        require_another_end(folder)
    except FolderRefused:
        return "change the recipe, and start anew in another --out"
    newest = newest_by_name(folder)
    if newest is None:
        return "no checkpoint was written yet" if folder.is_dir() else f"{folder} is not there any more"
    return f"newest checkpoint: {newest}; to go on from it: --out {quote(str(folder))} --resume"
