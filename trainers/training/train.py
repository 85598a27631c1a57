"""One run on one rank: `train_as_rank` builds it, lets the trainer update it, and ends it. All ranks call it."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import chainer
import numpy as np
from chainer.training import Trainer

from recipes.errors import InputRefused
from recipes.planning.forecast import forecast_tree
from recipes.planning.planner import Plan
from recipes.planning.stream import stream_of
from recipes.reading.identity import identity_ids
from recipes.reading.load import chain_of
from recipes.reading.open import CODE
from recipes.reports.wording import counted
from recipes.schema.image_size import image_sizes
from recipes.sharing.canonical import digest_of
from trainers import kernels
from trainers.augmentations import decoders
from trainers.communicators.tree_sum import TreeSum
from trainers.datasets.bad_images import TooManyBadImages, limit_of
from trainers.datasets.loader import StreamIterator
from trainers.datasets.loader_process import LoaderProcess
from trainers.datasets.loader_workers import LoaderWorkers, choose_workers
from trainers.kernels.threads import num_threads
from trainers.models.batch_norm import NormGroups
from trainers.optimizers.weight_average import AveragedWeights
from trainers.runs.checkpoint import load_into, refuse_foreign
from trainers.runs.errors import EXIT_STOPPED, NotFinite, Overflow, RunFailed
from trainers.runs.heartbeat import Heartbeat
from trainers.runs.identity import identity_of, own_code, write_identity
from trainers.runs.memory import collect_new_garbage, peak_memory, reset_peak
from trainers.runs.metrics_file import truncate_records
from trainers.runs.mpi_ranks import command_line
from trainers.runs.phase_clock import RankSeconds
from trainers.runs.progress_lines import EVERY_SECONDS, ProgressLines, RunState
from trainers.runs.run_folder import (
    CHECKPOINTS,
    METRICS,
    PROFILE,
    TRACE,
    configure_logging,
    dataset_facts,
    log_end,
    write_run,
)
from trainers.runs.stop_request import StopRequest
from trainers.training.build import Parts, build, build_exchange, build_feed, ordered, sizes_of
from trainers.training.device import gpu_facts, notes_on, take_device
from trainers.training.environment import (
    changed_warnings,
    crowded_warnings,
    environment,
    mixed_kernels_warning,
    slurm_job,
    this_rank,
)
from trainers.training.equal_ranks import WeightsDiffer, require_equal_weights, require_one_recipe, why_weights_differ
from trainers.training.evaluation_point import EvaluationPoint, OptimizersPoint
from trainers.training.exact_mode import broken_since, hold_on_gpu, unlike_hosts
from trainers.training.extensions.checkpoints import Checkpoints, read_together
from trainers.training.extensions.evaluation import Evaluation, Every, going_on, score
from trainers.training.extensions.gpu_profile import GpuProfile, nsys_command
from trainers.training.extensions.gradient_exchange import ExchangeLine
from trainers.training.extensions.metrics import Metrics
from trainers.training.extensions.profile import Profile, profiled_updates
from trainers.training.extensions.skipped_images import SkippedImages
from trainers.training.extensions.trace import Trace
from trainers.training.request import Prepared, TrainRequest
from trainers.training.scored_samples import gather_samples, write_samples
from trainers.training.updater import RecipeUpdater

log = logging.getLogger("kilobatch")
_FIRST = 300  # priority of extensions that run before all others
_AFTER_EVALUATION = 110  # of the recipe's extensions: above that of checkpoints


def train_as_rank(
    prepared: Prepared,
    request: TrainRequest,
    folder: Path,
    *,
    mpi: Any,
    launched_by_us: bool,
    threads: int,
    heartbeat: Heartbeat,
) -> int:
    """Train as one of the ranks of `mpi`; all of them call this together, once for each run.

    Bytes on the wire, beside those of updates, extensions and checks: where it resumes, the checkpoint from rank 0 to
    all; about 100 from each rank to rank 0 when it begins, and 70 when it ends.

    Args:
        folder: of the run.
        launched_by_us: whether the ranks' stdout is the log of the run.
        threads: of BLAS and OpenMP on each rank, for the log.
        heartbeat: this rank's, already started.
    Returns:
        the exit code: 0, or 4 where a signal or a stop file ended the run.
    Raises:
        RunFailed: on all ranks, where the run cannot go on.
    """
    configure_logging(
        folder, rank=mpi.rank, to_file=not launched_by_us, quiet=request.verbosity < 0 and not launched_by_us
    )
    job = slurm_job()
    log.info("run: %s%s", folder, f", job {job['job']} of Slurm" if job else "")
    if on_cpu := prepared.plan.cluster.device == "cpu":
        kernels.follow(None)
    decoders.use(None)  # both of the environment, whatever this process did before
    read = {"recipe": prepared.opened.tree, "cluster": repr(prepared.plan.cluster)}
    require_one_recipe(digest_of(read), mpi)
    whys = mpi.allgather(prepared.plan.why_not_exact)  # hosts may have other environments
    why = next(filter(None, whys), None) or (unlike_hosts(mpi) if on_cpu else None)  # GPUs: once they are taken
    if prepared.plan.exact and why is not None:
        if request.exact:
            raise RunFailed(f"--exact cannot be held: {why}, or leave --exact out")
        prepared = replace(prepared, plan=prepared.plan.without_exact(why, request.micro_batch_size))
    divisions = mpi.bcast([planned.division for planned in prepared.plan.segments], root=0)
    prepared = replace(prepared, plan=prepared.plan.divided_as(divisions))  # hosts may know other costs of the model
    run = _Run(prepared, request, folder, mpi, threads, heartbeat)
    try:
        run.start()
    except RunFailed:  # on all ranks, which may do more runs
        run.release()
        raise
    collect_new_garbage()
    try:
        run.trainer.run(show_loop_exception_msg=False)
        run.updater.settle()
    except (NotFinite, Overflow, TooManyBadImages, WeightsDiffer) as error:  # on all ranks
        raise run.failed(error) from error
    finally:
        gc.unfreeze()
    code = run.end()
    run.close()
    return code


class _Run:
    """The objects of one run on one rank, and its beginning and end."""

    def __init__(
        self, prepared: Prepared, request: TrainRequest, folder: Path, mpi: Any, threads: int, heartbeat: Heartbeat
    ) -> None:
        self.opened, self.plan = opened, plan = prepared.opened, prepared.plan
        self.prepared, self.request, self.folder, self.threads = prepared, request, folder, threads
        self.mpi, self.heartbeat = mpi, heartbeat
        self.leads = mpi.rank == 0
        self.ids: dict[str, str | None] = {}
        self.drifting = why_weights_differ(plan.cluster.exchange, mpi)
        self.local = opened.recipe.updater.local_steps is not None  # each rank trains weights of its own
        reset_peak()
        self.device = take_device(plan.cluster.device, mpi)
        if self.device.xp is not np:
            chainer.global_config.cudnn_deterministic = plan.exact
            if plan.exact:
                hold_on_gpu(mpi, folder if request.resume else None)
        parts = ordered(build(opened.recipe, opened.dataset))
        parts.model.to_device(self.device)
        self.parts = replace(parts, loss=heartbeat.marking(parts.loss))
        self.loader, self.loads_by = self._loader(parts)
        self.norm_groups = NormGroups(opened.recipe.evaluation, TreeSum(mpi) if plan.exact else None)
        self.norm_groups.install(self.parts.model)
        self.averaged = self._averaged()
        self.stop_request = StopRequest(folder, watches_file=self.leads)
        self.updater = self._updater(self.parts)
        heartbeat.current_update = lambda: self.updater.iteration
        self.end_update = min(prepared.stop_after_update or plan.timeline.num_updates, plan.timeline.num_updates)

    def _loader(self, parts: Parts) -> tuple[LoaderWorkers, str]:
        """The workers that load this rank's samples, and what they are, in words."""
        request, moved = self.request, self.heartbeat.moved
        kind, number = choose_workers(
            [parts.load_train, parts.load_eval],
            kind=request.loader,
            number=request.loader_workers,
            threads=num_threads(),
            on_gpu=self.device.xp is not np,
            image_size=image_sizes(self.opened.recipe)[-1],
        )
        if kind == "threads":
            said = counted(number, "loader thread") if number else "no loader workers"
            return LoaderWorkers(number, moved=moved), said
        tree = {"train": request.as_tree(), "recipe_sha256": digest_of(self.opened.tree)}
        name = f"loader worker {{}} of rank {self.mpi.rank} on {socket.gethostname()}"

        def place(number: int) -> LoaderProcess:
            return LoaderProcess(tree, name=name.format(number))

        return LoaderWorkers(number, place=place, moved=moved), f"{number} loader process{'es' if number > 1 else ''}"

    def _averaged(self) -> AveragedWeights | EvaluationPoint | None:
        """The weights that are evaluated, where they are not those that are trained."""
        recipe, parts = self.opened.recipe, self.parts
        if hasattr(recipe.optimizer, "evaluated"):
            there = OptimizersPoint(
                parts.optimizer,
                norm_groups=self.norm_groups,
                plan=self.plan,
                samples=lambda: self._iterator(parts, plan=self.updater.get_iterator("main").plan),
                done=lambda: self.updater.iteration,
                mpi=self.mpi,
            )
            return EvaluationPoint(parts.model, there)
        if self.local:
            return EvaluationPoint(parts.model, lambda: self.updater.exchange.average_model())
        average = recipe.weight_average
        return None if average is None else AveragedWeights(parts.model, average)

    def _iterator(self, parts: Parts, *, plan: Plan, **options: Any) -> StreamIterator:
        """This rank's samples of every update."""
        recipe, end = self.opened.recipe, self.opened.recipe.augmentation.end
        options |= {"plan": plan, "rank": self.mpi.rank, "stream": stream_of(recipe, self.opened.dataset)}
        options |= {"load": parts.load_train, "mixing": parts.mixing, "late": end and (end.at, parts.load_late)}
        return StreamIterator(workers=self.loader, **options)

    def _updater(self, parts: Parts) -> RecipeUpdater:
        recipe, feed = self.opened.recipe, build_feed(self.opened.recipe, parts, self.device)
        return RecipeUpdater(
            self._iterator(parts, plan=self.plan, trace=self.request.trace, feed=feed),
            parts.optimizer,
            loss=parts.loss,
            plan=self.plan,
            exchange=build_exchange(self.plan.cluster.exchange, parts, self.mpi, recipe=recipe, exact=self.plan.exact),
            mpi=self.mpi,
            norm_groups=self.norm_groups,
            averaged=self.averaged,
            measure_noise=self.request.measure_noise,
            stop_asked=lambda: self.stop_request() or self.heartbeat.orphaned,
        )

    def start(self) -> None:
        """Load the checkpoint if resuming, write the run's files, set up the trainer."""
        folder = self.folder
        state, notes = self._resumed_state() if self.request.resume else (None, [])
        if state is None and (init := self.opened.recipe.init) is not None:
            from trainers.models.weight_names import begin_with  # and ChainerCV

            begin_with(self.parts.model, init)
            if self.averaged is not None:
                self.averaged.restart()
            drawn = f", without {', '.join(init.except_)}" if init.except_ else ""
            notes.append(f"begins with the weights of {init.weights}, SHA-256 {init.sha256}{drawn}")
        self._equal()
        unmeasured = self.plan.without_noise_scale if self.request.measure_noise else ()
        notes += [*self._notes_on_bits(), *notes_on(self.device, self.opened.recipe.precision.compute)]
        late = self.plan.warnings_after(self.updater.iteration)
        warnings = (*self.request.warnings, *self.heartbeat.warnings, *late, *unmeasured)
        notes += [f"warning: {warning}" for warning in (*warnings, self.drifting) if warning]
        if self.leads:
            (folder / CHECKPOINTS).mkdir(exist_ok=True)
            notes += truncate_records(folder, self.updater.iteration)
        notes += [] if self.device.xp is not np else crowded_warnings(self.mpi, self.threads)
        ranks = self.mpi.gather(this_rank(self.mpi.rank, gpu_facts(self.device)), root=0)
        if self.leads:
            notes += mixed_kernels_warning(ranks)
            notes += self._write_run(ranks)
        self.mpi.Barrier()  # the run's files are there before anything can fail
        self.metrics = self._metrics()
        self.trainer = self._trainer(resumed=state)
        name = self.opened.recipe.name
        workers, threads = counted(self.mpi.size, "worker"), counted(self.threads, "thread")
        training = f"training {name} on {workers}, {threads} each, {self.loads_by}, {kernels.in_use()} kernels, "
        end = max(self.end_update, self.updater.iteration)  # a checkpoint may lie behind --stop-after
        training += f"updates {self.updater.iteration} to {end} of {self.plan.timeline.num_updates}"
        self.metrics.record("run_start", name, **self._reached, workers=self.mpi.size, notes=notes, training=training)
        for note in (*notes, training):
            log.info("%s", note)

    def _notes_on_bits(self) -> list[str]:
        """Whether the bits of the run depend on the number of ranks, and why; sets `exact`, which the run records."""
        self.exact, why = self.plan.exact, self.plan.why_not_exact
        if not self.exact:
            return [f"the bits of this run depend on the number of ranks: {why}"]
        broken = broken_since(self.folder) if self.request.resume and self.leads else None
        self.exact = broken is None
        return [f"warning: this run's bits are not those of one that began here: {broken}"] if broken else []

    def _resumed_state(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Rank 0 reads the newest whole checkpoint, all ranks load it; returns its state, and notes for the user."""
        path, content, own, complaints = read_together(self.folder, self.mpi)
        notes, folder = [], self.folder / CHECKPOINTS
        if self.leads:
            notes = [f"warning: passed over {complaint}" for complaint in complaints]
            if path is None:
                notes.append(f"nothing to resume: no whole checkpoint in {folder}; starting at update 0")
            else:
                notes += [f"resuming from {path.name}", *changed_warnings(self.folder)]
        if content is None:
            return None, notes
        averages = self.averaged and self.averaged.arrays
        with refuse_foreign(folder):
            state = load_into(self.parts.model, self.parts.optimizer, content, averages=averages)
            self.updater.restore(state["updater"], content.pending, own)
            _ = state["best"]  # read later
        iterator = self.updater.get_iterator("main")
        iterator.update = self.updater.iteration = state["update"]
        return state, notes

    def _write_run(self, ranks: list[dict[str, Any]]) -> list[str]:
        """Write the run's files; returns what has changed of code and data, in words."""
        opened, folder = self.opened, self.folder
        plan = replace(self.plan, model=self.plan.model or sizes_of(self.parts.model, opened.recipe))
        time = forecast_tree(plan)
        files = own_code([opened.tree, opened.dataset_tree], opened.code_folders)
        now = identity_of(opened)
        self.ids = identity_ids(opened, now)
        write_run(
            folder,
            recipe=opened.tree,
            origins=opened.origins,
            plan=plan.as_tree() | ({} if time is None else {"forecast": time}),
            dataset=dataset_facts(opened.dataset),
            dataset_tree=opened.dataset_tree,
            environment=environment(
                ranks=ranks,
                threads=self.threads,
                loader=self.loads_by,
                fingerprint=opened.dataset.reader.fingerprint(opened.dataset.root),
                exact=self.exact,
                ids=self.ids,
            ),
            command=command_line(),
            sources=[path for path, _ in chain_of(opened.path)],
        )
        update = self.updater.iteration
        warnings = write_identity(folder, now, files, update=update)
        copies = [name for name, file in files.items() if CODE in file.parts]
        notes = [f"own code from the copy of a run: {', '.join(copies)}"] if copies else []
        return notes + warnings

    def _metrics(self) -> Metrics:
        """The metrics of the run, with the seconds of all ranks; rank 0 writes them."""
        rounds = not self.plan.exact and self.updater.exchange.wire.name != "float32"
        ranks = RankSeconds(self.updater.clock, self.mpi, counts_lost=rounds)
        state = RunState.of(self.plan.timeline, self.end_update)
        lines = ProgressLines(log.info, state, every_seconds=EVERY_SECONDS[self.request.verbosity])
        self.state, observe = state, lambda line: lines.take([line])  # on rank 0
        return Metrics(self.folder / METRICS, writes=self.leads, ranks=ranks, memory=self._peaks, observe=observe)

    def _trainer(self, resumed: dict[str, Any] | None) -> Trainer:
        folder, timeline = self.folder, self.plan.timeline
        trainer = Trainer(self.updater, lambda trainer: self._ends(), out=str(folder))
        timed = self.updater.clock.around
        self.evaluation = evaluation = Evaluation(
            timed("evaluation", self._score), self.metrics, stop_at=self.opened.recipe.stop_at, resumed=resumed
        )
        self.checkpoints = Checkpoints(
            folder / CHECKPOINTS,
            writes=self.leads,
            every=Every(epochs=self.prepared.checkpoint_every, timeline=timeline),
            evaluation=evaluation,
            metrics=self.metrics,
            resumed=resumed,
            identity={"recipe": self.opened.recipe.name, "ids": self.ids},
            moved=self.heartbeat.moved,
        )
        recipe = self.opened.recipe.evaluation
        evaluates = Every(epochs=recipe.every, timeline=timeline, offset=recipe.offset)

        def saves(trainer: Trainer) -> bool:
            return self._ends() or self.checkpoints.every(trainer)

        trainer.extend(lambda _: self.heartbeat.updated(), name="heartbeat", trigger=(1, "iteration"), priority=_FIRST)
        trainer.extend(self.metrics)
        if not self.plan.exact:  # exact mode uses no communicator's sum, and overlaps nothing
            component = self.plan.cluster.exchange.communicator
            name = type(component).__name__ if component else "Auto"  # null means Auto, see `build_exchange`
            trainer.extend(ExchangeLine(name, self.updater.exchange, self.metrics))
        if number := self.request.profile:
            updates = profiled_updates(number, begin=self.updater.iteration, end=self.end_update)
            gpu = None
            if self.device.xp is not np:
                gpu = GpuProfile(self.updater.clock)
                log.info("to see kernels on a timeline: %s kilobatch train ...", nsys_command(folder))
            trainer.extend(Profile(folder / PROFILE, self.updater.clock, self.mpi, updates=updates, gpu=gpu))
        if self.request.trace:
            trainer.extend(Trace(folder / TRACE, self.mpi))
        trainer.extend(evaluation, trigger=evaluates)
        if self.parts.skipped:
            limit = limit_of(self.opened.dataset)
            trainer.extend(SkippedImages(self.parts.skipped, limit=limit, metrics=self.metrics, mpi=self.mpi))
        self._extend_by_recipe(trainer, resumed)
        if not self.drifting:
            kept = self.checkpoints

            def keep(trainer: Trainer) -> None:
                self._equal()  # again: an extension may have changed weights, or just now ended the run
                kept(trainer)

            trainer.extend(lambda trainer: self._equal(), name="equal weights", trigger=evaluates, priority=_FIRST)
            trainer.extend(timed("checkpoint", keep), name=kept.default_name, priority=kept.priority, trigger=saves)
        return trainer

    def _extend_by_recipe(self, trainer: Trainer, resumed: dict[str, Any] | None) -> None:
        """Add the recipe's `extensions`, with their states of the checkpoint."""
        for index, component in enumerate(self.opened.recipe.extensions):
            extension, every = component.build(), getattr(component, "every", None)
            trigger = getattr(extension, "trigger", (1, "iteration"))
            if every is not None:
                trigger = Every(epochs=every, timeline=self.plan.timeline)
            if resumed and hasattr(extension, "state"):
                extension.state = resumed["extensions"][index]
            self.checkpoints.extensions.append(extension)
            for call, name in (extension, type(component).__name__), (lambda _: self.metrics.restart_clock(), "clock"):
                own = going_on(trigger, self.updater)
                trainer.extend(call, name=name, trigger=own, priority=_AFTER_EVALUATION)

    def _equal(self) -> None:
        self.updater.settle()
        if not self.local:
            require_equal_weights(self.parts.model, self.mpi, update=self.updater.iteration)

    def _score(self) -> Any:
        parts = self.parts
        self.updater.settle()
        with self.averaged.in_place() if self.averaged else contextlib.nullcontext():
            return score(
                parts.model,
                load=parts.load_eval,
                workers=self.loader,
                num_samples=parts.num_eval,
                loss=parts.loss,
                mpi=self.mpi,
                whole_forwards=self.plan.exact,
                settings=self.opened.recipe.evaluation,
            )

    def _ends(self) -> bool:
        done = self.evaluation.goal is not None or self.updater.iteration >= self.end_update
        return done or self.updater.stopping

    def failed(self, error: RunFailed) -> RunFailed:
        """The error for the user: the cause, and where the last good checkpoint is."""
        last = self.checkpoints.last and self.folder / CHECKPOINTS / self.checkpoints.last
        update, cause = self.updater.iteration, type(error).__name__
        self.metrics.record("run_stop", "failed", update=update, reason=str(error), cause=cause, **self._peaks())
        self.close()
        return RunFailed(f"{error}. Last good checkpoint: {last or 'none was written yet'}")

    def end(self) -> int:
        """Write the last line of the metrics; returns the exit code."""
        self.heartbeat.ending()
        goal = self.evaluation.goal
        whole = goal is not None or self.updater.iteration >= self.plan.timeline.num_updates
        stopped = self.updater.stopping and not whole and self.updater.iteration < self.end_update
        how = "success" if whole else "stopped"
        by = self.stop_request.by if self.updater.asked_to_stop else "extension"
        reason = "goal reached" if goal else by if stopped else "" if whole else "--stop-after"
        self.mpi.Barrier()  # every rank has done its part before the run counts as ended
        more = self._peaks() | ({} if goal is None else {"goal": goal})
        self._write_samples()
        self.metrics.record("run_stop", how, reason=reason, best=self.checkpoints.best, **self._reached, **more)
        log_end(self.folder, self.state.ending)
        return EXIT_STOPPED if stopped else 0

    def _write_samples(self) -> None:
        """Write what the last evaluation says of classes and samples, if the run has just made one."""
        score = self.evaluation.score_after(self.updater.iteration)
        samples = None if score is None else gather_samples(score, self.mpi)
        if samples is not None:  # on rank 0
            opened, reached = self.opened, {**self._reached, "split": "run"}
            try:
                write_samples(self.folder, samples, recipe=opened.recipe, dataset=opened.dataset, reached=reached)
            except (OSError, InputRefused) as error:  # the run is whole without it
                log.warning("warning: the report shows no classes: %s", error)

    @property
    def _reached(self) -> dict[str, Any]:
        """Updates and epochs done, for a line of the metrics."""
        return {"update": self.updater.iteration, "epoch": self.updater.epoch_detail}

    def _peaks(self) -> dict[str, list[int]]:
        """The most memory that each rank has held, by kind."""
        ranks = self.mpi.gather(peak_memory(self.device), root=0)
        return {kind: [rank[kind] for rank in ranks] for kind in ranks[0]} if self.leads else {}

    def close(self) -> None:
        """The run is over; all ranks call this together."""
        self.metrics.close()
        self.release()

    def release(self) -> None:
        """Release what the next run of this process must not find; all ranks call this together."""
        self.stop_request.close()
        self.loader.close()
        self.updater.close()
