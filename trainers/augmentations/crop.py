"""Crops, and change of an image's size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Literal

import numpy as np

from recipes.arguments import ImageSize, require_count, require_range, require_size, younger
from recipes.planning.random_bits import Draws
from trainers.augmentations.decoders import EncodedImage, Interpolation, resampled
from trainers.runs.errors import UnfitImage

_NUM_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class CenterCrop:
    """The square in the middle; where it cannot be in the middle, half a pixel towards the top and left.

    Args:
        size: side of the square in pixels, or `image_size`, the recipe's.
    Raises:
        ValueError: `size` is neither a whole number above 0 nor `image_size`. When called: the image is smaller
            than `size`.

    Source: Goyal et al. 2017, arXiv 1706.02677 (224 of 256 for the errors reported).
    Differs: fb.resnet.torch, datasets/transforms.lua, goes half a pixel towards the bottom and right. torchvision,
        transforms/functional.py, rounds half a margin to the even pixel: of margins of 3, 7, 11, ... pixels its square
        begins one further to the bottom or right.
    """

    size: ImageSize

    def __post_init__(self) -> None:
        require_size("CenterCrop.size", self.size)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """`size` x `size` pixels, channels and type as given."""
        top, left = self.place(*image_HWC.shape[:2], draws)
        return image_HWC[top : top + self.size, left : left + self.size]

    def place(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        """The first row and column of the square in an image of this height and width.

        Raises:
            UnfitImage: it is smaller.
        """
        if min(height, width) < self.size:
            raise UnfitImage(
                f"CenterCrop.size is {self.size}, but the image is {height}x{width}: put a Resize before it, "
                f"or make the size smaller"
            )
        return (height - self.size) // 2, (width - self.size) // 2


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """A square at a uniformly random place of the image, padded with zeros on all sides.

    Args:
        size: side of the square in pixels, or `image_size`, the recipe's.
        padding: pixels of zeros added at each side first, at least 0. Zero is black before `Normalize` and the mean
            after it.
    Raises:
        ValueError: `size` is neither a whole number above 0 nor `image_size`; `padding` is no whole number of at least
            0. When called: the padded image is smaller than `size`.

    Source: He et al. 2015, arXiv 1512.03385, section 4.2 (CIFAR-10: padding 4, size 32).
    """

    size: ImageSize
    padding: int = 0

    def __post_init__(self) -> None:
        require_size("RandomCrop.size", self.size)
        require_count("RandomCrop.padding", self.padding, at_least=0)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """`size` x `size` pixels, channels and type as given."""
        height, width, channels = image_HWC.shape
        padding = self.padding
        top, left = self.place(height, width, draws)
        padded_HWC = np.zeros((height + 2 * padding, width + 2 * padding, channels), dtype=image_HWC.dtype)
        padded_HWC[padding : padding + height, padding : padding + width] = image_HWC
        return padded_HWC[top : top + self.size, left : left + self.size]

    def place(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        """The first row and column of the square in the padded image; arrays by `ManyDraws`.

        Args:
            height, width: of the image without padding.
        Raises:
            UnfitImage: the padded image is smaller.
        """
        padding = self.padding
        rows, columns = height + 2 * padding - self.size + 1, width + 2 * padding - self.size + 1
        if rows < 1 or columns < 1:
            raise UnfitImage(
                f"RandomCrop.size is {self.size}, but the image is {height}x{width} with a padding of {padding}: "
                "make the size smaller, the padding larger, or put a Resize before it"
            )
        return draws.integers(rows), draws.integers(columns)


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A rectangle of random area, shape and place, resampled to a square.

        A ~ U(area) * height * width;   r ~ U(ratio), or log r ~ U(log ratio)
        crop width = round(sqrt(A r)), crop height = round(sqrt(A / r)), with U(ratio) exchanged with probability 1/2
        top, left: uniform over the places where the crop fits

    A crop that does not fit is redrawn, up to 10 draws in all; after that it is the largest square in the middle. Sums,
    products and roots round alike on every machine; the exponential of a logarithm is taken in decimals for that.

    Args:
        size: side of the result in pixels, or `image_size`, the recipe's.
        area: smallest and largest share of the image's area, in (0, 1].
        ratio: smallest and largest width over height, above 0; `uniform` draws exchange the two in half of the cases.
        ratio_draw: `uniform`, or `log_uniform`, without an exchange.
        interpolation: `bilinear` or `bicubic`.
    Raises:
        ValueError: `size` is neither a whole number above 0 nor `image_size`; `area` or `ratio` are not two
            numbers in range, low first; `ratio_draw` or `interpolation` is another word.

    Source: fb.resnet.torch, datasets/transforms.lua, RandomSizedCrop (the attempts, the uniform draws, the exchange);
        the augmentation of Goyal et al. 2017, arXiv 1706.02677. torchvision, transforms/transforms.py (the logarithm,
        without an exchange).
    Differs: fb.resnet.torch interpolates bicubically. Its first commit, 6f9402d, multiplied the side by the ratio, not
        by its root, so that shapes reached from 9:16 to 16:9; d4b9406 corrected that. torchvision's last
        resort keeps to `ratio` where the image does not.
    """

    size: ImageSize
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    ratio_draw: Literal["uniform", "log_uniform"] = younger("uniform")
    interpolation: Interpolation = younger("bilinear")

    def __post_init__(self) -> None:
        require_size("RandomResizedCrop.size", self.size)
        require_range("RandomResizedCrop.area", self.area, at_most=1)
        require_range("RandomResizedCrop.ratio", self.ratio)
        if self.ratio_draw not in ("uniform", "log_uniform"):
            raise ValueError(f"RandomResizedCrop.ratio_draw must be uniform or log_uniform, got {self.ratio_draw!r}")
        _require_interpolation("RandomResizedCrop", self.interpolation)

    def __call__(self, image_HWC: np.ndarray | EncodedImage, draws: Draws) -> np.ndarray:
        """`size` x `size` pixels, channels and type as given."""
        top, left, height, width = self.rectangle(*image_HWC.shape[:2], draws)
        if isinstance(image_HWC, EncodedImage):
            crop_HWC = image_HWC.crop(top, left, height, width)
        else:
            crop_HWC = image_HWC[top : top + height, left : left + width]
        return resampled(crop_HWC, height=self.size, width=self.size, interpolation=self.interpolation)

    def rectangle(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """(top, left, height, width) of the crop in an image of this height and width, all in pixels."""
        for _ in range(_NUM_ATTEMPTS):
            area = _between(self.area, draws.uniform()) * height * width
            ratio = self._ratio(draws.uniform())
            crop_height, crop_width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if self.ratio_draw == "uniform" and draws.uniform() < 0.5:
                crop_height, crop_width = crop_width, crop_height
            if 0 < crop_height <= height and 0 < crop_width <= width:
                top = draws.integers(height - crop_height + 1)
                left = draws.integers(width - crop_width + 1)
                return top, left, crop_height, crop_width
        side = min(height, width)
        return (height - side) // 2, (width - side) // 2, side, side

    def _ratio(self, share: float) -> float:
        if self.ratio_draw == "uniform":
            return _between(self.ratio, share)
        low, high = map(Decimal, self.ratio)
        with localcontext(prec=20):  # libraries of mathematics differ in the last bit of exp
            return float(low * ((high / low).ln() * Decimal(share)).exp())


def _require_interpolation(name: str, interpolation: object) -> None:
    if interpolation not in ("bilinear", "bicubic"):
        raise ValueError(f"{name}.interpolation must be bilinear or bicubic, got {interpolation!r}")


def _between(bounds: tuple[float, float], share: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * share


@dataclass(frozen=True, kw_only=True)
class Resize:
    """The shorter side to a given length, the longer one in proportion, rounded down.

    Args:
        shorter: length of the shorter side in pixels, or `image_size`, the recipe's.
        interpolation: `bilinear` or `bicubic`.
    Raises:
        ValueError: `shorter` is neither a whole number above 0 nor `image_size`; `interpolation` is another word.

    Source: fb.resnet.torch, datasets/transforms.lua, Scale; torchvision, transforms/functional.py, whose
        int(size * long / short) rounds down as well.
    Differs: antialiased, and bilinear by default, where fb.resnet.torch is bicubic.
    """

    shorter: ImageSize
    interpolation: Interpolation = younger("bilinear")

    def __post_init__(self) -> None:
        require_size("Resize.shorter", self.shorter)
        _require_interpolation("Resize", self.interpolation)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The resampled image, channels and type as given."""
        height, width, _ = image_HWC.shape
        side = min(height, width)
        height, width = (length * self.shorter // side for length in (height, width))
        return resampled(image_HWC, height=height, width=width, interpolation=self.interpolation)
