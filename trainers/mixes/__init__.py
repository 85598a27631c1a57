"""Mixes: each a frozen dataclass called with (images_NCHW, partners_NCHW, draws) of a norm group, or a part of one.

It returns the mixed images and the weight of an image's own label; the partner's label gets the rest. All
randomness comes from the `draws`, keyed by (seed, position of the group's first sample in the stream), so that every
worker that holds a part of the group mixes alike. None changes the images it is given.
"""

from trainers.mixes.cut_mix import CutMix
from trainers.mixes.mixup import Mixup

__all__ = ["CutMix", "Mixup"]
