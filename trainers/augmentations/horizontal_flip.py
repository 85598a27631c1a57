"""The mirror image, now and then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lr_schedules.units import require_number
from recipes.planning.random_bits import Draws


@dataclass(frozen=True, kw_only=True)
class HorizontalFlip:
    """Left and right exchanged with a probability.

    Args:
        probability: probability of the mirror image, in [0, 1].
    Raises:
        ValueError: `probability` is no number in [0, 1].

    Source: fb.resnet.torch, datasets/transforms.lua, HorizontalFlip.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        require_number("HorizontalFlip.probability", self.probability, at_least=0, at_most=1)

    def mirrors(self, draws: Draws) -> bool:
        """Whether it is the mirror image; an array by `ManyDraws`."""
        return draws.uniform() < self.probability

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The image or its mirror image."""
        return image_HWC[:, ::-1] if self.mirrors(draws) else image_HWC
