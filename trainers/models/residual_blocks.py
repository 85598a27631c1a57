"""Blocks and networks of the ResNets for ImageNet. Imports Chainer: only for use inside `build`.

ResNet-50, 101 and 152 are ChainerCV's; ResNet-18 and 34, which ChainerCV does not have, are built from its parts in the
same order and under the same names. The options act on both alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.initializers import Constant, HeNormal, Normal
from chainercv.links import Conv2DBNActiv, PickableSequentialChain
from chainercv.links.model.resnet import ResNet
from chainercv.links.model.resnet.resblock import Bottleneck

from trainers.models.normalized_relu import normalized, normalized_relu

_BASIC_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
_BLUR = np.outer([1, 2, 1], [1, 2, 1]) / 16


class BasicBlock(chainer.Chain):
    """Two 3x3 convolutions, the stride on the first, and the activation after the sum.

        y = relu(conv2(conv1(x)) + residual_conv(x))        each convolution with its normalisation, conv1 with relu

    Args:
        num_in: channels of `x`.
        num_out: channels of `y`.
        stride: of conv1 and of the shortcut, a 1x1 convolution where the shape changes, else the identity.

    Source: He et al. 2015, arXiv 1512.03385, figure 5 left; option B.
    """

    def __init__(self, num_in: int, num_out: int, *, stride: int) -> None:
        super().__init__()
        he = {"nobias": True, "initialW": HeNormal(fan_option="fan_out")}
        self.projects = num_in != num_out or stride != 1
        with self.init_scope():
            self.conv1 = Conv2DBNActiv(num_in, num_out, 3, stride, 1, **he)
            self.conv2 = Conv2DBNActiv(num_out, num_out, 3, 1, 1, activ=None, **he)
            if self.projects:
                self.residual_conv = Conv2DBNActiv(num_in, num_out, 1, stride, 0, activ=None, **he)

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """Samples x `num_out` x height / stride x width / stride, rounded up."""
        return _with_shortcut(self.conv2, self.conv1(x), self.residual_conv(x) if self.projects else x)


class OneNodeConvolution(Conv2DBNActiv):
    """`Conv2DBNActiv` with its normalisation and ReLU in one node."""

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """See `Conv2DBNActiv`."""
        if self.activ is F.relu:
            return normalized_relu(self.bn, x, after=self.conv)
        return normalized(self.bn, x, after=self.conv) if self.activ is None else super().forward(x)


class OneNodeBottleneck(Bottleneck):
    """`Bottleneck` with its last normalisation, the sum and ReLU in one node."""

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """See `Bottleneck`."""
        h = self.conv2(self.conv1(x))
        return _with_shortcut(self.conv3, h, self.residual_conv(x) if hasattr(self, "residual_conv") else x)


def _with_shortcut(last: Conv2DBNActiv, h: chainer.Variable, shortcut: chainer.Variable) -> chainer.Variable:
    """max(0, last(h) + shortcut)"""
    if last.activ is not None:
        return F.relu(last(h) + shortcut)
    return normalized_relu(last.bn, h, shortcut, after=last.conv)


class BasicNetwork(PickableSequentialChain):
    """ResNet-18 or 34: ChainerCV's `ResNet`, `arch="fb"`, with basic blocks for its bottlenecks.

    Args:
        num_layers: 18 or 34.
        num_in: channels of an image.
        num_classes: logits.
    """

    def __init__(self, num_layers: int, num_in: int, num_classes: int) -> None:
        super().__init__()
        with self.init_scope():
            self.conv1 = Conv2DBNActiv(num_in, 64, 7, 2, 3, nobias=True, initialW=HeNormal(fan_option="fan_out"))
            self.pool1 = _pooled
            num_in = 64
            for stage, num_blocks in enumerate(_BASIC_BLOCKS[num_layers]):
                setattr(self, f"res{stage + 2}", _stage(num_blocks, num_in, 64 * 2**stage, stride=min(stage, 1) + 1))
                num_in = 64 * 2**stage
            self.pool5 = _averaged
            self.fc = L.Linear(num_in, num_classes, initialW=Normal(0.01))


_ONE_NODE = {Conv2DBNActiv: OneNodeConvolution, Bottleneck: OneNodeBottleneck}


def _stage(num_blocks: int, num_in: int, num_out: int, *, stride: int) -> PickableSequentialChain:
    stage = PickableSequentialChain()
    with stage.init_scope():
        stage.a = BasicBlock(num_in, num_out, stride=stride)
        for number in range(1, num_blocks):
            setattr(stage, f"b{number}", BasicBlock(num_out, num_out, stride=1))
    return stage


def _pooled(x: chainer.Variable) -> chainer.Variable:
    return F.max_pooling_2d(x, ksize=3, stride=2)


def _averaged(x: chainer.Variable) -> chainer.Variable:
    return F.average(x, axis=(2, 3))


def basic_network(num_layers: int, *, num_classes: int, channels: int, **options: object) -> chainer.Chain:
    """ResNet-18 or 34 with all its parameters initialised; for `options` see `_with_options`."""
    return _with_options(BasicNetwork(num_layers, channels, num_classes), **options)


def bottleneck_network(num_layers: int, *, num_classes: int, channels: int, **options: object) -> chainer.Chain:
    """ChainerCV's ResNet-50, 101 or 152 with all its parameters initialised; for `options` see `_with_options`."""
    # Pass `fc_kwargs`: ChainerCV writes into its mutable default, which later networks would share.
    model = ResNet(num_layers, n_class=num_classes, arch="fb", fc_kwargs={"initialW": Normal(0.01)})
    model.pick = "fc6"  # logits; the softmax behind it belongs to the loss
    # ChainerCV initialises the parameters of the first convolution in the first forward only.
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        model(np.zeros((1, channels, 32, 32), dtype=chainer.get_dtype()))
    return _with_options(model, **options)


