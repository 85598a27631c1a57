"""Checkpoints of a run: the newest two and the best are kept."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chainer.training import Extension, Trainer

from recipes import schema
from recipes.reports.wording import percent
from recipes.schema.vocabulary import lower_is_better
from trainers.gradients.power_sgd import shared_out
from trainers.runs.checkpoint import (
    CheckpointContent,
    checkpoint_name,
    prune_checkpoints,
    read_newest,
    write_checkpoint,
)
from trainers.runs.errors import RunFailed
from trainers.runs.metrics_file import why_not_anew
from trainers.runs.run_folder import CHECKPOINTS, FolderRefused
from trainers.training.extensions.evaluation import Evaluation, Score
from trainers.training.extensions.metrics import Metrics, plain

log = logging.getLogger("kilobatch")
_KEPT = 2


def read_together(run: Path, mpi: Any) -> tuple[Path | None, CheckpointContent | None, dict[str, Any], list[str]]:
    """The newest whole checkpoint of a run, which rank 0 reads for all ranks; all call this together.

    Bytes on the wire: the checkpoint from rank 0 to all; to each its own part.

    Returns:
        on rank 0 the checkpoint's folder; what it holds, and what is this rank's own of it; on rank 0 what is wrong
        with newer ones.
    Raises:
        RunFailed: on all ranks, where no checkpoint is whole and the run does not begin anew, see `why_not_anew`; or
            they cannot be listed.
    """
    path, content, complaints, refused = None, None, [], ""
    if mpi.rank == 0:
        try:
            path, content, complaints = read_newest(run / CHECKPOINTS)
            refused = "" if content is not None else why_not_anew(run, complaints)
        except FolderRefused as error:  # the other ranks wait for a word
            refused = str(error)
    ranks = content.ranks if content is not None else ()
    refused, content = mpi.bcast((refused, content and content._replace(ranks=())), root=0)
    if refused:
        raise RunFailed(refused)
    return path, content, mpi.scatter(shared_out(ranks, mpi.size) if ranks else [{}] * mpi.size, root=0), complaints


class Checkpoints(Extension):
    """Rank 0 writes a checkpoint after an update; the other ranks go on.

    Args:
        folder: the run's `checkpoints`.
        writes: whether this rank writes.
        every: after which updates one is written, besides the last of a session.
        evaluation: its score decides which checkpoint is the best, among those that an uninterrupted run has too.
        metrics: gets a line for every checkpoint.
        resumed: the state of the checkpoint that a resumed run began with; None in a new run.
        identity: plain data stored in every checkpoint (the recipe's hash).
        moved: called for every file that was written.
    Attributes:
        extensions: of the recipe; checkpoints keep the `state` of those that have one.
    """

    priority = 100
    default_name = "checkpoints"

    def __init__(
        self,
        folder: Path,
        *,
        writes: bool,
        every: Callable[[Trainer], bool],
        evaluation: Evaluation,
        metrics: Metrics,
        resumed: dict[str, Any] | None,
        identity: dict[str, Any],
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._writes = writes
        self.every = every
        self._evaluation = evaluation
        self._metrics = metrics
        self._identity = identity
        self._moved = moved
        self.best: dict[str, Any] | None = resumed and resumed["best"]
        if self.best and not (folder / self.best["checkpoint"]).is_dir():
            if writes:  # as in a branch, which begins with one checkpoint of its parent
                what = f"{self.best['checkpoint']} with accuracy {percent(self.best['accuracy'])}, is not in {folder}"
                log.warning("warning: the best checkpoint, %s; from here on the best of the others counts", what)
            self.best = None
        self.last: str | None = resumed and checkpoint_name(resumed["update"])
        self._is_new = resumed is None
        self.extensions: list[Any] = []

    def states(self) -> list[Any]:
        """The `state` of each extension, None where it has none.

        Raises:
            ValueError: it is no plain data; in a new run, a key of a dict is no text, which it would be on resume.
        """
        whats = (f"the attribute `state` of {type(each).__name__}" for each in self.extensions)
        states = (getattr(each, "state", None) for each in self.extensions)
        return [plain(state, what, text_keys=self._is_new) for state, what in zip(states, whats, strict=True)]

    def __call__(self, trainer: Trainer) -> None:
        updater = trainer.updater
        name = checkpoint_name(updater.iteration)
        if name == self.last:
            return
        self.last = name
        score = self._evaluation.score_after(updater.iteration)
        if score is not None and self._may_be_best(trainer):
            self.best = better_of(self.best, name, score, updater.plan.recipe.evaluation)
        pending = updater.pending_arrays()  # all ranks call this together, and wait for the arrays
        averages = updater.averaged and updater.averaged.arrays  # likewise
        ranks = updater.own_arrays()
        if self._writes:
            state = {
                "update": updater.iteration,
                "samples": updater.plan.timeline.samples_at(updater.iteration),
                "epoch": updater.epoch_detail,
                "best": self.best,
                "updater": updater.state,
                **self._identity,
            }
            if self._evaluation.goal is not None:
                state["goal"] = self._evaluation.goal
            if self.extensions:
                state["extensions"] = self.states()
            optimizer = updater.get_optimizer("main")
            write_checkpoint(
                self._folder,
                model=optimizer.target,
                optimizer=optimizer,
                state=state,
                averages=averages,
                pending=pending,
                ranks=ranks,
                moved=self._moved,
            )
            best = self.best and self.best["checkpoint"]
            prune_checkpoints(self._folder, upto=updater.iteration, keep=_KEPT, best=best)
        self._metrics.record("checkpoint", name, update=updater.iteration, epoch=updater.epoch_detail)
        self._metrics.restart_clock()

    def _may_be_best(self, trainer: Trainer) -> bool:
        """Whether an uninterrupted run has this checkpoint too: not if only a stop has caused it."""
        updater = trainer.updater
        by_itself = updater.stopping and not updater.asked_to_stop  # an extension ends it
        ends = by_itself or updater.iteration >= updater.plan.timeline.num_updates
        return ends or self._evaluation.goal is not None or self.every(trainer)


def better_of(
    best: dict[str, Any] | None, name: str, score: Score, evaluation: schema.Evaluation
) -> dict[str, Any] | None:
    """The checkpoint `name` if its score is better than that of the best one so far, else that one."""
    by, value = evaluation.best, score.named[evaluation.best]
    sign = -1 if lower_is_better(by, evaluation.metrics) else 1
    if math.isnan(value) or (best is not None and sign * value <= sign * best.get(by, math.nan)):
        return best
    return {"checkpoint": name, "accuracy": score.accuracy, "loss": score.loss, by: value}
