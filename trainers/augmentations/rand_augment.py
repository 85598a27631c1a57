"""A few operations on an image, drawn from fifteen, all of one magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from PIL import Image

from lr_schedules.units import require_number
from recipes.arguments import require_count
from recipes.planning.random_bits import Draws
from trainers.augmentations import image_operations as operations
from trainers.augmentations.image_operations import Operation, Sampling

_LARGEST_MAGNITUDE = 10
_PROBABILITY = 0.5
_FILL = 128
_FILTERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """`num_ops` operations, each drawn from fifteen and applied with probability 1/2.

        m = clip(magnitude + std z, 0, 10) / 10     z ~ N(0, 1), s = -1 or 1, drawn for each operation
        AutoContrast, Equalize, Invert;  Posterize: 4 - floor(4 m) bits;  Solarize: from 256 - floor(256 m) on
        SolarizeAdd: floor(110 m);  Color, Contrast, Brightness, Sharpness: max(0.1, 1 + 0.9 s m)
        Rotate: 30 s m degrees;  ShearX, ShearY: 0.3 s m;  TranslateX, TranslateY: 0.45 s m of the side

    Pixels that come from outside are grey (128); what moves is interpolated bilinearly or bicubically, as drawn. On
    images of one channel Color does nothing.

    Args:
        num_ops: operations that are drawn, at least 1.
        magnitude: strength of the operations, in [0, 10].
        std: deviation of the magnitude from one operation to the next, at least 0.
    Raises:
        ValueError: `num_ops` is no whole number above 0; `magnitude` or `std` is no number in range. Before the run,
            and when called: the image has neither 1 nor 3 channels.

    Source: timm, data/auto_augment.py, `rand-m{magnitude}-n{num_ops}-mstd{std}-inc1` (commit 066e490 and
        1.0.31): the operations, the "increasing" magnitudes, the probability. Cubuk et al. 2019, arXiv 1909.13719 (not
        checked).
    Differs: torchvision always does all `num_ops`, of fourteen with Identity and without Invert and SolarizeAdd, and
        counts magnitudes to 30. timm itself fills with this grey, its training script with the data set's mean.
    """

    num_ops: int = 2
    magnitude: float = 9
    std: float = 0.0

    # What it does is defined on 0..255: after `Normalize` it is refused.
    needs_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("RandAugment.num_ops", self.num_ops)
        require_number("RandAugment.magnitude", self.magnitude, at_least=0, at_most=_LARGEST_MAGNITUDE)
        require_number("RandAugment.std", self.std, at_least=0)

    def require_channels(self, channels: int) -> None:
        """Refuse images that are neither grey nor red, green and blue.

        Raises:
            ValueError: neither 1 nor 3 channels.
        """
        operations.require_grey_or_colour("RandAugment", channels)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The image after the operations, shape and type as given."""
        height, width, channels = image_HWC.shape
        self.require_channels(channels)
        drawn = [self._drawn(draws, height, width) for _ in range(self.num_ops)]
        return operations.operated(image_HWC, [operation for operation in drawn if operation is not None])

    def _drawn(self, draws: Draws, height: int, width: int) -> Operation | None:
        done = draws.uniform() < _PROBABILITY
        magnitude = self.magnitude + self.std * float(draws.normals(1)[0])
        sign = 2 * draws.integers(2) - 1
        sampling = Sampling(filter_=_FILTERS[draws.integers(2)], fill=_FILL)
        share = min(max(magnitude, 0.0), _LARGEST_MAGNITUDE) / _LARGEST_MAGNITUDE
        known = _operations(share, sign, sampling, height, width)
        operation = known[draws.integers(len(known))]
        return operation if done else None


def _operations(m: float, s: int, sampling: Sampling, height: int, width: int) -> tuple[Operation, ...]:
    return (
        operations.auto_contrast,
        operations.equalize,
        operations.invert,
        partial(operations.posterize, bits=4 - int(4 * m)),
        partial(operations.solarize, threshold=256 - int(256 * m)),
        partial(operations.solarize_add, addend=int(110 * m)),
        *operations.enhancements(max(0.1, 1 + 0.9 * s * m)),
        *operations.moves(
            sampling, degrees=30 * s * m, shear=0.3 * s * m, x=0.45 * s * m * width, y=0.45 * s * m * height
        ),
    )
