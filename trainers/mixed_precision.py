"""Forward and backward in float16 from float32 weights, and the scale that keeps small gradients above zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import chainer
import numpy as np
from chainer import functions as F
from chainer import links as L

from recipes.planning.division import Division
from recipes.schema import Precision

MOST_HALVINGS = 20  # of one update; then the run fails
_KEEP_FLOAT32 = (L.BatchNormalization, L.GroupNormalization)  # those whose parameters Chainer's mixed16 leaves float32


class MixedPrecision:
    """Chainer's `mixed16` computation with float32 weights in the model, and a dynamic loss scale.

        gradient of a parameter = float32(gradient of (scale / p * sum of losses) at float16(weights)) * p / scale
        p = largest power of two up to norm_span

    So the mean loss of a norm group is what the scale multiplies, up to a factor below 2, whatever the micro-batch: the
    convention of a worker that scales the mean loss of its batch, without its dependence on the number of workers.
    Weights of normalisation stay float32 in forward and backward, as do its statistics, the logits from the model's
    end on, the loss, and the sum of gradients over micro-batches. Scale and p are powers of two: dividing them out
    rounds nothing.

    The scale is halved where an update's gradient overflows, and doubled after `double_after` updates in which none
    did.

    Args:
        model: with float32 weights.
        settings: the recipe's `precision`.
    Attributes:
        scale: at the moment.
        halvings: of the scale in the update at hand.

    Source: Micikevicius et al. 2018, arXiv 1710.03740 (not checked); chainer.mixed16, Chainer 7.8.1.
    Differs: Chainer keeps float16 weights in the model and float32 copies in the optimizer's update rules. Here the
        model has the float32 weights and a forward casts them, so that checkpoints, averages, optimizers and
        evaluation see what they see without mixed precision.
    """

    def __init__(self, model: chainer.Chain, settings: Precision) -> None:
        self._model = model
        self._double_after = settings.double_after
        self.scale = float(settings.loss_scale)
        self.halvings = 0
        self._good_updates = 0  # since the scale last moved

    def logits(self, images_NCHW: np.ndarray) -> chainer.Variable:
        """What the model makes of images, computed in float16, returned as float32."""
        with half_weights(self._model):
            return F.cast(self._model(images_NCHW.astype(np.float16, copy=False)), np.float32)

    def factor(self, division: Division) -> float:
        """What multiplies the sum of the losses of an update's samples, and must be divided out of its gradient."""
        return self.scale / 2.0 ** (division.norm_span.bit_length() - 1)

    def overflowed(self) -> None:
        """The gradient was not finite: half the scale, and the count of good updates starts again."""
        self.scale /= 2.0
        self.halvings += 1
        self._good_updates = 0

    def updated(self) -> None:
        """An update was done; after `double_after` of them twice the scale."""
        self.halvings = 0
        self._good_updates += 1
        if self._good_updates == self._double_after:
            self.scale *= 2.0
            self._good_updates = 0

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "good_updates": self._good_updates}

    @state.setter
    def state(self, kept: dict[str, Any]) -> None:
        self.scale, self._good_updates = kept["scale"], kept["good_updates"]


def images_dtype(settings: Precision) -> np.dtype:
    """Type of the images that forward computes with: they may come in it, instead of being cast there."""
    return np.dtype(np.float16 if settings.compute == "mixed16" else chainer.get_dtype())


@contextlib.contextmanager
def half_weights(model: chainer.Link, dtype: Any = np.float16) -> Iterator[None]:
    """Within, the links of a model find casts of their parameters; gradients flow through to the parameters.

    Args:
        model: its parameters are initialised.
        dtype: of the casts.
    """
    held = []
    try:
        for link in model.links():
            if isinstance(link, _KEEP_FLOAT32):
                continue
            for name in link._params:
                parameter = link.__dict__[name]
                if isinstance(parameter, chainer.Parameter):  # else it was cast already: a link in two places
                    held.append((link, name, parameter))
                    link.__dict__[name] = F.cast(parameter, dtype)  # past the link's own __setattr__
        yield
    finally:
        for link, name, parameter in held:
            link.__dict__[name] = parameter


@contextlib.contextmanager
def overflow_expected() -> Iterator[None]:
    """Within, NumPy does not warn of infinities and NaN: they are looked for afterwards."""
    with np.errstate(over="ignore", invalid="ignore"):
        yield
