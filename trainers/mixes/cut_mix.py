"""A rectangle of one image pasted into another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lr_schedules.units import require_number
from recipes.planning.draws import Draws


@dataclass(frozen=True, kw_only=True)
class CutMix:
    """An image with a rectangle of its partner's, the same rectangle in the whole norm group.

        r ~ Beta(alpha, alpha);   h = floor(H sqrt(1 - r)), w = floor(W sqrt(1 - r))
        centre: uniform over all pixels;   from centre - floor(h/2) up to, not with, centre + floor(h/2), clipped
        target = s y_i + (1 - s) y_j,   s = 1 - (pixels of the clipped rectangle) / (H W)

    s is the share of pixels that an image really keeps, not r: a rectangle that reaches over the edge is clipped, and
    odd sides lose a pixel. The partner of sample i of a norm group of n is sample n - 1 - i. The images are mixed after
    all augmentation of both.

    Args:
        alpha: parameter of the Beta distribution, above 0; 1 makes the areas before clipping uniform.
        probability: that a norm group is mixed at all, in [0, 1].
    Raises:
        ValueError: `alpha` is no number above 0; `probability` is no number in [0, 1].

    Source: Yun et al. 2019, arXiv 1905.04899, and its code, github.com/clovaai/CutMix-PyTorch, train.py (rectangle and
        corrected share); timm, data/mixup.py (the partner).
    Differs: both draw once a device batch; here once a norm group, so that the number of workers changes nothing. timm
        1.0.31 lets odd sides keep their pixel; 1.0.29.dev0, torchvision and the authors do as here.
    """

    alpha: float
    probability: float = 1.0

    def __post_init__(self) -> None:
        require_number("CutMix.alpha", self.alpha, above=0)
        require_number("CutMix.probability", self.probability, at_least=0, at_most=1)

    def __call__(self, images_NCHW: np.ndarray, partners_NCHW: np.ndarray, draws: Draws) -> tuple[np.ndarray, float]:
        """Mixed images of the type of those given, and s."""
        if draws.uniform() >= self.probability:
            return images_NCHW, 1.0
        height, width = images_NCHW.shape[2:]
        rows, columns = self.rectangle(height, width, draws)
        mixed_NCHW = images_NCHW.copy()
        mixed_NCHW[:, :, rows, columns] = partners_NCHW[:, :, rows, columns]
        pasted = (rows.stop - rows.start) * (columns.stop - columns.start)
        return mixed_NCHW, 1.0 - pasted / (height * width)

    def rectangle(self, height: int, width: int, draws: Draws) -> tuple[slice, slice]:
        """Rows and columns of the rectangle in images of this height and width."""
        side = math.sqrt(1.0 - draws.symmetric_beta(self.alpha))
        return _around(draws.integers(height), int(height * side), height), _around(
            draws.integers(width), int(width * side), width
        )


def _around(centre: int, length: int, size: int) -> slice:
    return slice(max(centre - length // 2, 0), min(centre + length // 2, size))
