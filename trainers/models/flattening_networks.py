"""The networks whose first linear layer takes every pixel. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal, Normal
from chainer.utils import get_conv_outsize
from chainercv.links import Conv2DActiv, Conv2DBNActiv, PickableSequentialChain

from recipes.errors import InputRefused
from trainers.faults import UnfitImage

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
        height, width = images_NCHW.shape[2:]
        if (height, width) != (self.image_size, self.image_size):
            raise UnfitImage(
                f"{self.name_of_model} was built for images of {self.image_size}x{self.image_size} pixels and got "
                f"{height}x{width}: its first linear layer takes every pixel; give the images for training and for "
                "evaluation one size, or take a model that averages them, such as ResNet50"
            )
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
