"""The average of the weights over the run, which evaluation scores where a recipe asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import chainer
import numpy as np

from recipes.schema import WeightAverage
from trainers.optimizers.fused_step import ArrayCheck, move_averages
from trainers.runs.checkpoint import weights_of


class AveragedWeights:
    """Moving average of parameters and running statistics, by samples.

        average <- d average + (1 - d) weights        d = keep ** (B / per), after each update of B samples

    Until `start` the average is the weights themselves. What is no floating-point number is not averaged.

    Args:
        model: whose weights; the average begins as a copy of them.
        settings: the recipe's `weight_average`.
    """

    def __init__(self, model: chainer.Link, settings: WeightAverage) -> None:
        self._model = model
        self._settings = settings
        self._check = ArrayCheck()
        self.arrays: dict[str, np.ndarray] = {}
        self.restart()

    def restart(self) -> None:
        """Begin again with the model's weights."""
        self.arrays = {path: array.copy() for path, array in self._current().items()}

    def _current(self) -> dict[str, np.ndarray]:
        return {path: array for path, array in weights_of(self._model).items() if array.dtype.kind == "f"}

    def move(self, *, epoch: float, global_batch_size: int) -> None:
        """Follow the weights of one update."""
        keep = self._settings.keep ** (global_batch_size / self._settings.per)
        if epoch < self._settings.start:
            keep = 0.0
        current = self._current()
        averages, arrays = [self.arrays[path] for path in current], [*current.values()]
        if self._check.covers(averages, arrays):
            move_averages(averages, arrays, 1.0 - keep)
            return
        for average, array in zip(averages, arrays, strict=True):
            share = average.dtype.type(1.0 - keep)
            average -= share * average
            average += share * array

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model has the averaged weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for path, array in self._current().items():
            kept = array.copy()
            array[...] = self.arrays[path]
            self.arrays[path][...] = kept
