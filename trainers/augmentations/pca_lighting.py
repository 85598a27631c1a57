"""Lighting noise along the principal colours of ImageNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lr_schedules.units import require_number
from recipes.planning.random_bits import Draws
from trainers.augmentations.image_operations import as_given

_VALUES = np.array([0.2175, 0.0188, 0.0045])
# A principal colour is a column; the first is nearly grey.
_VECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


@dataclass(frozen=True, kw_only=True)
class PcaLighting:
    """The same random colour added to every pixel, drawn along the principal colours of ImageNet.

        y = x + 255 sum_k p_k l_k a_k        a_k ~ N(0, std^2), drawn once an image for each of k = 1, 2, 3

    p_k are the eigenvectors and l_k the eigenvalues of the covariance of red, green and blue in 0..1. The result is
    clipped to 0..255.

    Args:
        std: deviation of the factors a_k, at least 0.
    Raises:
        ValueError: `std` is no number of at least 0. Before the run, and when called: the image has not 3 channels.

    Source: fb.resnet.torch, datasets/transforms.lua, Lighting (formula), datasets/imagenet.lua (numbers, std 0.1);
        Krizhevsky et al. 2012, section 4.1 (not checked).
    Differs: fb.resnet.torch does not clip. ChainerCV's pca_lighting multiplies by the transposed eigenvectors, so its
        first noise is no shade of grey: not used.
    """

    std: float = 0.1

    # What it does is defined on 0..255: after `Normalize` it is refused.
    needs_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("PcaLighting.std", self.std, at_least=0)

    def require_channels(self, channels: int) -> None:
        """Refuse images that this cannot serve.

        Raises:
            ValueError: not 3 channels.
        """
        if channels != 3:
            raise ValueError(
                f"PcaLighting needs images of red, green and blue, these have {channels} channels: remove it"
            )

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The image in another light, shape and type as given."""
        self.require_channels(image_HWC.shape[2])
        colour = 255.0 * _VECTORS @ (_VALUES * self.std * draws.normals(3))
        lit_HWC = image_HWC + colour.astype(np.float32)
        return as_given(np.clip(lit_HWC, 0, 255, out=lit_HWC), image_HWC.dtype)
