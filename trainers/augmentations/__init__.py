"""Augmentations of single images, mixes of two (`mixing.py`), and the pipeline from a data set to the model's input.

A class in `__all__` is a frozen dataclass called with (image_HWC, draws) that returns an image. This room imports from
runs only.

Images are uint8 or float32 in 0..255; an augmentation that is undefined outside this range, as after `Normalize`, has
the class attribute `needs_pixels = True`. All randomness comes from the `draws`, keyed by (seed, epoch, index of the
sample, place in the list): an image is the same on every worker and after every resume. None changes its input.

Only `Normalize` turns uint8 into float32. Flips and a normalisation at the end of the list are left to the GPU where
there is one, which so receives uint8.
"""

from trainers.augmentations.auto_augment import RandAugment, TrivialAugment
from trainers.augmentations.colour import ColorJitter, PcaLighting
from trainers.augmentations.crop import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from trainers.augmentations.erasing import Cutout, RandomErasing
from trainers.augmentations.horizontal_flip import HorizontalFlip
from trainers.augmentations.normalize import Normalize

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Cutout",
    "HorizontalFlip",
    "Normalize",
    "PcaLighting",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Resize",
    "TrivialAugment",
]
