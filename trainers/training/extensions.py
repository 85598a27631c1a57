"""Chainer extensions, run between updates: evaluation, metrics, trace, checkpoints.

Checkpoints inside a run: the newest two and the best are kept.

`trace.jsonl`: the samples, rate and loss of every update in full precision, to check worker invariance.

Triggers, which decide when an extension runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chainer.training import Extension, Trainer

from recipes.schema.positions import last_multiple
from trainers.runs.checkpoint import checkpoint_name, prune_checkpoints, write_checkpoint
from trainers.training.evaluate import Evaluation
from trainers.training.metrics import JsonLines, Metrics

_KEPT = 2


class Checkpoints(Extension):
    """Rank 0 writes a checkpoint after an update; the other ranks go on.

    Args:
        folder: the run's `checkpoints`.
        writes: whether this rank writes.
        evaluation: its score decides which checkpoint is the best.
        metrics: gets a line for every checkpoint.
        resumed: the state of the checkpoint that a resumed run began with; None in a new run.
        identity: plain data stored in every checkpoint (the recipe's hash).
        moved: called for every file that was written.
    """

    priority = 100
    default_name = "checkpoints"

    def __init__(
        self,
        folder: Path,
        *,
        writes: bool,
        evaluation: Evaluation,
        metrics: Metrics,
        resumed: dict[str, Any] | None,
        identity: dict[str, Any],
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._writes = writes
        self._evaluation = evaluation
        self._metrics = metrics
        self._identity = identity
        self._moved = moved
        self.best: dict[str, Any] | None = resumed and resumed["best"]
        self.last: str | None = resumed and checkpoint_name(resumed["update"])

    def __call__(self, trainer: Trainer) -> None:
        updater = trainer.updater
        name = checkpoint_name(updater.iteration)
        if name == self.last:
            return
        self.last = name
        score = self._evaluation.score_after(updater.iteration)
        if score is not None and (self.best is None or score.accuracy > self.best["accuracy"]):
            self.best = {"checkpoint": name, "accuracy": score.accuracy, "loss": score.loss}
        pending = updater.pending_arrays()  # all ranks call this together, and wait for the arrays
        if self._writes:
            state = {
                "update": updater.iteration,
                "samples": updater.plan.timeline.samples_at(updater.iteration),
                "epoch": updater.epoch_detail,
                "best": self.best,
                "updater": updater.state,
                **self._identity,
            }
            optimizer = updater.get_optimizer("main")
            averages = updater.averaged and updater.averaged.arrays
            kept = {"state": state, "averages": averages, "pending": pending, "moved": self._moved}
            write_checkpoint(self._folder, model=optimizer.target, optimizer=optimizer, **kept)
            best = self.best and self.best["checkpoint"]
            prune_checkpoints(self._folder, upto=updater.iteration, keep=_KEPT, best=best)
        self._metrics.write("checkpoint", name, update=updater.iteration, epoch=updater.epoch_detail)
        self._metrics.restart_clock()


class Trace(Extension):
    """Writes a line an update: progress, rate, loss, and the samples in stream order with a digest of their images.

        images_sha256 = SHA-256 over the 32-byte SHA-256 digests, in stream order, of each image as the model gets it
                        (C order, float32 CHW, mixed where the recipe mixes)

    Bytes on the wire: about 60 a sample and 80 a rank, all to rank 0, each update.

    Args:
        path: the run's `trace.jsonl`, appended to by rank 0.
        mpi: communicator of all workers.
    """

    priority = 260
    trigger = (1, "iteration")

    def __init__(self, path: Path, mpi: Any) -> None:
        self._mpi = mpi
        self._lines = JsonLines(path, writes=mpi.rank == 0)

    def __call__(self, trainer: Trainer) -> None:
        record = trainer.updater.record
        shares = self._mpi.gather(record.seen, root=0)
        if shares is None:
            return
        seen = sorted((sample for share in shares for sample in share), key=lambda sample: sample.position)
        assert [sample.position for sample in seen] == list(range(record.global_batch_size))
        self._lines.write(
            {
                "update": record.update,
                "epoch": record.epoch,
                "samples": record.samples,
                "sample_ids": [sample.index for sample in seen],
                "images_sha256": hashlib.sha256(b"".join(sample.digest for sample in seen)).hexdigest(),
                "learning_rate": record.learning_rate,
                "momentum": record.momentum,
                "global_batch_size": record.global_batch_size,
                **({} if record.image_size is None else {"image_size": record.image_size}),
                "loss": record.loss,
            }
        )

    def finalize(self) -> None:
        """Close the file."""
        self._lines.close()


@dataclass(frozen=True, kw_only=True)
class Every:
    """Fires after the first update that reaches each multiple of `epochs`, and after the last update of the run.

    Args:
        epochs: above 0, or `update` for every update.
        num_updates: updates of the whole run.
    """

    epochs: float | Literal["update"]
    num_updates: int

    def __call__(self, trainer: Trainer) -> bool:
        updater = trainer.updater
        if self.epochs == "update" or updater.iteration == self.num_updates:
            return True
        return last_multiple(updater.epoch_detail, self.epochs) > last_multiple(
            updater.previous_epoch_detail, self.epochs
        )


class AnyOf:
    """Fires where any of several triggers fires.

    Args:
        triggers: stateless, because a later one is not called if an earlier one fires.
    """

    def __init__(self, *triggers: Callable[[Trainer], bool]) -> None:
        self._triggers = triggers

    def __call__(self, trainer: Trainer) -> bool:
        return any(trigger(trainer) for trigger in self._triggers)
