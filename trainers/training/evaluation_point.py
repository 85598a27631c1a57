"""The weights that are evaluated where an optimizer trains others, with running statistics of them."""

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
    """Weights and running statistics at the optimizer's `evaluated` point; the counterpart of `AveragedWeights`.

    The running statistics of training are of other weights. Before these are scored or kept, the training batches of
    the last 50 updates, or of the last epoch if that is fewer, pass through the model once more, forward only, in
    float32; the statistics are the mean over those updates. Dropout, norm groups and augmentation are as in training.

    Args:
        optimizer: set up with the model; its component has `evaluated(weights, state)`.
        norm_groups: installed in the model.
        plan: of the run.
        samples: () -> this worker's share of every update.
        done: () -> how many updates have been made.
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
        self._samples, self._done, self._mpi, self._teams = samples, done, mpi, Teams(mpi)
        self._known: dict[str, Any] | None = None

    def restart(self) -> None:
        """The weights are others now."""
        self._known = None

    def move(self, *, epoch: float, global_batch_size: int) -> None:
        """The weights have moved by one update."""
        self.restart()

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of the point by path. All workers ask for them together.

        Bytes on the wire: for each update that passes through the model, those of its running statistics.
        """
        if self._known is None:
            current = self._current()
            kept = {path: array.copy() for path, array in current.items()}
            component = self._optimizer.hyperparam.component
            for path, parameter in self._optimizer.target.namedparams():
                current[path][...] = component.evaluated(parameter.array, parameter.update_rule.state)
            self._take_statistics()
            self._known = {path: array.copy() for path, array in self._current().items()}
            self._put(kept)
        return self._known

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model is at the point."""
        point, kept = self.arrays, {path: array.copy() for path, array in self._current().items()}
        self._put(point)
        try:
            yield
        finally:
            self._put(kept)

    def close(self) -> None:
        """Free the communicators; all workers call this together."""
        self._teams.close()

    def _current(self) -> dict[str, np.ndarray]:
        return {path: array for path, array in weights_of(self._optimizer.target).items() if array.dtype.kind == "f"}

    def _put(self, arrays: dict[str, Any]) -> None:
        for path, array in self._current().items():
            array[...] = arrays[path]

    def _take_statistics(self) -> None:
        """Make the running statistics those of the model's weights over the last updates."""
        timeline, last = self._plan.timeline, self._done()
        if not self._norm_groups.averages or last == 0:
            return
        epoch_ago = timeline.samples_at(last) - self._plan.dataset.num_train
        updates = range(max(0, last - _MOST_UPDATES), last)
        samples = self._samples()
        samples.update = next((u for u in updates if timeline.samples_at(u) >= epoch_ago), last - 1)
        for number in range(last - samples.update):
            share = samples.next()
            self._forward(share)
            keep = number / (number + 1)
            self._norm_groups.update_running_statistics(self._mpi, share.segment.global_batch_size, keep=keep)
        samples.finalize()

    def _forward(self, share: UpdateShare) -> None:
        """Forward of this worker's share of an update; in exact mode group by group, each of one fixed shape."""
        model, groups = self._optimizer.target, self._norm_groups
        groups.begin_update(share.division, self._teams.of(share.division))
        for loaded in share.micro_batches:
            for each in loaded.by_group if self._plan.exact else [loaded]:
                groups.begin_micro_batch(each.part)
                keyed = KeyedDropout(model, seed=self._plan.recipe.seed, epochs=each.epochs, indices=each.indices)
                with chainer.using_config("train", True), chainer.no_backprop_mode(), keyed:
                    model(model.device.send(each.images_NCHW))
                groups.end_micro_batch()
