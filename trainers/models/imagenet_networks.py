"""Networks for ImageNet, of ChainerCV: ResNets and their variants, VGG-16, AlexNet. Imports Chainer and ChainerCV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.initializers import Constant, HeNormal, Normal
from chainer.utils import get_conv_outsize
from chainercv.links import Conv2DActiv, Conv2DBNActiv, PickableSequentialChain
from chainercv.links.model.resnet import ResNet

from recipes.errors import InputRefused
from trainers.models.small_image_networks import require_side

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
        return F.relu(self.conv2(self.conv1(x)) + (self.residual_conv(x) if self.projects else x))


class BasicNetwork(PickableSequentialChain):
    """ResNet-18 or 34: ChainerCV's `ResNet`, `arch="fb"`, with basic blocks for its bottlenecks."""

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


def _stage(num_blocks: int, num_in: int, num_out: int, *, stride: int) -> PickableSequentialChain:
    stage = PickableSequentialChain()
    with stage.init_scope():
        stage.a = BasicBlock(num_in, num_out, stride=stride)
        for number in range(1, num_blocks):
            setattr(stage, f"b{number}", BasicBlock(num_out, num_out, stride=1))
    return stage


def _pooled(x: chainer.Variable) -> chainer.Variable:
    return F.max_pooling_2d(x, ksize=3, stride=2)


def pooled_with_padding(x: chainer.Variable) -> chainer.Variable:
    """The first pooling of torchvision's and timm's ResNets."""
    return F.max_pooling_2d(x, ksize=3, stride=2, pad=1, cover_all=False)


def _averaged(x: chainer.Variable) -> chainer.Variable:
    return F.average(x, axis=(2, 3))


def resnet(depth: int, *, num_classes: int, channels: int, **options: object) -> chainer.Chain:
    """A ResNet of ChainerCV, or one of basic blocks in its manner, with all its parameters initialised."""
    if depth in _BASIC_BLOCKS:
        return _with_options(BasicNetwork(depth, channels, num_classes), **options)
    # Pass `fc_kwargs`: ChainerCV writes into its mutable default, which later networks would share.
    model = ResNet(depth, n_class=num_classes, arch="fb", fc_kwargs={"initialW": Normal(0.01)})
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
    padded_pool: bool,
) -> chainer.Chain:
    """The model, changed in place.

    Args:
        model: with the stages res2 to res5.
        zero_last_gamma: let the last scale of each block start at 0.
        last_gamma: initial value of that scale instead; None: ChainerCV's 1.
        blur_pool: low-pass filter before the strided convolutions of the stages.
        stochastic_depth: probability of dropping the last block's branch, see `DroppedBranch`.
        padded_pool: `pooled_with_padding` for the first pooling.
    """
    if padded_pool:
        model.pool1 = pooled_with_padding
    blocks = list(_blocks(model))
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

    It stands where the branch's last convolution would have its activation, so `KeyedDropout` keys
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


_VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class FlatteningNetwork(PickableSequentialChain):
    """Layers in a row, for images of one size.

    Args:
        name: of the model, for the messages.
        image_size: side of the images in pixels.
    """

    def __init__(self, name: str, image_size: int) -> None:
        super().__init__()
        self.name_of_model = name
        self.image_size = image_size

    def forward(self, images_NCHW: chainer.Variable) -> chainer.Variable:
        """Logits, samples x classes.

        Raises:
            UnfitImage: they are of another size than the network was built for.
        """
        require_side(images_NCHW, self.image_size, self.name_of_model)
        return super().forward(images_NCHW)

    def add_head(self, size: int, channels: int, *, scale: float, bias: float, num_classes: int) -> None:
        """Linear layers of 4,096, 4,096 and `num_classes`, dropout of a half behind the first two.

        Args:
            size: side of the last feature map; nothing is left of too small an image.
            channels: of the last feature map.
            scale, bias: deviation of the initial weights and initial bias of the first two; of the last 0.01 and 0.
            num_classes: logits.
        Raises:
            InputRefused: `size` is 0.
        """
        if size < 1:
            raise InputRefused(
                f"{self.name_of_model} needs larger images: nothing is left of {self.image_size}x{self.image_size} "
                "pixels behind its poolings"
            )
        with self.init_scope():
            self.fc6 = L.Linear(size * size * channels, 4096, initialW=Normal(scale), initial_bias=bias)
            self.fc6_relu = F.relu
            self.fc6_dropout = F.dropout
            self.fc7 = L.Linear(4096, 4096, initialW=Normal(scale), initial_bias=bias)
            self.fc7_relu = F.relu
            self.fc7_dropout = F.dropout
            self.fc = L.Linear(4096, num_classes, initialW=Normal(0.01))


def vgg16(*, image_size: int, channels: int, num_classes: int, batch_norm: bool) -> FlatteningNetwork:
    """VGG-16, configuration D, its layers named as ChainerCV's; see `trainers.models.VGG16`."""
    network = FlatteningNetwork("VGG16", image_size)
    he = HeNormal(fan_option="fan_out")
    size = image_size
    with network.init_scope():
        for stage, widths in enumerate(_VGG16_STAGES, start=1):
            for number, width in enumerate(widths, start=1):
                if batch_norm:
                    layer = Conv2DBNActiv(channels, width, 3, 1, 1, nobias=True, initialW=he)
                else:
                    layer = Conv2DActiv(channels, width, 3, 1, 1, initialW=he)
                setattr(network, f"conv{stage}_{number}", layer)
                channels = width
            setattr(network, f"pool{stage}", _pooled_by_2)
            size //= 2
    network.add_head(size, channels, scale=0.01, bias=0, num_classes=num_classes)
    return network


def alexnet_bn(*, image_size: int, channels: int, num_classes: int) -> FlatteningNetwork:
    """AlexNet with batch normalisation; see `trainers.models.AlexNetBN`."""
    network = FlatteningNetwork("AlexNetBN", image_size)
    size = image_size
    with network.init_scope():
        for number, (width, ksize, stride, pad, groups) in enumerate(
            ((96, 11, 4, 0, 1), (256, 5, 1, 2, 2), (384, 3, 1, 1, 1), (384, 3, 1, 1, 2), (256, 3, 1, 1, 2)), start=1
        ):
            layer = Conv2DBNActiv(
                *(channels, width, ksize, stride, pad),
                groups=groups,
                nobias=True,
                initialW=Normal(0.01),
                bn_kwargs={"eps": 1e-4},
            )
            setattr(network, f"conv{number}", layer)
            channels = width
            size = get_conv_outsize(size, ksize, stride, pad)
            if number in (1, 2, 5):
                setattr(network, f"pool{number}", _pooled_by_3)
                size = get_conv_outsize(size, 3, 2, 0, cover_all=True)
    network.add_head(size, channels, scale=0.005, bias=0.1, num_classes=num_classes)
    return network


def _pooled_by_2(x: chainer.Variable) -> chainer.Variable:
    return F.max_pooling_2d(x, ksize=2, cover_all=False)


def _pooled_by_3(x: chainer.Variable) -> chainer.Variable:
    return F.max_pooling_2d(x, ksize=3, stride=2)  # keeps the last, partial window, as Caffe does
