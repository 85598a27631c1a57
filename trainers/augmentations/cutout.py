"""A square of an image set to zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recipes.arguments import require_count
from recipes.planning.random_bits import Draws


@dataclass(frozen=True, kw_only=True)
class Cutout:
    """A square around a uniformly random pixel set to zero; what of it lies outside the image is lost.

        rows y - size // 2 to y - size // 2 + size - 1, columns alike        y ~ U{0, ..., height - 1}

    Args:
        size: side of the square in pixels. Zero is black before `Normalize` and the mean after it: put it last.
    Raises:
        ValueError: `size` is no whole number above 0.

    Source: DeVries and Taylor 2017, arXiv 1708.04552 (not checked); their code, uoguelph-mlrg/Cutout, util/cutout.py.
    Differs: a version of that code (commit 02f333a) goes `size` pixels to both sides of the centre.
    """

    size: int

    # Its size is that of the hole: the image keeps its own.
    keeps_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("Cutout.size", self.size)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """A copy of the image with a hole."""
        height, width, _ = image_HWC.shape
        top, left = (draws.integers(length) - self.size // 2 for length in (height, width))
        cut_HWC = image_HWC.copy()
        cut_HWC[max(top, 0) : max(top + self.size, 0), max(left, 0) : max(left + self.size, 0)] = 0
        return cut_HWC
