"""The wide residual networks of Zagoruyko and Komodakis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.arguments import require_buildable, require_count, require_share

if TYPE_CHECKING:
    import chainer


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
            The masks are the updater's, see `trainers.keyed_draws.KeyedDropout`.
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
        from trainers.models.wide_residual_network import WideResidualNetwork

        return WideResidualNetwork(
            channels, num_classes, blocks=(self.depth - 4) // 6, widen=self.widen, dropout=self.dropout
        )
