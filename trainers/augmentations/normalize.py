"""Pixels with mean 0 and deviation 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lr_schedules.units import require_number
from recipes.planning.random_bits import Draws


@dataclass(frozen=True, kw_only=True)
class Normalize:
    """Each channel shifted and scaled by the mean and deviation of a data set's pixels.

        y = (x / 255 - mean) / std            computed as (x - 255 mean) / (255 std) in float32

    Args:
        with_: name of the data set whose numbers are meant; the recipe's key is `with`. Empty if they stand here.
        mean: mean of each channel, of pixels scaled to 0..1, in [0, 1].
        std: standard deviation of each channel, of pixels scaled to 0..1, in (0, 1].
    Raises:
        ValueError: neither a name nor numbers; `mean` and `std` of different lengths; a number out of range. When
            called: the numbers have not been filled in, or are for another number of channels.

    Source: fb.resnet.torch, datasets/transforms.lua, ColorNormalize.
    """

    with_: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    # Its result is no longer in 0..255: the pipeline must not divide by 255 after it.
    scales_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.with_, str):
            raise ValueError(f"Normalize.with must be the name of a data set, got {self.with_!r}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, tuple):
                raise ValueError(f"Normalize.{name} must be a tuple of one number a channel, got {values!r}")
            for value in values:
                above, at_least = (0, None) if name == "std" else (None, 0)
                require_number(f"Normalize.{name}", value, above=above, at_least=at_least, at_most=1)
        if len(self.mean) != len(self.std):
            raise ValueError(f"Normalize.std must be as long as mean, got {self.std!r} for {self.mean!r}")
        if not self.with_ and not self.mean:
            raise ValueError("Normalize.with must be the name of a data set, or mean and std be given, got neither")

    def bound(
        self, *, name: str, mean: tuple[float, ...] | None, std: tuple[float, ...] | None, subset_of: str = ""
    ) -> Normalize:
        """This, with the numbers of data set `name` filled in; unchanged if numbers stand in it already.

        Args:
            subset_of: another name that means it.

        Raises:
            ValueError: it names another data set, or that has no numbers.
        """
        if self.mean:
            return self
        if self.with_ not in (name, subset_of):
            raise ValueError(
                f"Normalize.with must be {name!r}, the data set of the recipe, unless mean and std are given or "
                f"that data set's file says `subset_of: {self.with_}`, got {self.with_!r}"
            )
        if mean is None or std is None:
            raise ValueError(f"Normalize.with is {name!r}, but that data set's file has no mean and std: add them")
        return replace(self, mean=tuple(mean), std=tuple(std))

    def shift_and_scale(self, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """a and b, float32 (channels,), with y = (x - a) / b.

        Raises:
            ValueError: the numbers have not been filled in, or are for another number of channels.
        """
        if not self.mean:
            raise ValueError(f"Normalize has no numbers yet: bind it to the data set {self.with_!r} first")
        if channels != len(self.mean):
            raise ValueError(f"Normalize.mean has {len(self.mean)} channels, the image {channels}")
        mean, std = (255 * np.array(values, dtype=np.float64) for values in (self.mean, self.std))
        return mean.astype(np.float32), std.astype(np.float32)

    def normalized(self, image_HWC: np.ndarray) -> np.ndarray:
        """float32 of the same shape."""
        shift, scale = self.shift_and_scale(image_HWC.shape[2])
        return (image_HWC.astype(np.float32) - shift) / scale

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """float32 of the same shape."""
        return self.normalized(image_HWC)
