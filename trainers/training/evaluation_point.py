"""The weights that are evaluated where a run trains others: an optimizer's point, or the mean over the workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import chainer
import numpy as np

from recipes.planning.planner import Plan
from trainers.datasets.loader import StreamIterator, UpdateShare
from trainers.models.batch_norm import NormGroups
from trainers.models.batch_norm_statistics import Teams
from trainers.models.keyed_random import KeyedDropout
from trainers.runs.checkpoint import weights_of

_MOST_UPDATES = 50  # facebookresearch/schedule_free, issue 60


class EvaluationPoint:
    """Weights and running statistics that are evaluated in place of the model's; the counterpart of `AveragedWeights`.

    Args:
        model: its weights are replaced.
        move_to_point: gives the model the weights to evaluate; all workers call it together.
    """

    def __init__(self, model: chainer.Chain, move_to_point: Callable[[], None]) -> None:
        self._model, self._move_to_point = model, move_to_point
        self._known: dict[str, Any] | None = None

    def restart(self) -> None:
        """Other weights were loaded: compute the point anew."""
        self._known = None

    def move(self, *, epoch: float, global_batch_size: int) -> None:
        """An update has changed the weights: compute the point anew."""
        self.restart()

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of the point by path; all workers call this together."""
        if self._known is None:
            kept = self._copies()
            self._move_to_point()
            self._known = self._copies()
            self._put(kept)
        return self._known

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model is at the point."""
        point, kept = self.arrays, self._copies()
        self._put(point)
        try:
            yield
        finally:
            self._put(kept)

    def _current(self) -> dict[str, np.ndarray]:
        return {path: array for path, array in weights_of(self._model).items() if array.dtype.kind == "f"}

    def _copies(self) -> dict[str, np.ndarray]:
        return {path: array.copy() for path, array in self._current().items()}

    def _put(self, arrays: dict[str, Any]) -> None:
        for path, array in self._current().items():
            array[...] = arrays[path]


class OptimizersPoint:
    """Moves the model to the point that its optimizer evaluates, and recomputes the running statistics there.

    The running statistics of training belong to the weights of training. So the training batches of the last 50
    updates, or of the last epoch if that is fewer, pass through the model once more, forward only, in float32; the
    statistics are the mean over those updates. Dropout, norm groups and augmentation are as in training.

    Bytes on the wire: for each update that passes through the model, those of its running statistics.

    Args:
        optimizer: set up with the model; its component has `evaluated(weights, state)`.
        norm_groups: installed in the model.
        plan: of the run.
        samples: () -> this worker's share of every update.
        done: () -> number of updates made.
        mpi: communicator of all workers.
    """

    def __init__(
        self,
        optimizer: chainer.Optimizer,
        *,
        norm_groups: NormGroups,
        plan: Plan,
        samples: Callable[[], StreamIterator],
        done: Callable[[], int],
        mpi: Any,
    ) -> None:
        self._optimizer, self._norm_groups, self._plan = optimizer, norm_groups, plan
        self._samples, self._done, self._mpi = samples, done, mpi

    def __call__(self) -> None:
        """Move the model; all workers call this together."""
        component = self._optimizer.hyperparam.component
        for _, parameter in self._optimizer.target.namedparams():
            parameter.array[...] = component.evaluated(parameter.array, parameter.update_rule.state)
        timeline, last = self._plan.timeline, self._done()
        if not self._norm_groups.averages or last == 0:
            return
        epoch_ago = timeline.samples_at(last) - self._plan.dataset.num_train
        updates = range(max(0, last - _MOST_UPDATES), last)
        samples, teams = self._samples(), Teams(self._mpi)
        samples.update = next((u for u in updates if timeline.samples_at(u) >= epoch_ago), last - 1)
        for number in range(last - samples.update):
            share = samples.next()
            self._forward(share, teams.of(share.division))
            keep = number / (number + 1)
            self._norm_groups.update_running_statistics(self._mpi, share.segment.global_batch_size, keep=keep)
        samples.finalize()
        teams.close()

    def _forward(self, share: UpdateShare, team: Any) -> None:
        """Forward of this worker's share of an update; in exact mode group by group, each of one fixed shape."""
        model, groups = self._optimizer.target, self._norm_groups
        groups.begin_update(share.division, team)
        for loaded in share.micro_batches:
            for each in loaded.by_group if self._plan.exact else [loaded]:
                groups.begin_micro_batch(each.part)
                keyed = KeyedDropout(model, seed=self._plan.recipe.seed, epochs=each.epochs, indices=each.indices)
                with chainer.using_config("train", True), chainer.no_backprop_mode(), keyed:
                    model(model.device.send(each.images_NCHW))
                groups.end_micro_batch()
