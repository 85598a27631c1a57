"""A rank: join the others once, then train together with them, once for each run."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import IO, Any

from recipes.errors import InputRefused, printable, refuse_unreachable
from recipes.planning.planner import Plan
from recipes.reports.metrics import RunError, evaluations_of, number_of, read_metrics, session_end, updates_of
from recipes.reports.wording import counted
from trainers.launch.preflight import require_startable
from trainers.launch.request import Prepared, TrainRequest, prepare
from trainers.runs.errors import (
    EXIT_FAILED,
    EXIT_STOPPED,
    RankFailed,
    RunFailed,
    abort_on_exception,
    error_text,
    log_failures,
    print_error,
    remove_shared_memory,
)
from trainers.runs.heartbeat import Heartbeat, clear_heartbeats
from trainers.runs.identity import changes, identity_of, read_identity, require_same_identity
from trainers.runs.metrics_file import require_another_end, why_not_anew
from trainers.runs.mpi_ranks import LaunchError, launched_by_us, parent_is_gone, started_by_srun
from trainers.runs.progress_lines import RunState
from trainers.runs.run_folder import (
    CHECKPOINTS,
    LOG,
    METRICS,
    RANKS,
    REPORT,
    RUN,
    CountsChanged,
    FolderRefused,
    checkpoints_in,
    claimed,
    dataset_facts,
    default_folder,
    folder_required,
    lock_folder,
    require_same_recipe,
    require_usable,
    update_of,
    write_report,
)
from trainers.runs.stop_request import STOP_FILE, remove_old_request
from trainers.runs.watchdog import start_watchdog, watch_next_rank
from trainers.training.exact_mode import require_same_machine

_LONGEST_JOIN_SECONDS = 600.0  # for all ranks of a launcher to start and to come to MPI_Init
_OTHERS_SECONDS = 1.0  # for the processes of the other ranks to end, once they have left MPI
_WAY_OUT_OF_ONE_RANK = (
    "leave -n out: `srun -n N kilobatch train R` starts N ranks, and without srun `train R -n N` does; in a shell that "
    "srun started, begin it with `srun --mpi=none --pty bash`, or type `unset PMI_RANK PMI_SIZE PMI_FD PMI_JOBID` first"
)


@refuse_unreachable()
def check_folder(request: TrainRequest, folder: Path, prepared: Prepared) -> None:
    """Refuse a folder that holds something else.

    Raises:
        FolderRefused: it is not empty, holds a run of another recipe, or one that ended in numbers that are not finite
            and whose own code and data are unchanged; or has lost its checkpoints, or its metrics cannot be read.
        IdentityChanged: own code or data are not those of the run, and that was not accepted.
        ExactRefused: in exact mode, it holds one that was trained elsewhere or otherwise.
    """
    require_usable(folder, resume=request.resume)
    try:
        (folder / METRICS).open("rb").close()
    except FileNotFoundError:
        pass
    except OSError as error:
        what = f"{folder / METRICS} cannot be read: {error.strerror}"
        raise FolderRefused(f"{what}; put the run's own file there, or choose another --out") from error
    try:
        require_same_recipe(folder, prepared.opened.tree, dataset_facts(prepared.opened.dataset))
    except CountsChanged as error:
        raise _with_classes(error, folder, prepared) from None
    if request.resume and request.exact and prepared.plan.cluster.device == "cpu":  # on a GPU see `hold_on_gpu`
        require_same_machine(folder)
    if not request.resume:
        return
    now = partial(identity_of, prepared.opened)
    if not require_same_identity(folder, now, accepted=request.accept_changed):  # others come to other numbers
        require_another_end(folder)
    if not checkpoints_in(folder / CHECKPOINTS) and (why := why_not_anew(folder)):
        raise FolderRefused(why)


def lock_for_run(folder: Path, *, resume: bool) -> IO[bytes]:
    """Lock a folder that was checked before.

    Raises:
        FolderRefused: another run has locked it, or was trained there since it was checked.
    """
    held = lock_folder(folder)
    if not resume and any((folder / name).exists() for name in (RUN, METRICS)):
        held.close()
        what = f"another run was trained in {folder} since this one began to start"
        raise FolderRefused(f"{what}; add --resume to go on with it, or choose another --out")
    return held


def _with_classes(error: CountsChanged, folder: Path, prepared: Prepared) -> FolderRefused:
    """The refusal, with the classes or files that have changed, where the run has a record of them."""
    before = read_identity(folder)
    found = changes(before, identity_of(prepared.opened)).get("data") if before else None
    why = "--accept-changed takes no other numbers, because they decide the updates"
    return FolderRefused("; ".join(filter(None, [str(error), why, found])))


def nothing_left(folder: Path, prepared: Prepared) -> str:
    """In words, that a resumed run has ended, or is past the update at which it is asked to stop; else empty."""
    return _ending(folder, prepared) or _passed(folder, prepared)


def _ending(folder: Path, prepared: Prepared) -> str:
    """How a run ended, in words, if nothing is left of it to train; else empty."""
    from trainers.runs.checkpoint import checkpoint_name, newest_checkpoint  # and Chainer

    path = folder / METRICS
    try:
        numbered = read_metrics(path, all_updates=False)
        updates_of(path, numbered)
        evaluations_of(path, numbered)
        for number, line in numbered:
            for name in {"update", "epoch"} & line.keys():
                number_of(path, number, line, name)
    except RunError:  # missing or damaged: the run goes on, and warns of it
        return ""
    if session_end(numbered).get("value") != "success":
        return ""
    state = RunState.of(prepared.plan.timeline)
    for _, line in numbered:
        state.take(line)
    checkpoint, _ = newest_checkpoint(folder / CHECKPOINTS)
    whole = checkpoint is not None and checkpoint.name == checkpoint_name(state.updates)
    return f"{state.ending}\nrun: {folder}, which has ended" if whole else ""


def _passed(folder: Path, prepared: Prepared) -> str:
    """In words, that a run has a checkpoint behind the update at which it is asked to stop; else empty."""
    stop = prepared.stop_after_update
    if stop is None or not any(update_of(path) > stop for path in checkpoints_in(folder / CHECKPOINTS)):
        return ""
    from trainers.runs.checkpoint import newest_checkpoint  # and Chainer

    checkpoint, _ = newest_checkpoint(folder / CHECKPOINTS)
    if checkpoint is None or update_of(checkpoint) <= stop:
        return ""
    what = f"update {update_of(checkpoint)} is done already, and --stop-after is update {stop}"
    return f"nothing to train: {what}\nrun: {folder}"


def join_world(ranks: int) -> Any:
    """MPI's communicator of all ranks; called once a process. From now on an uncaught exception ends all ranks.

    A rank that waits ten minutes for the others ends with a traceback: launchers let it wait in MPI_Init for good.

    Raises:
        LaunchError: mpi4py finds no MPI, or another one than the launcher's.
    """
    faulthandler.dump_traceback_later(_LONGEST_JOIN_SECONDS, exit=True, file=2)  # MPI_Init keeps Python's lock
    try:
        MPI = _mpi()
        world = MPI.COMM_WORLD
        abort_on_exception(world.rank)
        if world.size != ranks:
            raise LaunchError(
                f"{ranks} ranks were launched, but MPI joins {world.size}: the launcher and mpi4py use different MPIs; "
                f"{way_to_join(MPI.Get_library_version())}"
            )
        world.Barrier()  # all have left MPI_Init
    finally:
        faulthandler.cancel_dump_traceback_later()
    remove_shared_memory()
    return world


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"MPI cannot start: {' '.join(str(error).split())}; install mpi4py and an MPI for it (pip install mpi4py "
            "mpich), and see `kilobatch doctor`"
        ) from error
    return MPI


def way_to_join(library: str, environment: Mapping[str, str] = os.environ) -> str:
    """What to type where a launcher's ranks do not join one communicator: Slurm's interface may not be the MPI's.

    >>> way_to_join("MPICH Version: 4.3.2", {"SLURM_STEP_ID": "0"})
    'type `export SLURM_MPI_TYPE=pmi2` before the same command (srun --mpi=list says what this Slurm has)'
    """
    if not started_by_srun(environment):
        return "`kilobatch doctor` shows which MPI this is"
    kind = "pmix" if library.startswith("Open MPI") else "pmi2"
    return f"type `export SLURM_MPI_TYPE={kind}` before the same command (srun --mpi=list says what this Slurm has)"


def require_threads(plan: Plan, mpi: Any) -> None:
    """Raise LaunchError where the plan exchanges on a separate thread and MPI is below MPI_THREAD_MULTIPLE."""
    from mpi4py import MPI

    if mpi.size == 1 or plan.exact or not plan.cluster.exchange.overlap or MPI.Query_thread() >= MPI.THREAD_MULTIPLE:
        return
    level = {MPI.THREAD_SINGLE: "SINGLE", MPI.THREAD_FUNNELED: "FUNNELED"}.get(MPI.Query_thread(), "SERIALIZED")
    raise LaunchError(
        f"gradients are exchanged by a thread beside backward, and MPI gives MPI_THREAD_{level} where that needs "
        "MPI_THREAD_MULTIPLE; exchange after backward with `--set cluster.exchange.overlap=false`, or see "
        "`kilobatch doctor`"
    )


def train_together(
    request: TrainRequest,
    mpi: Any,
    *,
    threads: int,
    served: bool = False,
    is_orphan: Callable[[], bool] = parent_is_gone,
) -> int:
    """Train as one of the ranks of `mpi`, which all call this; once for each run.

    Bytes on the wire, beside those of `train_as_rank`: about 60, and the folder's name, from rank 0 to all.

    Args:
        request: the same on all ranks.
        threads: of BLAS and OpenMP, for the log.
        served: these ranks do several runs (a search); the folder was checked, and the log is not their stdout.
        is_orphan: whether the process that wants the run has gone; the run then stops, with a checkpoint.
    Returns:
        the exit code: 0, 4 where a signal or a stop file ended the run, or 3 where its report cannot be written.
    Raises:
        InputRefused: on all ranks, before anything was written.
        RunFailed: on all ranks, where the run cannot go on.
    """
    checked = served or launched_by_us()
    over = threading.Event() if checked else watch_next_rank(mpi, "--resume goes on from the newest checkpoint")
    try:
        code, folder, report = _train_checked(
            request, mpi, threads, served=served, checked=checked, is_orphan=is_orphan
        )
    finally:
        over.set()
    if checked or not (code or report):
        return code
    return _leave(folder, leads=mpi.rank == 0, code=code, report=report)


def _train_checked(
    request: TrainRequest, mpi: Any, threads: int, *, served: bool, checked: bool, is_orphan: Callable[[], bool]
) -> tuple[int, Path, bool]:
    """The exit code of the run, its folder, and whether its report is due; see `train_together`."""
    prepared, folder, held, done, warnings = _checked_together(request, mpi, checked=checked, alone=not served)
    request = replace(request, warnings=(*request.warnings, *warnings))
    if done:
        if mpi.rank == 0:
            print(printable(done))
        return 0, folder, request.report and not (folder / REPORT).exists()
    if not checked:  # else the parent process writes the log
        log_failures(folder / LOG)
    heartbeat = Heartbeat(folder, mpi=mpi, seconds=request.watchdog_seconds, is_orphan=is_orphan)
    try:
        heartbeat.start()
        start_watchdog(heartbeat)
        prepared = prepared or _prepare_as_rank_0(request, ranks=mpi.size)
        from trainers.training.train import train_as_rank  # and Chainer

        with folder_required(folder):
            code = train_as_rank(
                prepared,
                request,
                folder,
                mpi=mpi,
                launched_by_us=checked and not served,
                threads=threads,
                heartbeat=heartbeat,
            )
    except RunFailed:
        heartbeat.finish()
        if mpi.rank == 0 and request.report and not checked:
            report_failure(folder)
        raise
    except InputRefused as error:  # on this rank alone, perhaps: others must not wait for it
        raise RankFailed(str(error)) from error
    except SystemExit as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    heartbeat.finish()
    if held is not None:
        held.close()
    return code, folder, request.report


def _prepare_as_rank_0(request: TrainRequest, *, ranks: int) -> Prepared:
    """What `prepare` returns on another rank than 0, which was not refused.

    Raises:
        RankFailed: this rank is; the message names what may differ.
    """
    try:
        return prepare(request, workers=ranks)
    except InputRefused as error:
        what = "rank 0 was not refused: all hosts need the same working directory, files and environment"
        raise RankFailed(f"{error}\n{what}") from error


def report_run(folder: Path) -> int:
    """Write the report page, once the ranks have freed their cores; returns the exit code."""
    try:
        write_report(folder)
    except Exception as error:
        print_error(error_text(error), end="")
        way_on = f"kilobatch report {quote(str(folder))}"
        print_error(f"kilobatch: the run has ended, but its report cannot be written; to try again: {way_on}")
        return EXIT_FAILED
    return 0


def report_failure(folder: Path) -> None:
    """Write the report of a run that failed after an update, else that of the session before would stay."""
    from recipes.reports.page import write_page
    from recipes.reports.record import open_run

    with suppress(InputRefused, OSError, TypeError):  # the failure, which may be that of the folder, is told already
        if len((run := open_run(folder)).updates):
            write_page([run], folder / REPORT)


def _leave(folder: Path, *, leads: bool, code: int, report: bool) -> int:
    """Leave a run where no parent of ours can draw its report: rank 0 does, and leaves last, with the exit code.

    The others leave with 0 at once: when a rank leaves with another code, mpiexec and `srun --kill-on-bad-exit` kill
    those that are still there, and the job would end with the code of a kill. The report comes when they have freed
    their cores, but first after a signal: if the job was cancelled, MPI_Finalize waits for srun until Slurm kills it.

    Returns:
        the exit code of this process; 3 on rank 0 where the report cannot be written.
    """
    from mpi4py import MPI

    report = report and leads
    if report and code == EXIT_STOPPED:
        code, report = report_run(folder) or code, False
    MPI.Finalize()
    sys.excepthook = sys.__excepthook__  # there are no ranks left to abort
    if not leads:
        return 0
    code = (report_run(folder) if report else 0) or code
    if code:
        time.sleep(_OTHERS_SECONDS)
    return code


def _checked_together(
    request: TrainRequest, mpi: Any, *, checked: bool, alone: bool
) -> tuple[Prepared | None, Path, IO[bytes] | None, str, list[str]]:
    """What `prepare` and `lock_folder` return, on rank 0, the run's folder and `nothing_left`, on all, and warnings.

    The warnings are those of rank 0, which notes them.

    Rank 0 checks everything for all, so that wrong input is reported once; all ranks raise InputRefused.
    """
    prepared, folder, held, done, warnings, complaint = None, None, None, "", [], None
    if mpi.rank == 0:
        try:
            if request.workers not in (None, mpi.size):
                ranks = f"{counted(mpi.size, 'rank')} {'were' if mpi.size > 1 else 'was'}"
                what = f"-n {request.workers} was asked for and {ranks} launched"
                raise LaunchError(f"{what}; {'leave -n out' if mpi.size > 1 else _WAY_OUT_OF_ONE_RANK}")
            prepared = prepare(request, workers=mpi.size)
            require_threads(prepared.plan, mpi)
            folder = request.out or default_folder(prepared.opened.recipe.name)
            if not checked and request.out is not None:  # else the parent process has checked, and begun the log there
                check_folder(request, folder, prepared)
                done = nothing_left(folder, prepared) if request.resume else ""
            if not done:
                if not checked:
                    on_gpu = prepared.plan.cluster.device == "gpu"
                    warnings = require_startable(  # others may be elsewhere
                        prepared.opened, ranks=1, is_new=not request.resume, on_gpu=on_gpu
                    )
                    folder = folder if request.out is not None else claimed(folder)
                if not checked:
                    held = lock_for_run(folder, resume=request.resume)
                    remove_old_request(folder / STOP_FILE)
                elif alone:
                    held = lock_folder(folder, shared=True)
                    if parent_is_gone():  # and another run may share the lock with its own parent
                        held.close()
                        raise FolderRefused("the process that started this run was killed")
                clear_heartbeats(folder)
                (folder / RANKS).mkdir(parents=True)
        except InputRefused as error:
            complaint = error
    folder, refused, done = mpi.bcast((folder, complaint is not None, done), root=0)
    if refused:
        raise complaint or InputRefused("rank 0 says why")
    return prepared, folder, held, done, warnings
