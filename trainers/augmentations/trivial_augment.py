"""One operation on an image, drawn from fourteen, of a random magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from PIL import Image

from recipes.planning.random_bits import Draws
from trainers.augmentations import image_operations as operations
from trainers.augmentations.image_operations import Operation, Sampling

_NUM_MAGNITUDES = 31
_SAMPLING = Sampling(filter_=Image.Resampling.BILINEAR, fill=0)


@dataclass(frozen=True, kw_only=True)
class TrivialAugment:
    """One of fourteen operations at one of 31 magnitudes, both uniform: the wide space of TrivialAugment.

        m ~ U{0, 1/30, ..., 1}, s = -1 or 1
        Identity, AutoContrast, Equalize;  Posterize: 8 - round(6 m) bits;  Solarize: from 255 (1 - m) on
        Color, Contrast, Brightness, Sharpness: 1 + 0.99 s m
        Rotate: 135 s m degrees;  ShearX, ShearY: 0.99 s m;  TranslateX, TranslateY: floor(32 m) s pixels

    Pixels that come from outside are black; what moves is interpolated bilinearly. On images of one channel Color does
    nothing.

    Raises:
        ValueError: before the run, and when called: the image has neither 1 nor 3 channels.

    Source: torchvision, transforms/autoaugment.py, TrivialAugmentWide (commit 0352a47), with the interpolation of its
        references/classification/presets.py. Müller and Hutter 2021, arXiv 2103.10158 (not checked).
    Differs: at m = 1/2 torchvision moves by 15 pixels, not 16: its magnitudes are float32 and cut off.
    """

    # What it does is defined on 0..255: after `Normalize` it is refused.
    needs_pixels: ClassVar[bool] = True

    def require_channels(self, channels: int) -> None:
        """Refuse images that are neither grey nor red, green and blue.

        Raises:
            ValueError: neither 1 nor 3 channels.
        """
        operations.require_grey_or_colour("TrivialAugment", channels)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The image after one operation, shape and type as given."""
        self.require_channels(image_HWC.shape[2])
        share = draws.integers(_NUM_MAGNITUDES) / (_NUM_MAGNITUDES - 1)
        known = _operations(share, 2 * draws.integers(2) - 1)
        return operations.operated(image_HWC, [known[draws.integers(len(known))]])


def _operations(m: float, s: int) -> tuple[Operation, ...]:
    pixels = s * int(32 * m)
    return (
        operations.identity,
        operations.auto_contrast,
        operations.equalize,
        partial(operations.posterize, bits=8 - round(6 * m)),
        partial(operations.solarize, threshold=255 * (1 - m)),
        *operations.enhancements(1 + 0.99 * s * m),
        *operations.moves(_SAMPLING, degrees=135 * s * m, shear=0.99 * s * m, x=pixels, y=pixels),
    )
