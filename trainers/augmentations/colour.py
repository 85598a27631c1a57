"""Colours changed at random: brightness, contrast, saturation and hue; lighting noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lr_schedules.units import require_number
from recipes.planning.random_bits import Draws
from trainers.augmentations.auto_augment import require_grey_or_colour

_SHARES_OF_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601
# The eigenvalues and eigenvectors of ImageNet's colours. A principal colour is a column; the first is nearly grey.
_VALUES = np.array([0.2175, 0.0188, 0.0045])
_VECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


@dataclass(frozen=True, kw_only=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue, each changed by a random amount, in a random order.

        brightness:  y = a x                        a ~ U(1 - brightness, 1 + brightness)
        contrast:    y = a x + (1 - a) m            m: mean of the grey image
        saturation:  y = a x + (1 - a) g            g: the grey image, 0.299 R + 0.587 G + 0.114 B
        hue:         the hue of HSV + h, in turns   h ~ U(-hue, hue)

    A field of 0 is skipped. The result of each change is clipped to 0..255; uint8 is rounded once, at the end.

    Args:
        brightness: largest change of the factor, in [0, 1].
        contrast: the same for contrast.
        saturation: the same for saturation; 0 for images of one channel, which have no colour.
        hue: largest turn of the colour circle, in [0, 0.5]; 0 for images of one channel.
    Raises:
        ValueError: a field is no number in range. Before the run, and when called: the channels are neither 1 nor 3,
            or 1 with a saturation or hue above 0.

    Source: fb.resnet.torch, datasets/transforms.lua, ColorJitter (formulas, random order; 0.4 each, without hue);
        torchvision, transforms.ColorJitter (hue).
    Differs: fb.resnet.torch does not clip; torchvision rounds to uint8 after every change.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    needs_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, largest in (("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0.5)):
            require_number(f"ColorJitter.{name}", getattr(self, name), at_least=0, at_most=largest)

    def require_channels(self, channels: int) -> None:
        """Refuse other than 1 or 3 channels, and 1 with a saturation or hue above 0, by a ValueError."""
        require_grey_or_colour("ColorJitter", channels)
        for name in ("saturation", "hue") if channels == 1 else ():
            if getattr(self, name):
                raise ValueError(f"ColorJitter.{name} must be 0 for images of 1 channel, got {getattr(self, name)!r}")

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """Another colouring of the image, shape and type as given."""
        self.require_channels(image_HWC.shape[2])
        order = np.argsort(draws.bits(4), kind="stable")
        changes = 2.0 * draws.uniforms(4) - 1.0
        adjustments = (
            (_brightened, self.brightness, 1.0),
            (_contrasted, self.contrast, 1.0),
            (_saturated, self.saturation, 1.0),
            (_turned, self.hue, 0.0),
        )
        changed_HWC = image_HWC.astype(np.float32)
        for number in order:
            adjust, largest, neutral = adjustments[number]
            if largest:
                changed_HWC = adjust(changed_HWC, neutral + largest * float(changes[number]))
                np.clip(changed_HWC, 0, 255, out=changed_HWC)
        return as_given(changed_HWC, image_HWC.dtype)


def _brightened(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    return image_HWC * np.float32(factor)


def _contrasted(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    mean = grey(image_HWC).mean(dtype=np.float64)
    return image_HWC * np.float32(factor) + np.float32((1 - factor) * mean)


def _saturated(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    return image_HWC * np.float32(factor) + grey(image_HWC) * np.float32(1 - factor)


def _turned(image_HWC: np.ndarray, turns: float) -> np.ndarray:
    """The hue moved by a part of the colour circle; value and saturation stay."""
    red, green, blue = image_CHW = np.ascontiguousarray(image_HWC.transpose(2, 0, 1))
    value = image_CHW.max(axis=0)
    chroma = value - image_CHW.min(axis=0)
    sixths = np.where(
        value == red, green - blue, np.where(value == green, 2 * chroma + blue - red, 4 * chroma + red - green)
    )
    sixths /= np.where(chroma > 0, chroma, 1)  # of grey: 0
    turned_HWC = np.empty_like(image_HWC)
    for channel, offset in enumerate((5, 3, 1)):
        distance = sixths + np.float32(offset + 6 * turns)
        distance -= 6 * np.floor(distance / 6)  # several times faster than %
        # HSV to RGB: V - C max(0, min(k, 4 - k, 1)), k the distance.
        share = np.clip(np.minimum(distance, 4 - distance), 0, 1)
        turned_HWC[:, :, channel] = value - chroma * share
    return turned_HWC


def grey(image_HWC: np.ndarray) -> np.ndarray:
    """The brightness of each pixel, float32 (height, width, 1); of one channel that channel."""
    if image_HWC.shape[2] == 1:
        return image_HWC
    return image_HWC @ _SHARES_OF_GREY[:, np.newaxis]


def as_given(image_HWC: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A float32 image in 0..255, which may be overwritten, as one of the type that was given; uint8 is rounded."""
    return np.rint(image_HWC, out=image_HWC).astype(np.uint8) if dtype == np.uint8 else image_HWC


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

    needs_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("PcaLighting.std", self.std, at_least=0)

    def require_channels(self, channels: int) -> None:
        """Refuse other than 3 channels, by a ValueError."""
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
