"""Dropout whose masks belong to the samples. Imports Chainer: only for use inside `build` and the updater."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import chainer
import numpy as np

from recipes.planning.draws import draws


@dataclass(frozen=True, kw_only=True)
class SampleKeys:
    """Who the samples of a micro-batch are. The updater puts it in `chainer.config.sample_keys` around a forward.

        with chainer.using_config("sample_keys", SampleKeys(seed=0, epochs=epochs, indices=indices)):
            logits = model(images_NCHW)

    Args:
        seed: the recipe's seed.
        epochs: of each sample, as in the stream; an update may straddle two.
        indices: position of each sample in the training set.
    """

    seed: int
    epochs: Sequence[int]
    indices: Sequence[int]


class Dropout(chainer.Link):
    """Drops each value of a sample with one probability while training, and scales what is left to keep the mean.

        y = x * mask / (1 - probability)        mask = uniform >= probability, drawn by (seed, epoch, index, path)

    Not `chainer.functions.dropout`: that draws from the process's global generator, so its masks depend on the number
    of workers and on the micro-batch.

    Args:
        probability: to drop a value, in [0, 1).
        path: a name for this layer that no other layer of the model has; it is part of the key of the draws.
    Raises:
        RuntimeError: in training, `chainer.config.sample_keys` is not set or is for another number of samples.
    """

    def __init__(self, probability: float, *, path: str) -> None:
        super().__init__()
        self.probability = probability
        self.path = path

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """`x` of shape (samples, ...) with dropped values; in test mode `x` itself."""
        if not chainer.config.train or self.probability == 0:
            return x
        keys = getattr(chainer.config, "sample_keys", None)
        if keys is None or len(keys.indices) != len(x):
            raise RuntimeError(
                f"Dropout '{self.path}' needs to know its {len(x)} samples: set chainer.config.sample_keys to their "
                f"trainers.models.dropout.SampleKeys (is: {keys!r})"
            )
        samples = zip(keys.epochs, keys.indices, strict=True)
        masks = [self._mask(keys.seed, int(epoch), int(index), x.shape[1:]) for epoch, index in samples]
        scale = x.dtype.type(1 / (1 - self.probability))
        return chainer.as_variable(x) * self.device.send(np.stack(masks).astype(x.dtype) * scale)

    def _mask(self, seed: int, epoch: int, index: int, shape: tuple[int, ...]) -> np.ndarray:
        uniforms = draws(seed, f"dropout {self.path}", epoch, index).uniforms(math.prod(shape))
        return (uniforms >= self.probability).reshape(shape)
