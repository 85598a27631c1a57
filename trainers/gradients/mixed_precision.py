"""Forward and backward in the number format of `precision.compute`, and the loss scale against gradient underflow."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import chainer
import numpy as np
from chainer import functions as F
from chainer import links as L
from chainer.functions.array.cast import Cast

from recipes.planning.division import Division
from recipes.schema import Precision
from trainers.kernels import chainer_hooks
from trainers.kernels.chainer_nodes import allows_short_apply, arrays_of, output_of, variables_of

HALVES = ("mixed16", "bfloat16")  # values of `precision.compute` with 16 bits
MOST_HALVINGS = 20  # of one update; then the run fails
_KEEP_FLOAT32 = (L.BatchNormalization, L.GroupNormalization, L.LayerNormalization)  # their parameters stay float32


class LossScale:
    """The dynamic loss scale of `mixed16`: Chainer's computation with float32 weights in the model.

        gradient of a parameter = float32(gradient of (scale / p * sum of losses) at float16(weights)) * p / scale
        p = largest power of two up to norm_span

    So the scale multiplies the mean loss of a norm group, up to a factor below 2, whatever the micro-batch: the usual
    convention of scaling the mean loss of a worker's batch, without its dependence on the number of workers.
    Weights of normalisation stay float32 in forward and backward, as do its statistics, the logits from the model's
    end on, the loss, and the sum of gradients over micro-batches. Scale and p are powers of two: dividing them out
    rounds nothing.

    The scale is halved where an update's gradient overflows, and doubled after `double_after` updates in which none
    did.

    Attributes:
        scale: the current one.
        halvings: of the scale in the current update.

    Source: Micikevicius et al. 2018, arXiv 1710.03740 (not checked); chainer.mixed16, Chainer 7.8.1.
    Differs: Chainer keeps float16 weights in the model and float32 copies in the optimizer's update rules. Here the
        model has the float32 weights and a forward casts them, so that checkpoints, averages, optimizers and
        evaluation see what they see without mixed precision.
    """

    def __init__(self, settings: Precision) -> None:
        self._double_after = settings.double_after
        self.scale = float(settings.loss_scale)
        self.halvings = 0
        self._good_updates = 0  # since the scale last moved

    @classmethod
    def of(cls, settings: Precision) -> LossScale | None:
        """A loss scale where the number format needs one, else None."""
        return cls(settings) if settings.compute == "mixed16" else None

    def factor(self, division: Division) -> float:
        """What multiplies the sum of the losses of an update's samples, and must be divided out of its gradient."""
        return self.scale / 2.0 ** (division.norm_span.bit_length() - 1)

    def overflowed(self) -> None:
        """The gradient was not finite: halve the scale and restart the count of good updates."""
        self.scale /= 2.0
        self.halvings += 1
        self._good_updates = 0

    def updated(self) -> None:
        """An update was done: count it, and double the scale after `double_after` of them."""
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
    """Type of the images that forward computes with; images loaded in it need no cast there."""
    return half_type(settings.compute) if settings.compute in HALVES else np.dtype(chainer.get_dtype())


def forward_in(model: chainer.Chain, compute: str) -> Callable[[Any], chainer.Variable]:
    """A function: images -> float32 logits, computed in the number format of `precision.compute`."""
    if compute not in HALVES:
        return model if model.device.xp is np else functools.partial(_forward_in_order, model)
    dtype = half_type(compute)

    def logits(images_NCHW: Any) -> chainer.Variable:
        with weights_in(model, dtype):
            return _Widened(np.float32).apply((model(images_NCHW.astype(dtype, copy=False)),))[0]

    return logits


def _forward_in_order(model: chainer.Chain, images_NCHW: Any) -> chainer.Variable:
    with weights_in(model, np.float32):
        return model(images_NCHW)


@contextlib.contextmanager
def computing(compute: str, device: Any) -> Iterator[None]:
    """Around a forward from `forward_in` and its backward.

    tf32        cuDNN and cuBLAS may round factors to TF32
    mixed16     NumPy does not warn of infinities and NaN: they are looked for afterwards
    bfloat16    Chainer does not check types: it has no such floats, and NumPy's kind of them is V
    """
    with contextlib.ExitStack() as stack:
        if compute == "tf32" and device.xp is not np:
            stack.enter_context(chainer.using_config("use_cudnn_tensor_core", "always"))
            stack.enter_context(_rounded_products())
        elif compute == "mixed16":
            stack.enter_context(overflow_expected())
        elif compute == "bfloat16":
            stack.enter_context(chainer.using_config("type_check", False))
        yield


