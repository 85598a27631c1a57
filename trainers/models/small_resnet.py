"""A small residual network for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.arguments import require_buildable, require_count, require_flag

if TYPE_CHECKING:
    import chainer


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
        from trainers.models.residual_network import ResidualNetwork

        return ResidualNetwork(
            channels, num_classes, width=self.width, blocks=self.blocks, zero_last_gamma=self.zero_last_gamma
        )
