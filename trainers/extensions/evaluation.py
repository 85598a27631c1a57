"""Exact evaluation inside a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chainer.training import Extension, Trainer

from trainers.extensions.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class Score:
    """Accuracy and mean loss over each evaluation sample once."""

    accuracy: float
    loss: float
    num_samples: int


class Evaluation(Extension):
    """Scores the model and writes `eval_accuracy` and `eval_loss`.

    Args:
        score: computes the score, called by all ranks together.
        metrics: where the lines go.
    """

    priority = 240
    default_name = "evaluation"

    def __init__(self, score: Callable[[], Score], metrics: Metrics) -> None:
        self._score = score
        self._metrics = metrics
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
        self._metrics.write("eval_accuracy", score.accuracy, **reached)
        self._metrics.write("eval_loss", score.loss, **reached)
        self._metrics.restart_clock()
