"""A plain convolutional network for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.arguments import require_buildable, require_count, require_share

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class SmallCNN:
    """Three times convolution, batch normalisation and ReLU, then a global average and one linear layer.

    The 3x3 convolutions have `width`, 2 `width` and 4 `width` channels and no bias; a 2x2 max pooling stands between
    them. Made for images of 8x8 to 32x32; a `first_stride` saves time on the larger ones. Weights: He normal (fan in),
    linear layer LeCun normal with bias 0.

    Args:
        width: channels of the first convolution, at least 1.
        dropout: probability that a feature of the global average is dropped while training, in [0, 1). The masks are
            the updater's, see `trainers.keyed_draws.KeyedDropout`.
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
        from trainers.models.convolutional_network import ConvolutionalNetwork

        return ConvolutionalNetwork(
            channels, num_classes, width=self.width, dropout=self.dropout, first_stride=self.first_stride
        )
