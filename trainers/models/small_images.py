"""Networks for small images: those of He et al. for CIFAR-10, wide ones, small ones, and Shallue et al.'s plain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from recipes.arguments import require_buildable, require_count, require_flag, require_share

if TYPE_CHECKING:
    import chainer

_DEPTHS = (20, 32, 44, 56)
_SHORTCUTS = ("identity_pad", "projection")


@dataclass(frozen=True, kw_only=True)
class CifarResNet:
    """ResNet-20, 32, 44 or 56 for images of 32x32: three stages of n basic blocks, 6n + 2 layers with weights.

    A 3x3 convolution with 16 channels; stages of 16, 32 and 64 channels, the second and third at half the size of the
    one before; a global average and one linear layer. 0.27, 0.46, 0.66 and 0.85 million parameters with 10 classes.
    Weights: He normal (fan in), linear layer LeCun normal with bias 0.

    Args:
        depth: 20, 32, 44 or 56 layers.
        zero_last_gamma: let the last scale of every block start at 0 (Goyal et al. 2017; not in the paper).
        shortcut: where the shape changes: `identity_pad`, every other pixel and zeros for the new channels (option A,
            what the paper trains on CIFAR-10), or `projection`, a 1x1 convolution with batch normalisation (option B).
    Raises:
        ValueError: another depth or shortcut; `zero_last_gamma` is no bool.

    Source: He et al. 2015, arXiv 1512.03385, section 4.2. Initial weights: He et al. 2015, arXiv 1502.01852.
    Differs: what the paper does with the linear layer's weights is not checked.
    """

    depth: Literal[20, 32, 44, 56] = 20
    zero_last_gamma: bool = False
    shortcut: Literal["identity_pad", "projection"] = "identity_pad"

    def __post_init__(self) -> None:
        if isinstance(self.depth, bool) or self.depth not in _DEPTHS:
            raise ValueError(f"CifarResNet.depth must be 20, 32, 44 or 56, got {self.depth!r}")
        require_flag("CifarResNet.zero_last_gamma", self.zero_last_gamma)
        if self.shortcut not in _SHORTCUTS:
            raise ValueError(f"CifarResNet.shortcut must be identity_pad or projection, got {self.shortcut!r}")

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.small_image_networks import ResidualNetwork

        return ResidualNetwork(
            channels,
            num_classes,
            width=16,
            blocks=((self.depth - 2) // 6,) * 3,
            zero_last_gamma=self.zero_last_gamma,
            shortcut=self.shortcut,
        )


@dataclass(frozen=True, kw_only=True)
class SimpleCNN:
    """Two times convolution, ReLU and max pooling, then a hidden layer with ReLU and dropout, and a linear layer.

    The 5x5 convolutions keep the size of the image, the 2x2 poolings halve it; nothing is normalised. The first linear
    layer takes every pixel, so the network is built for one image size and refuses another. The defaults have 3,274,634
    parameters for grey images of 28x28. Weights: He normal (fan in), biases 0, last layer LeCun normal.

    Args:
        widths: channels of the two convolutions, each at least 1.
        hidden: features of the hidden layer, at least 1.
        dropout: probability that one of them is dropped while training, in [0, 1). The masks are the updater's, see
            `trainers.models.keyed_random.KeyedDropout`.
    Raises:
        ValueError: one of these is outside its range, or `widths` are not two; more than 10^9 weights. When built: the
            images are below 4 pixels.

    Source: Shallue et al. 2018, arXiv 1811.03600, "Simple CNN" (base): shape from memory, not checked.
    Differs: the paper's initial weights were not found.
    """

    takes_one_size = True
    widths: tuple[int, ...] = (32, 64)
    hidden: int = 1024
    dropout: float = 0.4

    def __post_init__(self) -> None:
        if not isinstance(self.widths, tuple) or len(self.widths) != 2:
            raise ValueError(f"SimpleCNN.widths must be two numbers, got {self.widths!r}")
        for width in self.widths:
            require_count("SimpleCNN.widths", width)
        require_count("SimpleCNN.hidden", self.hidden)
        require_share("SimpleCNN.dropout", self.dropout)
        weights = 25 * self.widths[0] * self.widths[1] + 49 * self.widths[1] * self.hidden
        require_buildable("SimpleCNN.widths and .hidden", weights=weights)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised, for images of `image_size`, 28 where it is not given."""
        from trainers.models.small_image_networks import SimpleNetwork

        return SimpleNetwork(
            channels,
            num_classes,
            image_size=image_size or 28,
            widths=self.widths,
            hidden=self.hidden,
            dropout=self.dropout,
        )


@dataclass(frozen=True, kw_only=True)
class SmallCNN:
    """Three times convolution, batch normalisation and ReLU, then a global average and one linear layer.

    The 3x3 convolutions have `width`, 2 `width` and 4 `width` channels and no bias; a 2x2 max pooling stands between
    them. Made for images of 8x8 to 32x32; a `first_stride` saves time on the larger ones. Weights: He normal (fan in),
    linear layer LeCun normal with bias 0.

    Args:
        width: channels of the first convolution, at least 1.
        dropout: probability that a feature of the global average is dropped while training, in [0, 1). The masks are
            the updater's, see `trainers.models.keyed_random.KeyedDropout`.
        first_stride: stride of the first convolution, at least 1.
    Raises:
        ValueError: `width` or `first_stride` is no whole number above 0; `dropout` is outside [0, 1); more than 10^9
            weights.

    Source: none, a baseline of the usual form. Initial weights: He et al. 2015, arXiv 1502.01852.
    """

    width: int = 16
    dropout: float = 0.0
    first_stride: int = 1

    def __post_init__(self) -> None:
        require_count("SmallCNN.width", self.width)
        require_buildable("SmallCNN.width", weights=90 * self.width**2)
        require_share("SmallCNN.dropout", self.dropout)
        require_count("SmallCNN.first_stride", self.first_stride)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.small_image_networks import ConvolutionalNetwork

        return ConvolutionalNetwork(
            channels, num_classes, width=self.width, dropout=self.dropout, first_stride=self.first_stride
        )


