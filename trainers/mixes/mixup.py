"""Two images laid over each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lr_schedules.units import require_number
from recipes.planning.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Mixup:
    """A weighted mean of an image and its partner, the same weight in the whole norm group.

        image = s x_i + (1 - s) x_j        target = s y_i + (1 - s) y_j        s ~ Beta(alpha, alpha)

    The partner of sample i of a norm group of n is sample n - 1 - i. The images are mixed after all augmentation of
    both.

    Args:
        alpha: parameter of the Beta distribution, above 0; with 1 all s are equally likely, smaller values leave one
            image nearly whole.
        probability: that a norm group is mixed at all, in [0, 1].
    Raises:
        ValueError: `alpha` is no number above 0; `probability` is no number in [0, 1].

    Source: Zhang et al. 2017, arXiv 1710.09412, equation 1 (not checked); timm, data/mixup.py (the partner).
    Differs: timm draws s and chooses partners within a device batch; here within a norm group, so that the number of
        workers changes nothing. torchvision's partner is the sample before.
    """

    alpha: float
    probability: float = 1.0

    def __post_init__(self) -> None:
        require_number("Mixup.alpha", self.alpha, above=0)
        require_number("Mixup.probability", self.probability, at_least=0, at_most=1)

    def __call__(self, images_NCHW: np.ndarray, partners_NCHW: np.ndarray, draws: Draws) -> tuple[np.ndarray, float]:
        """Mixed images of the type of those given, and s."""
        if draws.uniform() >= self.probability:
            return images_NCHW, 1.0
        share = draws.symmetric_beta(self.alpha)
        own, other = (images_NCHW.dtype.type(weight) for weight in (share, 1.0 - share))
        return own * images_NCHW + other * partners_NCHW, share