def half_type(compute: str) -> np.dtype:
    """The type of 16 bits that `precision.compute` names."""
    if compute == "mixed16":
        return np.dtype(np.float16)
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16)


@contextlib.contextmanager
def weights_in(model: chainer.Link, dtype: Any) -> Iterator[None]:
    """Within, the links of a model see casts of their parameters; gradients flow through to the parameters.

    For float32 these are copies, with channels last, of the weights of convolutions larger than 1x1, made by one kernel
    launch where the kernels can; otherwise each convolution and each of its gradients would make its own.

    `LayerNormalization` computes in float32, from and to values of 16 bits: Chainer's cannot have parameters of another
    type than its input, nor bfloat16.
    """
    held = {}  # a link that is in two places counts once
    for link in model.links():
        if not isinstance(link, _KEEP_FLOAT32):
            held |= {(id(link), name): (link, name, link.__dict__[name]) for name in link._params}
    if dtype == np.float32:
        held = {key: each for key, each in held.items() if each[2].ndim == 4 and math.prod(each[2].shape[2:]) > 1}
    widened = [] if dtype == np.float32 else [each for each in model.links() if isinstance(each, L.LayerNormalization)]
    given = [parameter.array for *_, parameter in held.values()]
    kernels = chainer_hooks.operators_for(*given) if given else None
    arrays = kernels.narrowed(given, dtype) if hasattr(kernels, "narrowed") else None  # in one launch
    if arrays is None:
        held, arrays = ({}, []) if dtype == np.float32 else (held, [array.astype(dtype) for array in given])
    try:
        for (link, name, parameter), array in zip(held.values(), arrays, strict=True):
            link.__dict__[name] = _Narrowed(dtype, array).apply((parameter,))[0]  # bypasses the link's __setattr__
        for link in widened:
            link.__dict__["forward"] = functools.partial(_forward_in_float32, link)
        yield
    finally:
        for link in widened:
            link.__dict__.pop("forward", None)
        for link, name, parameter in held.values():
            link.__dict__[name] = parameter


def _forward_in_float32(link: chainer.Link, x: Any) -> chainer.Variable:
    return F.cast(type(link).forward(link, _Widened(np.float32).apply((x,))[0]), x.dtype)


@contextlib.contextmanager
def overflow_expected() -> Iterator[None]:
    """Within, NumPy does not warn of infinities and NaN: they are looked for afterwards."""
    with np.errstate(over="ignore", invalid="ignore"):
        yield


class _Widened(Cast):
    """A cast whose gradient is cast back to any type: Chainer's passes none to an unknown type."""

    def backward(self, indexes: tuple[int, ...], grads: tuple[chainer.Variable, ...]) -> tuple[chainer.Variable]:
        return (F.cast(grads[0], self._in_type),)


class _Narrowed(Cast):
    """A cast computed beforehand; its gradient is in C order as parameters are, whatever the layout of the cast."""

    def __init__(self, dtype: Any, array: Any) -> None:
        super().__init__(dtype)
        self._array = array

    def apply(self, inputs: tuple[Any]) -> tuple[chainer.Variable]:
        """What Chainer's `apply` does, by a shorter path where possible: it runs once for each parameter."""
        variables = variables_of(inputs)
        if not allows_short_apply(variables):
            return super().apply(inputs)
        return output_of(self, variables, *self.forward(arrays_of(variables)))

    def forward(self, inputs: tuple[Any]) -> tuple[Any]:
        self._in_type = inputs[0].dtype
        return (self._array,)

    def backward(self, indexes: tuple[int, ...], grads: tuple[chainer.Variable, ...]) -> tuple[chainer.Variable]:
        return _InOrder(self._in_type).apply(grads)


class _InOrder(_Widened):
    """A cast to C order."""

    def forward(self, inputs: tuple[Any]) -> tuple[Any]:
        self._in_type = inputs[0].dtype
        return (inputs[0].astype(self.type, order="C"),)


@contextlib.contextmanager
def _rounded_products() -> Iterator[None]:
    """Within, cuBLAS may round factors of float32 to TF32; CuPy keeps that for the whole process."""
    linalg = importlib.import_module("cupy._core._routines_linalg")
    before = linalg.get_compute_type(np.dtype(np.float32))
    linalg.set_compute_type(np.dtype(np.float32), linalg.COMPUTE_TYPE_TF32)
    try:
        yield
    finally:
        linalg.set_compute_type(np.dtype(np.float32), before)
