"""Exact evaluation, inside a run and after it: each sample once, for any number of workers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import chainer
import numpy as np
from chainer import backend, functions
from chainer.training import Extension, Trainer, get_trigger
from chainer.training.triggers import IntervalTrigger, ManualScheduleTrigger, OnceTrigger

from recipes import schema
from recipes.errors import InputRefused
from recipes.planning.timeline import Timeline
from trainers.datasets.loader_workers import LoadedAhead, LoaderWorkers, LoadImages, Loading
from trainers.metrics import figures_of
from trainers.runs.errors import EvaluationOutOfMemory, RankFailed
from trainers.runs.memory import is_out_of_memory
from trainers.training.extensions.metrics import Metrics

log = logging.getLogger("kilobatch")
_CHUNK = 100  # samples a forward


@dataclass(frozen=True, kw_only=True)
class Score:
    """Accuracy and mean loss over each evaluation sample once.

    Args:
        samples: of this worker's share, in order from sample `first` on: (samples, 3), the label, the class that the
            model takes it for, and its cross-entropy.
        top: of these samples, where asked for: (samples, top), the most probable classes, most probable first, and
            their probabilities.
        figures: those of the recipe's metrics, by name.
    """

    accuracy: float
    loss: float
    num_samples: int
    first: int = field(default=0, compare=False)
    samples: np.ndarray | None = field(default=None, compare=False, repr=False)
    top: tuple[np.ndarray, np.ndarray] | None = field(default=None, compare=False, repr=False)
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, float]:
        """Accuracy, loss and those of the metrics, by name."""
        return {"accuracy": self.accuracy, "loss": self.loss, **self.figures}


class Evaluation(Extension):
    """Scores the model and writes `eval_accuracy`, `eval_loss` and one of each metric; `goal` where it is reached.

    Args:
        score: computes the score, called by all ranks together.
        metrics: where the lines go.
        stop_at: the goal of the run; None: it has none.
        resumed: the state of the checkpoint that a resumed run began with; None in a new run.
    Attributes:
        goal: accuracy, loss, metrics, update, epoch and samples of the evaluation that reached the goal; None before.
    """

    priority = 240
    default_name = "evaluation"

    def __init__(
        self,
        score: Callable[[], Score],
        metrics: Metrics,
        *,
        stop_at: schema.StopAt | None = None,
        resumed: dict[str, Any] | None = None,
    ) -> None:
        self._score = score
        self._metrics = metrics
        self._stop_at = stop_at
        # A branch goes on from a checkpoint that has reached the goal of its parent, and has none itself.
        self.goal: dict[str, Any] | None = resumed.get("goal") if resumed and stop_at else None
        self._scores: dict[int, Score] = {}

    def score_after(self, update: int) -> Score | None:
        """The score of the weights after `update` updates, None if they were not evaluated."""
        return self._scores.get(update)

    def __call__(self, trainer: Trainer) -> None:
        updater = trainer.updater
        score = self._score()
        self._scores = {updater.iteration: score}
        reached = {
            "update": updater.iteration,
            "epoch": updater.epoch_detail,
            "samples": updater.plan.timeline.samples_at(updater.iteration),
        }
        for name, value in score.named.items():
            self._metrics.record(f"eval_{name}", value, **reached)
        metrics = updater.plan.recipe.evaluation.metrics
        if self._stop_at and self.goal is None and self._stop_at.reached(score.named, metrics=metrics):
            self.goal = {**score.named, **reached}
            self._metrics.record("goal", score.accuracy, loss=score.loss, **score.figures, **reached)
        self._metrics.restart_clock()


def score(
    model: chainer.Chain,
    *,
    load: LoadImages,
    num_samples: int,
    loss: Callable[..., chainer.Variable],
    mpi: Any,
    workers: LoaderWorkers | None = None,
    whole_forwards: bool = False,
    settings: schema.Evaluation | None = None,
    top: int = 0,
) -> Score:
    """Score a model over samples 0 ... num_samples - 1, split contiguously over the workers.

    Sums over samples are added up over the workers and divided once, so that uneven shares are exact. All workers call
    this together. Bytes on the wire: about 9 a forward and 30 a worker, from each worker to each. If memory runs out on
    a worker, only its own forwards become smaller. With metrics all logits go to the first worker: 4 bytes for each
    class of a sample.

    Args:
        model: float32 NCHW -> logits, on any device.
        load: (epoch, index) -> (the model's input, label).
        num_samples: of the evaluation set.
        loss: (logits, labels) -> mean over the samples given.
        mpi: communicator of all workers.
        workers: load ahead; None loads on the thread that asks.
        whole_forwards: split the samples into the forwards of a single worker and deal these out: the score then has
            the same bits on any number of workers, and some workers score up to 100 samples more than others.
        settings: of the recipe: whether the logits of the mirror images, left and right exchanged, are added, and
            metrics; None: neither.
        top: how many of the most probable classes of each sample the score names; the softmax is that of the loss.
    Raises:
        EvaluationOutOfMemory: on this worker alone, where its forwards cannot become smaller.
    """
    flipped, metrics = (settings.flipped, settings.metrics) if settings else (False, ())
    unit = _CHUNK if whole_forwards else 1
    units = -(-num_samples // unit)
    start, stop = (min(unit * (units * rank // mpi.size), num_samples) for rank in (mpi.rank, mpi.rank + 1))
    losses, samples, first, size = [], [np.empty((0, 3))], start, _CHUNK
    tops = [(np.empty((0, top), np.int64), np.empty((0, top), np.float32))]
    all_logits = []
    ahead = LoadedAhead(
        workers or LoaderWorkers(),
        lambda indices: Loading(load, [(0, index) for index in indices], key="augmentation.eval", finish=_pair),
        lambda indices: (range(at, min(at + size, stop)) for at in range(indices.stop, stop, size)),
    )
    while first < stop:
        indices = range(first, min(first + size, stop))
        try:
            part, mean_loss, logits = _forward(model, *ahead.take(indices), loss, flipped)
            if top:
                tops.append(most_probable(logits, top))
            if metrics:
                all_logits.append(backend.CpuDevice().send(logits).astype(np.float32, copy=False))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if whole_forwards or len(indices) == 1:
                raise EvaluationOutOfMemory(samples=len(indices), exact=whole_forwards, error=error) from error
            ahead.drop()
            size = len(indices) // 2
            log.warning("memory ran out over %d samples of the evaluation: %d from here on", len(indices), size)
        else:
            first = indices.stop
            samples.append(part)
            losses.append(mean_loss * len(indices))
    own = np.concatenate(samples)
    corrects, parts = zip(*mpi.allgather((int((own[:, 0] == own[:, 1]).sum()), losses)), strict=True)
    total_loss = math.fsum(chain(*parts))  # exact, so that the order does not matter
    figures = _figures_together(metrics, all_logits, own[:, 0], mpi) if metrics else {}
    return Score(
        accuracy=sum(corrects) / num_samples,
        loss=total_loss / num_samples,
        num_samples=num_samples,
        first=start,
        samples=own,
        top=tuple(map(np.concatenate, zip(*tops, strict=True))) if top else None,
        figures=figures,
    )


def _figures_together(
    metrics: Sequence[Any], logits: Sequence[np.ndarray], labels: np.ndarray, mpi: Any
) -> Mapping[str, float]:
    """The figures of all workers' samples, which the first worker computes for all; `logits` are of each forward."""
    gathered = mpi.gather((logits, labels.astype(np.int64)), root=0)
    figures = None
    if mpi.rank == 0:
        parts, all_labels = zip(*gathered, strict=True)
        try:
            figures = figures_of(metrics, np.concatenate([*chain(*parts)]), np.concatenate(all_labels))
        except InputRefused as error:
            raise RankFailed(str(error)) from error
    return mpi.bcast(figures, root=0)


def _pair(images_NCHW: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return images_NCHW, labels


def _forward(
    model: chainer.Chain,
    images_NCHW: np.ndarray,
    labels: np.ndarray,
    loss: Callable[..., chainer.Variable],
    flipped: bool,
) -> tuple[np.ndarray, float, Any]:
    """Of each sample what `Score.samples` holds, the mean loss of all, and the logits, on the model's device."""
    logits = logits_of(model, images_NCHW, flipped=flipped)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        sent = model.device.send(labels)
        mean_loss = float(loss(logits, sent).array)
        losses = functions.softmax_cross_entropy(logits, sent, reduce="no").array
    parts = (labels, logits.array.argmax(axis=1), losses)
    columns = np.stack([backend.CpuDevice().send(part).astype(np.float64) for part in parts], axis=1)
    return columns, mean_loss, logits.array


def logits_of(model: chainer.Chain, images_NCHW: np.ndarray, *, flipped: bool) -> chainer.Variable:
    """The logits of images, on the model's device; `flipped`: those of the mirror images are added."""
    images_NCHW = images_NCHW.astype(chainer.get_dtype(), copy=False)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        logits = model(model.device.send(images_NCHW))
        if flipped:
            logits = logits + model(model.device.send(np.ascontiguousarray(images_NCHW[..., ::-1])))
    return logits


def most_probable(logits: Any, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The classes with the largest logits of each sample, the largest first, and their probabilities."""
    logits = backend.CpuDevice().send(logits).astype(np.float32, copy=False)
    classes = np.argsort(-logits, axis=1, kind="stable")[:, :top]  # of equal ones the first, as argmax takes it
    return classes, np.take_along_axis(functions.softmax(logits).array, classes, axis=1)


@dataclass(frozen=True, kw_only=True)
class Every:
    """The trigger of evaluation and of checkpoints: after the updates after which `Timeline.next_due` says it is due.

    Args:
        epochs: above 0, or `update` for every update.
        timeline: of the whole run.
        offset: epochs, see there.
    """

    epochs: float | Literal["update"]
    timeline: Timeline
    offset: float = 0.0

    def __call__(self, trainer: Trainer) -> bool:
        done = trainer.updater.iteration
        return self.timeline.next_due(self.epochs, after=done - 1, offset=self.offset) == done


def going_on(trigger: Any, updater: Any) -> Callable[[Trainer], bool]:
    """The trigger of an extension after the updates that are done; Chainer's begins at update 0 also after a resume."""
    own = copy(get_trigger(trigger))
    if isinstance(own, IntervalTrigger | ManualScheduleTrigger):
        own._previous_iteration, own._previous_epoch_detail = updater.iteration, updater.epoch_detail
    elif isinstance(own, OnceTrigger):
        own._flag_first = updater.iteration == 0
    return own
