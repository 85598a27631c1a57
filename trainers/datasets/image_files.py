"""Samples that lie in image files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from trainers.datasets.splits import Sample
from trainers.faults import FailedAlone

# Modes of 8 bits a channel. The others (I;16, I, F) would be clipped to white without a word.
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})


class UnreadableImage(FailedAlone, ValueError):
    """A file is missing, cut off, no image, or has more than 8 bits a channel."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Images that are read and decoded when they are asked for. It keeps no file open, so threads may share it.

    Transparency is dropped, an orientation in the EXIF data is not applied.

    Args:
        folder: where the paths begin.
        paths: relative, of each sample.
        labels: one integer a sample.
        channels: 3 for colour, 1 for grey.
    Attributes:
        threads_pay: reading takes long and lets go of Python's lock.
    """

    threads_pay: ClassVar[bool] = True

    folder: Path
    paths: list[str]
    labels: np.ndarray
    channels: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        """The image, uint8 height x width x channels, and its label.

        Raises:
            UnreadableImage: the file is missing, cut off, no image, or has more than 8 bits a channel; it is named.
        """
        path = self.folder / self.paths[index]
        try:
            with Image.open(path) as image:
                if image.mode not in _MODES:
                    raise ValueError(f"mode {image.mode}: only 8 bits a channel are read, convert it first")
                image_HWC = np.array(image.convert("RGB" if self.channels == 3 else "L"), dtype=np.uint8)
        except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and more for broken files
            raise UnreadableImage(f"{path}: not a readable image ({type(error).__name__}: {error})") from error
        return image_HWC.reshape(*image_HWC.shape[:2], self.channels), int(self.labels[index])
