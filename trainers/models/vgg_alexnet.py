"""VGG-16, and AlexNet with batch normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipes.arguments import require_flag

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class AlexNetBN:
    """AlexNet with batch normalisation for its local response normalisation, as LARS was published on.

    The one-column AlexNet of Caffe: five convolutions of 96, 256, 384, 384 and 256 channels, the second, fourth and
    fifth in two groups, each with normalisation (1e-4 added to the variance) and ReLU; 3x3 max pooling of stride 2
    behind the first, second and fifth; linear layers of 4,096, 4,096 and the classes, dropout of a half behind the
    first two, no normalisation there. 60.967 million parameters with 1,000 classes at 227x227. The first linear layer
    takes every pixel, so the network is built for one image size and refuses another. Weights: convolutions N(0, 0.01);
    linear layers N(0, 0.005) with bias 0.1, the last one N(0, 0.01) with bias 0.

    Raises:
        ValueError: when built, the images are too small to leave a pixel behind the poolings; when called, they are of
            another size than it was built for.

    Source: borisgin/nvcaffe, models/alexnet_bn/train_val.prototxt, at 514f52f; used in You et al. 2017, arXiv
        1708.03888.
    Differs: the fifth convolution has no bias; the normalisation behind it would take it away again.
    """

    takes_one_size = True

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised, for images of `image_size`, 227 where it is not given."""
        from trainers.models.imagenet_networks import alexnet_bn

        return alexnet_bn(image_size=image_size or 227, channels=channels, num_classes=num_classes)


@dataclass(frozen=True, kw_only=True)
class VGG16:
    """VGG-16, configuration D: thirteen 3x3 convolutions in five stages, three linear layers.

    Each stage ends with a 2x2 max pooling; dropout of a half stands behind the first two linear layers, of 4,096 each.
    138.358 million parameters with 1,000 classes at 224x224, three quarters of them in the first linear layer. That
    layer takes every pixel, so the network is built for one image size and refuses another. Weights: He normal (fan
    out), linear layers N(0, 0.01), biases 0.

    Args:
        batch_norm: normalisation behind each convolution, which then has no bias.
    Raises:
        ValueError: `batch_norm` is no bool. When built: the images are below 32 pixels. When called: they are of
            another size than it was built for.

    Source: Simonyan and Zisserman 2014, arXiv 1409.1556, table 1 (not checked), as in chainercv.links.VGG16; initial
        weights: torchvision, models/vgg.py.
    Differs: the paper starts from a shallower network's weights; ChainerCV draws all from N(0, 0.01). torchvision keeps
        the bias in front of a normalisation, which takes it away again, and averages an image of another size to 7x7.
    """

    takes_one_size = True
    batch_norm: bool = False

    def __post_init__(self) -> None:
        require_flag("VGG16.batch_norm", self.batch_norm)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised, for images of `image_size`, 224 where it is not given."""
        from trainers.models.imagenet_networks import vgg16

        return vgg16(
            image_size=image_size or 224, channels=channels, num_classes=num_classes, batch_norm=self.batch_norm
        )
