"""The pipeline of augmentations, from a sample of a data set to the model's input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from recipes.planning.random_bits import Draws, ManyDraws, draws
from recipes.schema.image_size import at_image_size, keys_of_image_size
from recipes.schema.vocabulary import kind_of
from trainers.augmentations.crop import CenterCrop, RandomCrop, RandomResizedCrop
from trainers.augmentations.decoders import EncodedImage
from trainers.augmentations.horizontal_flip import HorizontalFlip
from trainers.augmentations.normalize import Normalize
from trainers.runs.errors import UnfitImage
from trainers.runs.identity import is_of_the_user

Augmentation = Callable[[np.ndarray, Draws], np.ndarray]

_TOGETHER = 256  # images that are cropped or finished at once: few, so that they stay in the cache


class NamedStatistics(Protocol):
    """The part of a data set that the pipeline uses: its names, and `mean` and `std` of pixels scaled to 0..1."""

    name: str
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    subset_of: str


class Pixels(NamedTuple):
    """An image before `Finish`: uint8 or float32 HWC, and whether it is still to be mirrored; or those of a
    micro-batch, NHWC and uint8.
    """

    pixels_HWC: np.ndarray
    mirrored: bool


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The end of a pipeline, which a GPU computes for a whole batch at once.

        y = (x - shift) / scale          of each channel, in float32; mirrored if `Pixels.mirrored`; channels first

    Args:
        normalize: with its numbers; None if no `Normalize` ends the list.
        divisor: 255 if no augmentation has scaled the pixels, else 1.
    """

    normalize: Normalize | None
    divisor: np.float32

    def image(self, pixels_HWC: np.ndarray, mirrored: bool) -> np.ndarray:
        """The model's input: float32, CHW, in C order, a new array."""
        image_HWC = pixels_HWC[:, ::-1] if mirrored else pixels_HWC
        if self.normalize is None:
            image_CHW = np.array(image_HWC.transpose(2, 0, 1), dtype=np.float32, order="C")
            image_CHW /= self.divisor
            return image_CHW
        height, width, channels = image_HWC.shape
        image_CHW = np.empty((channels, height, width), np.float32)
        for channel, (shift, scale) in enumerate(zip(*self.normalize.shift_and_scale(channels), strict=True)):
            one_HW = image_CHW[channel]  # which stays in the cache
            np.subtract(image_HWC[:, :, channel], shift, out=one_HW, dtype=np.float32)
            one_HW /= scale
        return image_CHW

    def images(self, pixels: Sequence[Pixels]) -> Iterable[np.ndarray]:
        """`image` of each, with the same bits; in less time if they are small and have one shape and type."""
        kinds = {(each.pixels_HWC.shape, each.pixels_HWC.dtype) for each in pixels}
        if len(kinds) > 1 or len(pixels) == 1:
            return [self.image(*each) for each in pixels]
        return self.stack(np.stack([each.pixels_HWC for each in pixels]), np.array([each.mirrored for each in pixels]))

    def stack(self, pixels_NHWC: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
        """`image` of each as one array (samples, channels, height, width), with the same bits."""
        count, height, width, channels = pixels_NHWC.shape
        images = np.empty((count, channels, height, width), np.float32)
        numbers = list(zip(*self.shift_and_scale(channels), strict=True))
        for start in range(0, count, _TOGETHER):
            some = slice(start, start + _TOGETHER)
            for channel, (shift, scale) in enumerate(numbers):
                one_NHW = images[some, channel]
                np.subtract(pixels_NHWC[some, :, :, channel], shift, out=one_NHW, dtype=np.float32)
                one_NHW /= scale
            images[some][mirrored[some]] = images[some][mirrored[some]][..., ::-1]
        return images

    def shift_and_scale(self, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """Both float32 (channels,).

        Raises:
            ValueError: the normalisation is for another number of channels.
        """
        if self.normalize is not None:  # which leaves nothing to divide by
            return self.normalize.shift_and_scale(channels)
        return np.zeros(channels, np.float32), np.full(channels, self.divisor)


class Pipeline:
    """A list of augmentations, each with its own draws, and the conversion to float32 CHW.

    Flips and one normalisation at the end of the list form `finish`; the parts before them compute `pixels`.

    Augmentation `number` of the list draws from `draws(seed, "augmentation", epoch, index, number)`, so an image
    depends on nothing else. The pixels are divided by 255 at the end, unless an augmentation has the class attribute
    `scales_pixels = True`: its result is no longer in 0..255.

    Args:
        parts: in order; a `Normalize` by name is bound to `dataset`.
        dataset: the recipe's.
        seed: the recipe's.
        has_end: False: all parts compute `pixels`, as where another list that shares `finish` ends otherwise.
    Attributes:
        parts: in order.
        finish: turns `Pixels` into the model's input.
    Raises:
        ValueError: a `Normalize` names another data set, or the data set has no mean and std.
    """

    def __init__(
        self, *, parts: Sequence[Augmentation], dataset: NamedStatistics, seed: int, has_end: bool = True
    ) -> None:
        self.parts = [
            part.bound(name=dataset.name, mean=dataset.mean, std=dataset.std, subset_of=dataset.subset_of)
            if isinstance(part, Normalize)
            else part
            for part in parts
        ]
        self._end = _end_of(self.parts) if has_end else len(self.parts)
        normalize = next((part for part in self.parts[self._end :] if isinstance(part, Normalize)), None)
        scaled = any(getattr(part, "scales_pixels", False) for part in parts)
        self.finish = Finish(normalize=normalize, divisor=np.float32(1 if scaled else 255))
        self._seed = seed
        self._users = {number for number, part in enumerate(self.parts) if is_of_the_user(part)}
        self._needs_size = any(map(keys_of_image_size, self.parts))
        self._parts_at: dict[int, list[Augmentation]] = {}

    def __call__(
        self, image_HWC: np.ndarray | EncodedImage, *, epoch: int, index: int, image_size: int | None = None
    ) -> np.ndarray:
        """The augmented image of sample `index` in `epoch`: float32, CHW, in C order, a new array.

        Args, Raises: see `pixels`.
        """
        return self.finish.image(*self.pixels(image_HWC, epoch=epoch, index=index, image_size=image_size))

    def pixels(
        self, image_HWC: np.ndarray | EncodedImage, *, epoch: int, index: int, image_size: int | None = None
    ) -> Pixels:
        """The input of `finish`; a uint8 image stays uint8 unless an augmentation converts it.

        Args:
            image_HWC: uint8, or float32 in 0..255; it is not changed. Of a file, the first part of the list may decode
                no more than it crops.
            epoch: of the stream.
            index: position of the sample in its data set's own order.
            image_size: in this update, for augmentations with `size: image_size`.
        Raises:
            ValueError: the image has another number of axes or type, or a part needs the image size and there is none.
            UnfitImage: an augmentation of the user's own returns no image.
        """
        parts = self._sized(image_size)
        if isinstance(image_HWC, EncodedImage) and not (self._end and isinstance(parts[0], RandomResizedCrop)):
            image_HWC = image_HWC.decoded()
        if len(image_HWC.shape) != 3 or image_HWC.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"sample {index} must be an image height x width x channels of uint8 or float32, "
                f"got shape {image_HWC.shape} of {image_HWC.dtype}"
            )
        mirrored = False
        for number, part in enumerate(parts):
            drawn = draws(self._seed, "augmentation", epoch, index, number)
            if number < self._end:
                is_own = number in self._users
                image_HWC = self.apply_own(number, part, image_HWC, drawn) if is_own else part(image_HWC, drawn)
            elif isinstance(part, HorizontalFlip):
                mirrored ^= part.mirrors(drawn)
        if image_HWC.dtype != np.uint8:
            image_HWC = image_HWC.astype(np.float32, copy=False)
        if self._users:  # the next call of an augmentation may use its memory again
            image_HWC = image_HWC.copy()
        return Pixels(image_HWC, mirrored)

    def apply_own(self, number: int, part: Augmentation, image_HWC: np.ndarray, drawn: Draws) -> np.ndarray:
        """What augmentation `number` of the list, one of the user's own, makes of an image.

        Raises:
            UnfitImage: that is no image.
        """
        if not image_HWC.flags.writeable:  # it may work in place
            image_HWC = image_HWC.copy()
        made = part(image_HWC, drawn)
        if not isinstance(made, np.ndarray) or made.ndim != 3:
            given = "None" if made is None else f"a {type(made).__name__}"
            given = f"an array of shape {made.shape}" if isinstance(made, np.ndarray) else given
            raise UnfitImage(
                f"{kind_of(part)}, number {number} of the list, returns {given}; let it return an image, an array of "
                "height x width x channels"
            )
        return made

    def stack(
        self, images_NHWC: np.ndarray, rows: np.ndarray, *, epochs: Any, indices: Any, image_size: int | None
    ) -> Pixels | None:
        """`pixels` of several samples as arrays, in less time and with the same images; None for a list that does more
        before `finish` than flip and crop once.

        Args:
            images_NHWC: uint8, or float32 in 0..255; any number.
            rows: int64, of each sample: its image.
            epochs, indices, image_size: see `pixels`; arrays.
        Raises: see `pixels`.
        """
        parts = self._sized(image_size)
        kinds = [type(part) for part in parts[: self._end]]
        if not {*kinds} <= {HorizontalFlip, CenterCrop, RandomCrop} or len(kinds) - kinds.count(HorizontalFlip) > 1:
            return None
        height, width = images_NHWC.shape[1:3]
        mirrored, cropped = np.zeros(len(rows), bool), None
        for number, part in enumerate(parts):
            drawn = ManyDraws(self._seed, "augmentation", epochs, indices, number)
            if isinstance(part, HorizontalFlip):
                mirrored ^= part.mirrors(drawn)
            elif isinstance(part, CenterCrop | RandomCrop):  # of a mirror image: from the other side
                padding = getattr(part, "padding", 0)
                top, left = np.broadcast_arrays(*part.place(height, width, drawn), mirrored)[:2]
                left = np.where(mirrored, width + 2 * padding - part.size - left, left)
                cropped = _crops(images_NHWC, rows, padding=padding, size=part.size, tops=top, lefts=left)
        return Pixels(images_NHWC[rows] if cropped is None else cropped, mirrored)

    def _sized(self, image_size: int | None) -> list[Augmentation]:
        if not self._needs_size:
            return self.parts
        if image_size is None:
            raise ValueError("an augmentation means the recipe's `image_size`, which is not there")
        if image_size not in self._parts_at:
            self._parts_at[image_size] = [at_image_size(part, image_size) for part in self.parts]
        return self._parts_at[image_size]


def _end_of(parts: Sequence[Augmentation]) -> int:
    """The number of the part from which on there are only flips, and at most one normalisation."""
    end, kinds = len(parts), [HorizontalFlip, Normalize]
    while end and type(parts[end - 1]) in kinds:
        end -= 1
        if type(parts[end]) is Normalize:
            kinds = [HorizontalFlip]
    return end


def _crops(
    images_NHWC: np.ndarray, rows: np.ndarray, *, padding: int, size: int, tops: np.ndarray, lefts: np.ndarray
) -> np.ndarray:
    """Squares of images with zeros around them: (rows, size, size, channels), of their type."""
    _, height, width, channels = images_NHWC.shape
    if (height, width) == (size, size) and not padding:
        return images_NHWC[rows]
    crops = np.empty((len(rows), size, size, channels), images_NHWC.dtype)
    for start in range(0, len(rows), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        sides = height + 2 * padding, width + 2 * padding
        padded_NHWC = np.zeros((len(rows[some]), *sides, channels), images_NHWC.dtype)
        padded_NHWC[:, padding : padding + height, padding : padding + width] = images_NHWC[rows[some]]
        windows = sliding_window_view(padded_NHWC, (size, size), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
        crops[some] = windows[np.arange(len(padded_NHWC)), tops[some], lefts[some]]
    return crops
