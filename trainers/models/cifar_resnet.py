"""The residual networks of He et al. for CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainers.arguments import require_flag

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
        from trainers.models.residual_network import ResidualNetwork

        return ResidualNetwork(
            channels,
            num_classes,
            width=16,
            blocks=((self.depth - 2) // 6,) * 3,
            zero_last_gamma=self.zero_last_gamma,
            shortcut=self.shortcut,
        )
