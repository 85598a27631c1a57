"""A few operations on an image, drawn from fourteen or fifteen, by Pillow on 8 bits and 1 or 3 channels.

The names of the operations are those of Cubuk et al. 2018, arXiv 1805.09501 (not checked).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from lr_schedules.units import require_number
from recipes.arguments import require_count
from recipes.planning.random_bits import Draws

LARGEST_MAGNITUDE = 10  # of RandAugment
PROBABILITY = 0.5
_FILL = 128
_FILTERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
_NUM_MAGNITUDES = 31  # of TrivialAugment
_SOLARIZE_ADD_BELOW = 128
Operation = Callable[[Image.Image], Image.Image]


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

    needs_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("RandAugment.num_ops", self.num_ops)
        require_number("RandAugment.magnitude", self.magnitude, at_least=0, at_most=LARGEST_MAGNITUDE)
        require_number("RandAugment.std", self.std, at_least=0)

    def require_channels(self, channels: int) -> None:
        """Refuse other than 1 or 3 channels, by a ValueError."""
        require_grey_or_colour("RandAugment", channels)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The image after the operations, shape and type as given."""
        height, width, channels = image_HWC.shape
        self.require_channels(channels)
        drawn = [self._drawn(draws, height, width) for _ in range(self.num_ops)]
        return operated(image_HWC, [operation for operation in drawn if operation is not None])

    def _drawn(self, draws: Draws, height: int, width: int) -> Operation | None:
        applied = draws.uniform() < PROBABILITY
        magnitude = self.magnitude + self.std * float(draws.normals(1)[0])
        sign = 2 * draws.integers(2) - 1
        sampling = Sampling(filter_=_FILTERS[draws.integers(2)], fill=_FILL)
        share = min(max(magnitude, 0.0), LARGEST_MAGNITUDE) / LARGEST_MAGNITUDE
        operations = rand_augment_operations(share, sign, sampling, height, width)
        operation = operations[draws.integers(len(operations))]
        return operation if applied else None


def rand_augment_operations(m: float, s: int, sampling: Sampling, height: int, width: int) -> tuple[Operation, ...]:
    """The operations that RandAugment draws from, at a magnitude `m` in [0, 1] of sign `s`."""
    return (
        ImageOps.autocontrast,
        ImageOps.equalize,
        ImageOps.invert,
        partial(posterize, bits=4 - int(4 * m)),
        partial(ImageOps.solarize, threshold=256 - int(256 * m)),
        partial(solarize_add, addend=int(110 * m)),
        *_enhancements(max(0.1, 1 + 0.9 * s * m)),
        *_moves(sampling, degrees=30 * s * m, shear=0.3 * s * m, x=0.45 * s * m * width, y=0.45 * s * m * height),
    )


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

    needs_pixels: ClassVar[bool] = True

    def require_channels(self, channels: int) -> None:
        """Refuse other than 1 or 3 channels, by a ValueError."""
        require_grey_or_colour("TrivialAugment", channels)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The image after one operation, shape and type as given."""
        self.require_channels(image_HWC.shape[2])
        share = draws.integers(_NUM_MAGNITUDES) / (_NUM_MAGNITUDES - 1)
        operations = trivial_augment_operations(share, 2 * draws.integers(2) - 1)
        return operated(image_HWC, [operations[draws.integers(len(operations))]])


def trivial_augment_operations(m: float, s: int) -> tuple[Operation, ...]:
    """The operations that TrivialAugment draws from, at a magnitude `m` in [0, 1] of sign `s`."""
    sampling, pixels = Sampling(filter_=Image.Resampling.BILINEAR, fill=0), s * int(32 * m)
    return (
        identity,
        ImageOps.autocontrast,
        ImageOps.equalize,
        partial(posterize, bits=8 - round(6 * m)),
        partial(ImageOps.solarize, threshold=255 * (1 - m)),
        *_enhancements(1 + 0.99 * s * m),
        *_moves(sampling, degrees=135 * s * m, shear=0.99 * s * m, x=pixels, y=pixels),
    )


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How an operation that moves pixels resamples the image.

    Args:
        filter_: Pillow's interpolation.
        fill: level of every channel for pixels from outside the image, 0 to 255.
    """

    filter_: Image.Resampling
    fill: int

    def fill_of(self, image: Image.Image) -> int | tuple[int, ...]:
        """`fill` as Pillow takes it for such an image."""
        bands = len(image.getbands())
        return self.fill if bands == 1 else (self.fill,) * bands


def require_grey_or_colour(name: str, channels: int) -> None:
    """Refuse images that have neither 1 nor 3 channels, by a ValueError."""
    if channels not in (1, 3):
        raise ValueError(f"{name} needs images of 1 or 3 channels, these have {channels}: remove it")


def operated(image_HWC: np.ndarray, operations: list[Operation]) -> np.ndarray:
    """The operations on an image, one after the other; float32 is rounded to 8 bits first and stays float32."""
    if not operations:
        return image_HWC
    levels_HWC = image_HWC if image_HWC.dtype == np.uint8 else np.rint(image_HWC).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(levels_HWC[:, :, 0] if levels_HWC.shape[2] == 1 else levels_HWC)
    for operation in operations:
        image = operation(image)
    return np.asarray(image, dtype=image_HWC.dtype).reshape(image_HWC.shape)


def identity(image: Image.Image) -> Image.Image:
    """The image."""
    return image


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """The upper `bits` of 8, the others 0; of 0 bits a black image, which Pillow 13 refuses."""
    return image.point([level >> 8 - bits << 8 - bits for level in range(256)] * len(image.getbands()))


def solarize_add(image: Image.Image, addend: int) -> Image.Image:
    """Levels below 128 raised by `addend`, at most to 255."""
    raised = [min(255, level + addend) if level < _SOLARIZE_ADD_BELOW else level for level in range(256)]
    return image.point(raised * len(image.getbands()))


def enhanced(image: Image.Image, enhancement: type, factor: float) -> Image.Image:
    """The difference from a black, colourless, evenly grey or smoothed image, by the kind, times the factor."""
    return enhancement(image).enhance(factor)


def rotated(image: Image.Image, degrees: float, sampling: Sampling) -> Image.Image:
    """Turned around its middle, counter-clockwise."""
    return image.rotate(degrees, sampling.filter_, fillcolor=sampling.fill_of(image))


def moved(image: Image.Image, matrix: tuple[float, ...], sampling: Sampling) -> Image.Image:
    """Pixel (x, y) from (a x + b y + c, d x + e y + f), with `matrix` (a, b, c, d, e, f)."""
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        matrix,
        resample=sampling.filter_,
        fillcolor=sampling.fill_of(image),
    )


def _moves(sampling: Sampling, *, degrees: float, shear: float, x: float, y: float) -> tuple[Operation, ...]:
    """Rotate, ShearX, ShearY, TranslateX, TranslateY: counter-clockwise, to the left and up."""
    matrices = ((1, shear, 0, 0, 1, 0), (1, 0, 0, shear, 1, 0), (1, 0, x, 0, 1, 0), (1, 0, 0, 0, 1, y))
    affine = (partial(moved, matrix=matrix, sampling=sampling) for matrix in matrices)
    return partial(rotated, degrees=degrees, sampling=sampling), *affine


def _enhancements(factor: float) -> tuple[Operation, ...]:
    kinds = (ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness)
    return tuple(partial(enhanced, enhancement=kind, factor=factor) for kind in kinds)
