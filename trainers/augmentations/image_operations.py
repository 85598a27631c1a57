"""The operations that automatic augmentation chooses from, on Pillow's images of 8 bits and 1 or 3 channels.

Each takes (image, value) and gives an image of the same size; those that move pixels also take a `Sampling`. The names
are those of Cubuk et al. 2018, arXiv 1805.09501 (not checked).

Grey values, and the conversion back to an image's type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

Operation = Callable[[Image.Image], Image.Image]
_SOLARIZE_ADD_BELOW = 128


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How an operation that moves pixels resamples the image.

    Args:
        filter_: Pillow's interpolation.
        fill: level of every channel for pixels from outside the image, 0 to 255.
    """

    filter_: Image.Resampling
    fill: int


def require_grey_or_colour(name: str, channels: int) -> None:
    """Refuse images that are neither grey nor red, green and blue.

    Raises:
        ValueError: neither 1 nor 3 channels.
    """
    if channels not in (1, 3):
        raise ValueError(f"{name} needs images of 1 or 3 channels, these have {channels}: remove it")


def operated(image_HWC: np.ndarray, operations: list[Operation]) -> np.ndarray:
    """The operations on an image, one after the other; float32 is rounded to 8 bits first and stays float32."""
    if not operations:
        return image_HWC
    levels_HWC = image_HWC if image_HWC.dtype == np.uint8 else np.rint(image_HWC).astype(np.uint8)
    image = Image.fromarray(levels_HWC[:, :, 0] if levels_HWC.shape[2] == 1 else levels_HWC)
    for operation in operations:
        image = operation(image)
    return np.asarray(image, dtype=image_HWC.dtype).reshape(image_HWC.shape)


def identity(image: Image.Image) -> Image.Image:
    """The image."""
    return image


def auto_contrast(image: Image.Image) -> Image.Image:
    """Each channel stretched to 0..255."""
    return ImageOps.autocontrast(image)


def equalize(image: Image.Image) -> Image.Image:
    """Each channel's levels spread so that they come equally often."""
    return ImageOps.equalize(image)


def invert(image: Image.Image) -> Image.Image:
    """255 minus each level."""
    return ImageOps.invert(image)


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """The upper `bits` of 8, the others 0; of 0 bits a black image, which Pillow 13 refuses."""
    return image.point([level >> 8 - bits << 8 - bits for level in range(256)] * len(image.getbands()))


def solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Levels from the threshold on inverted."""
    return ImageOps.solarize(image, threshold)


def solarize_add(image: Image.Image, addend: int) -> Image.Image:
    """Levels below 128 raised by `addend`, at most to 255."""
    raised = [min(255, level + addend) if level < _SOLARIZE_ADD_BELOW else level for level in range(256)]
    return image.point(raised * len(image.getbands()))


def brightness(image: Image.Image, factor: float) -> Image.Image:
    """Each level times the factor."""
    return ImageEnhance.Brightness(image).enhance(factor)


def color(image: Image.Image, factor: float) -> Image.Image:
    """The distance from the grey image times the factor: nothing on a grey one."""
    return ImageEnhance.Color(image).enhance(factor)


def contrast(image: Image.Image, factor: float) -> Image.Image:
    """The distance from the mean grey times the factor."""
    return ImageEnhance.Contrast(image).enhance(factor)


def sharpness(image: Image.Image, factor: float) -> Image.Image:
    """The distance from the smoothed image times the factor."""
    return ImageEnhance.Sharpness(image).enhance(factor)


def rotate(image: Image.Image, degrees: float, sampling: Sampling) -> Image.Image:
    """Turned around its middle, counter-clockwise."""
    return image.rotate(degrees, sampling.filter_, fillcolor=_fill(image, sampling))


def shear_x(image: Image.Image, share: float, sampling: Sampling) -> Image.Image:
    """Each row moved to the left by `share` times its number from the top."""
    return _affine(image, (1, share, 0, 0, 1, 0), sampling)


def shear_y(image: Image.Image, share: float, sampling: Sampling) -> Image.Image:
    """Each column moved up by `share` times its number from the left."""
    return _affine(image, (1, 0, 0, share, 1, 0), sampling)


def translate_x(image: Image.Image, pixels: float, sampling: Sampling) -> Image.Image:
    """Moved to the left."""
    return _affine(image, (1, 0, pixels, 0, 1, 0), sampling)


def translate_y(image: Image.Image, pixels: float, sampling: Sampling) -> Image.Image:
    """Moved up."""
    return _affine(image, (1, 0, 0, 0, 1, pixels), sampling)


def moves(sampling: Sampling, *, degrees: float, shear: float, x: float, y: float) -> tuple[Operation, ...]:
    """The five operations that move pixels: rotate, shear_x, shear_y, translate_x, translate_y."""
    return (
        partial(rotate, degrees=degrees, sampling=sampling),
        partial(shear_x, share=shear, sampling=sampling),
        partial(shear_y, share=shear, sampling=sampling),
        partial(translate_x, pixels=x, sampling=sampling),
        partial(translate_y, pixels=y, sampling=sampling),
    )


def enhancements(factor: float) -> tuple[Operation, ...]:
    """The four operations that blend with a poorer image: brightness, color, contrast, sharpness."""
    return tuple(partial(enhance, factor=factor) for enhance in (brightness, color, contrast, sharpness))


def _affine(image: Image.Image, numbers: tuple[float, ...], sampling: Sampling) -> Image.Image:
    fill = _fill(image, sampling)
    return image.transform(image.size, Image.Transform.AFFINE, numbers, resample=sampling.filter_, fillcolor=fill)


def _fill(image: Image.Image, sampling: Sampling) -> int | tuple[int, ...]:
    bands = len(image.getbands())
    return sampling.fill if bands == 1 else (sampling.fill,) * bands


_SHARES_OF_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601


def grey(image_HWC: np.ndarray) -> np.ndarray:
    """The brightness of each pixel, float32 (height, width, 1); of one channel that channel."""
    if image_HWC.shape[2] == 1:
        return image_HWC
    return image_HWC @ _SHARES_OF_GREY[:, np.newaxis]


def as_given(image_HWC: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A float32 image in 0..255, which may be overwritten, as one of the type that was given; uint8 is rounded."""
    return np.rint(image_HWC, out=image_HWC).astype(np.uint8) if dtype == np.uint8 else image_HWC
