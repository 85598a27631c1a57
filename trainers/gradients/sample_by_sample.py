"""Whether a forward of several norm groups gives each group the bits that it has alone: by the nodes of its graph."""

from __future__ import annotations

from typing import Any

import chainer
import numpy as np
from chainer.functions.activation.clipped_relu import ClippedReLU
from chainer.functions.activation.leaky_relu import LeakyReLU
from chainer.functions.activation.relu import ReLU
from chainer.functions.array.broadcast import BroadcastTo
from chainer.functions.array.concat import Concat
from chainer.functions.array.expand_dims import ExpandDims
from chainer.functions.array.reshape import Reshape
from chainer.functions.array.split_axis import SplitAxis
from chainer.functions.array.transpose import Transpose
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.linear import LinearFunction
from chainer.functions.math.average import Mean
from chainer.functions.math.basic_math import Add, Mul, MultiAdd, Neg, Sub
from chainer.functions.math.maximum import Maximum
from chainer.functions.math.minimum import Minimum
from chainer.functions.math.minmax import Max, Min
from chainer.functions.math.square import Square
from chainer.functions.math.sum import Sum
from chainer.functions.noise.dropout import Dropout
from chainer.functions.pooling.average_pooling_2d import AveragePooling2D
from chainer.functions.pooling.max_pooling_nd import MaxPoolingND

from trainers.gradients.flat_gradients import DeliveringIdentity
from trainers.kernels import chainer_hooks
from trainers.kernels.fused_normalization import ConvolutionNormalization, Normalization

# Which inputs of a node are parameters. These nodes compute each sample by itself, or each norm group by itself. None
# computes exp or tanh, which a processor may round otherwise at the end of an array; none has a number that models may
# compute from all samples, as one that they multiply by: see _CAPS.
_PARAMETERS: dict[type, tuple[int, ...]] = {
    Add: (),
    AveragePooling2D: (),
    BroadcastTo: (),
    ClippedReLU: (),
    Concat: (),
    Convolution2DFunction: (1, 2),
    ConvolutionNormalization: (1, 2, 3),
    Dropout: (),  # its masks are keyed by sample
    ExpandDims: (),
    LeakyReLU: (),
    LinearFunction: (1, 2),
    Max: (),
    MaxPoolingND: (),
    Maximum: (),
    Mean: (),
    Min: (),
    Minimum: (),
    Mul: (),
    MultiAdd: (),
    Neg: (),
    Normalization: (1, 2),
    ReLU: (),
    Reshape: (),
    SplitAxis: (),
    Square: (),
    Sub: (),
    Sum: (),
    Transpose: (),
}
# Of other numbers the models may have computed from all samples.
_CAPS, _SLOPES = (1.0, 6.0, 20.0), (0.01, 0.1, 0.2)
_ALONG_AXES = (Max, Mean, Min, Sum)
_BROADCAST = (Add, BroadcastTo, Maximum, Minimum, Mul, MultiAdd, Sub)


class MixesSamples(Exception):
    """A forward of several norm groups may give them other bits than each would have alone; says by what."""


def require_operators(images_NCHW: np.ndarray) -> None:
    """Raise MixesSamples where the kernels in use have no operators that compute groups apart."""
    if not getattr(chainer_hooks.operators_for(images_NCHW), "COMPUTES_GROUPS", False):
        raise MixesSamples("the kernels in use compute all samples of a forward as one")


def require_sample_by_sample(logits: chainer.Variable, images_NCHW: np.ndarray) -> None:
    """Accept a graph in which nothing but norm groups looks at several samples, by operators that compute groups apart.

    Args:
        logits: computed from the images within `trainers.kernels.by_group.apart`.
    Raises:
        MixesSamples: a node is none of those that are known to do so, an array is neither images nor parameter, or a
            parameter is used twice or outside its layer.
    """
    waiting, known, used = [logits.node], {id(logits.node)}, set()
    while waiting:
        variable = waiting.pop()
        node = variable.creator_node
        if node is None:
            if variable.data is not images_NCHW:
                raise MixesSamples("the model computes with an array that is neither its images nor a parameter")
            continue
        if variable.dtype != np.float32 or not _is_known(node, variable.shape, len(images_NCHW)):
            raise MixesSamples(f"{type(node).__name__} is not known to compute each sample by itself")
        for index, each in enumerate(node.inputs):
            if index in _PARAMETERS[type(node)]:
                _require_used_once(each, used)
            elif id(each) not in known:
                known.add(id(each))
                waiting.append(each)


def require_no_parameters(losses: chainer.Variable, logits: chainer.Variable) -> None:
    """Accept losses that read nothing of the model but the logits.

    Raises:
        MixesSamples: they read a parameter, whose gradients would be added one group after the other.
    """
    waiting, known = [losses.node], {id(losses.node), id(logits.node)}
    while waiting:
        variable = waiting.pop()
        node = variable.creator_node
        if isinstance(node, DeliveringIdentity) or (node is None and variable.requires_grad):
            raise MixesSamples("the loss reads a parameter")
        for each in () if node is None else node.inputs:
            if id(each) not in known:
                known.add(id(each))
                waiting.append(each)


def _is_known(node: chainer.FunctionNode, shape: tuple[int, ...], num_samples: int) -> bool:
    if type(node) not in _PARAMETERS or shape[:1] != (num_samples,):
        return False
    axes = len(node.inputs[0].shape)
    if isinstance(node, _ALONG_AXES):
        return node.axis is not None and all(axis % axes > 0 for axis in node.axis)
    if isinstance(node, Concat | SplitAxis):
        return node.axis % axes > 0
    if isinstance(node, Transpose):
        return node.axes is not None and node.axes[0] % axes == 0
    if isinstance(node, ClippedReLU | LeakyReLU):
        return node.cap in _CAPS if isinstance(node, ClippedReLU) else node.slope in _SLOPES
    if isinstance(node, _BROADCAST):  # else the samples of one would stand along another axis of the other
        return all(len(each.shape) == len(shape) and each.shape[0] == num_samples for each in node.inputs)
    if isinstance(node, ExpandDims | Reshape):
        return node.inputs[0].shape[:1] == shape[:1]
    if isinstance(node, Convolution2DFunction):
        return node.ordered_weights is not None  # computed by our kernels
    return not isinstance(node, MaxPoolingND) or node._operators is not None


def _require_used_once(parameter: Any, used: set[int]) -> None:
    identity = parameter.creator_node
    if isinstance(identity, DeliveringIdentity):
        number = identity.number_of(parameter)
        if number in used:
            raise MixesSamples("a parameter is used twice")
        used.add(number)
    elif identity is not None or parameter.requires_grad:
        raise MixesSamples("a parameter is used outside its layer, or computed")