@dataclass(frozen=True, kw_only=True)
class SmallResNet:
    """Residual network of 3x3 basic blocks, for images of 8x8 to 32x32.

    A 3x3 convolution with `width` channels, then the stages: stage k has `blocks[k]` blocks of `width * 2**k`
    channels, and every stage but the first halves the image. Then a global average and one linear layer. The paper's
    networks for CIFAR-10 are `width=16, blocks=(n, n, n)`, 6n + 2 layers deep. Weights: He normal (fan in), linear
    layer LeCun normal with bias 0.

    Args:
        width: channels of the first stage, at least 1.
        blocks: residual blocks in each stage, each at least 1.
        zero_last_gamma: let the last scale of every block start at 0 (Goyal et al. 2017).
    Raises:
        ValueError: `width` or one of `blocks` is no whole number above 0; `blocks` is empty or no tuple;
            `zero_last_gamma` is no bool; more than 2,000 blocks, or more than 10^9 weights in their convolutions.

    Source: He et al. 2015, arXiv 1512.03385, section 4.2.
    Differs: where the shape changes the shortcut is a 1x1 convolution (option B), not zero padding (option A).
    """

    width: int = 16
    blocks: tuple[int, ...] = (1, 1, 1)
    zero_last_gamma: bool = False

    def __post_init__(self) -> None:
        require_count("SmallResNet.width", self.width)
        if not isinstance(self.blocks, tuple) or not self.blocks:
            raise ValueError(f"SmallResNet.blocks must be a tuple of at least one number, got {self.blocks!r}")
        for num_blocks in self.blocks:
            require_count("SmallResNet.blocks", num_blocks)
        stages = zip(self.blocks, (self.width * 2**stage for stage in range(len(self.blocks))), strict=True)
        weights = sum(18 * num_blocks * channels**2 for num_blocks, channels in stages)
        require_buildable("SmallResNet.width and .blocks", weights=weights, blocks=sum(self.blocks))
        require_flag("SmallResNet.zero_last_gamma", self.zero_last_gamma)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.small_image_networks import ResidualNetwork

        return ResidualNetwork(
            channels, num_classes, width=self.width, blocks=self.blocks, zero_last_gamma=self.zero_last_gamma
        )


@dataclass(frozen=True, kw_only=True)
class WideResNet:
    """WRN-depth-widen for images of 32x32: three stages of n wide pre-activation blocks, depth 6n + 4.

    A 3x3 convolution with 16 channels; stages of 16, 32 and 64 times `widen` channels, the second and third at half
    the size of the one before; normalisation, a global average and one linear layer. WRN-16-4, the default, has 2.75
    million parameters with 10 classes. The depth counts the 1x1 convolutions of the three shortcuts. Weights: He normal
    (fan out), linear layer LeCun normal with bias 0.

    Args:
        depth: 6n + 4 with n at least 1: 10, 16, 22, 28, 40.
        widen: the paper's k, at least 1; with 1 the first shortcut is the identity.
        dropout: probability that a value between the two convolutions of a block is dropped while training, in [0, 1).
            The masks are the updater's, see `trainers.models.keyed_random.KeyedDropout`.
    Raises:
        ValueError: `depth` is not of this form; `widen` is no whole number above 0; `dropout` is outside [0, 1); more
            than 2,000 blocks, or more than 10^9 weights in their convolutions.

    Source: Zagoruyko and Komodakis 2016, arXiv 1605.07146, through the authors' models/wide-resnet.lua and utils.lua.
    Differs: the authors leave the linear layer's weights to Torch's default.
    """

    depth: int = 16
    widen: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_count("WideResNet.depth", self.depth, at_least=10)
        if (self.depth - 4) % 6:
            nearest = 6 * round((self.depth - 4) / 6) + 4
            raise ValueError(f"WideResNet.depth must be 6n + 4, got {self.depth}: the nearest is {nearest}")
        require_count("WideResNet.widen", self.widen)
        blocks = (self.depth - 4) // 6  # of each of three stages; below, 1 + 4 + 16 is of their channels' squares
        weights = 18 * blocks * (1 + 4 + 16) * (16 * self.widen) ** 2
        require_buildable("WideResNet.depth and .widen", weights=weights, blocks=3 * blocks)
        require_share("WideResNet.dropout", self.dropout)

    def build(self, *, num_classes: int, channels: int, image_size: int | None) -> chainer.Chain:
        """The network with all its parameters initialised; `image_size` changes nothing."""
        from trainers.models.small_image_networks import WideResidualNetwork

        return WideResidualNetwork(
            channels, num_classes, blocks=(self.depth - 4) // 6, widen=self.widen, dropout=self.dropout
        )