def _with_options(
    model: chainer.Chain,
    *,
    zero_last_gamma: bool,
    last_gamma: float | None,
    blur_pool: bool,
    stochastic_depth: float,
) -> chainer.Chain:
    """The model, changed in place.

    Args:
        model: with the stages res2 to res5.
        zero_last_gamma: let the last scale of each block start at 0.
        last_gamma: initial value of that scale instead; None: ChainerCV's 1.
        blur_pool: low-pass filter before the strided convolutions of the stages.
        stochastic_depth: probability of dropping the last block's branch, see `DroppedBranch`.
    """
    blocks = list(_blocks(model))
    for link in model.links():
        if type(link) in _ONE_NODE:
            link.__class__ = _ONE_NODE[type(link)]  # in place: its parameters and its path stay
    start = 0 if zero_last_gamma else last_gamma
    for number, block in enumerate(blocks, start=1):
        last = block.conv3 if hasattr(block, "conv3") else block.conv2
        if start is not None:
            gamma = last.bn.gamma
            gamma.initializer = Constant(start, dtype=gamma.dtype)
            gamma.initialize(gamma.shape)
        if stochastic_depth:
            last.activ = DroppedBranch(stochastic_depth * number / len(blocks))
    if blur_pool:
        for block in blocks:
            for link in block.links():
                if isinstance(link, L.Convolution2D) and max(link.stride) > 1:
                    link.__class__ = BlurredConvolution2D  # in place: its parameters and its path stay
    return model


def _blocks(model: chainer.Chain) -> Iterator[chainer.Chain]:
    for stage in (model.res2, model.res3, model.res4, model.res5):
        for name in stage.layer_names:
            yield stage[name]


@dataclass(frozen=True)
class DroppedBranch:
    """The residual branch of each sample dropped whole, by chance, while training.

        h -> b h / (1 - ratio)          b = 0 with probability `ratio`, else 1, for each sample
        ratio of block l of L = l / L * stochastic_depth                        ("linear decay")

    It stands where the branch's last convolution would have its activation, so `trainers.keyed_draws.KeyedDropout` keys
    b by (seed, epoch, index, path of that convolution): a sample keeps its b on any worker and in any micro-batch.

    Args:
        ratio: probability that a branch is dropped, in [0, 1).

    Source: Huang et al. 2016, arXiv 1603.09382, with p_l = 1 - ratio (through summaries, not checked).
    Differs: scaled by 1 / p_l while training instead of by p_l in evaluation; drawn for each sample instead of once for
        the whole batch; the branch is computed all the same, and its normalisation sees every sample.
    """

    ratio: float

    def __call__(self, h: chainer.Variable) -> chainer.Variable:
        if not chainer.config.train:
            return h
        ones = chainer.backend.get_array_module(h).ones((len(h), 1, 1, 1), dtype=h.dtype)
        return h * F.broadcast_to(F.dropout(ones, ratio=self.ratio), h.shape)


class BlurredConvolution2D(L.Convolution2D):
    """A convolution of the blurred image, so that pixels skipped by its stride still contribute."""

    def forward(self, x: chainer.Variable) -> chainer.Variable:
        """The convolution of `blurred(x)`."""
        return super().forward(blurred(x))


def blurred(x: chainer.Variable) -> chainer.Variable:
    """Each channel convolved with [1, 2, 1] outer [1, 2, 1] / 16; zeros beyond the border, same shape.

    Source: libffcv/ffcv-imagenet, train_imagenet.py, BlurPoolConv2d, after Zhang 2019, arXiv 1904.11486 (not checked).
    """
    num_samples, channels, height, width = x.shape
    kernel = chainer.backend.get_array_module(x).asarray(_BLUR[np.newaxis, np.newaxis], dtype=x.dtype)
    planes = F.reshape(x, (num_samples * channels, 1, height, width))
    return F.reshape(F.convolution_2d(planes, kernel, pad=1), x.shape)
