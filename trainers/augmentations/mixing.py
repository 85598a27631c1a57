"""Mixes: each a frozen dataclass called with (images_NCHW, partners_NCHW, draws) of a norm group, or a part of one.

It returns the mixed images and the weight of an image's own label; the partner's label gets the rest. All
randomness comes from the `draws`, keyed by (seed, position of the group's first sample in the stream), so that every
worker that holds a part of the group mixes alike. None changes the images it is given.

`GroupMixing` applies them norm group by norm group, the same on every worker that holds a part of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lr_schedules.units import require_number
from recipes.planning.division import MicroBatch
from recipes.planning.random_bits import Draws, draws

__all__ = ["CutMix", "Mixup"]


@dataclass(frozen=True, kw_only=True)
class CutMix:
    """An image with a rectangle of its partner's, the same rectangle in the whole norm group.

        r ~ Beta(alpha, alpha);   h = floor(H sqrt(1 - r)), w = floor(W sqrt(1 - r))
        centre: uniform over all pixels;   from centre - floor(h/2) up to, not with, centre + floor(h/2), clipped
        target = s y_i + (1 - s) y_j,   s = 1 - (pixels of the clipped rectangle) / (H W)

    s is the share of pixels that an image really keeps, not r: a rectangle that reaches over the edge is clipped, and
    odd sides lose a pixel. The partner of sample i of a norm group of n is sample n - 1 - i. The images are mixed after
    all augmentation of both.

    Args:
        alpha: parameter of the Beta distribution, above 0; 1 makes the areas before clipping uniform.
        probability: that a norm group is mixed at all, in [0, 1].
    Raises:
        ValueError: `alpha` is no number above 0; `probability` is no number in [0, 1].

    Source: Yun et al. 2019, arXiv 1905.04899, and its code, github.com/clovaai/CutMix-PyTorch, train.py (rectangle and
        corrected share); timm, data/mixup.py (the partner).
    Differs: both draw once a device batch; here once a norm group, so that the number of workers changes nothing. timm
        1.0.31 lets odd sides keep their pixel; 1.0.29.dev0, torchvision and the authors do as here.
    """

    alpha: float
    probability: float = 1.0

    def __post_init__(self) -> None:
        require_number("CutMix.alpha", self.alpha, above=0)
        require_number("CutMix.probability", self.probability, at_least=0, at_most=1)

    def __call__(self, images_NCHW: np.ndarray, partners_NCHW: np.ndarray, draws: Draws) -> tuple[np.ndarray, float]:
        """Mixed images of the type of those given, and s."""
        if draws.uniform() >= self.probability:
            return images_NCHW, 1.0
        height, width = images_NCHW.shape[2:]
        rows, columns = self.rectangle(height, width, draws)
        mixed_NCHW = images_NCHW.copy()
        mixed_NCHW[:, :, rows, columns] = partners_NCHW[:, :, rows, columns]
        pasted = (rows.stop - rows.start) * (columns.stop - columns.start)
        return mixed_NCHW, 1.0 - pasted / (height * width)

    def rectangle(self, height: int, width: int, draws: Draws) -> tuple[slice, slice]:
        """Rows and columns of the rectangle in images of this height and width."""
        side = math.sqrt(1.0 - draws.symmetric_beta(self.alpha))
        return _around(draws.integers(height), int(height * side), height), _around(
            draws.integers(width), int(width * side), width
        )


def _around(centre: int, length: int, size: int) -> slice:
    return slice(max(centre - length // 2, 0), min(centre + length // 2, size))


@dataclass(frozen=True, kw_only=True)
class Mixup:
    """A weighted mean of an image and its partner, the same weight in the whole norm group.

        image = s x_i + (1 - s) x_j        target = s y_i + (1 - s) y_j        s ~ Beta(alpha, alpha)

    The partner of sample i of a norm group of n is sample n - 1 - i. The images are mixed after all augmentation of
    both.

    Args:
        alpha: parameter of the Beta distribution, above 0; with 1 all s are equally likely, smaller values leave one
            image nearly whole.
        probability: that a norm group is mixed at all, in [0, 1].
    Raises:
        ValueError: `alpha` is no number above 0; `probability` is no number in [0, 1].

    Source: Zhang et al. 2017, arXiv 1710.09412, equation 1 (not checked); timm, data/mixup.py (the partner).
    Differs: timm draws s and chooses partners within a device batch; here within a norm group, so that the number of
        workers changes nothing. torchvision's partner is the sample before.
    """

    alpha: float
    probability: float = 1.0

    def __post_init__(self) -> None:
        require_number("Mixup.alpha", self.alpha, above=0)
        require_number("Mixup.probability", self.probability, at_least=0, at_most=1)

    def __call__(self, images_NCHW: np.ndarray, partners_NCHW: np.ndarray, draws: Draws) -> tuple[np.ndarray, float]:
        """Mixed images of the type of those given, and s."""
        if draws.uniform() >= self.probability:
            return images_NCHW, 1.0
        share = draws.symmetric_beta(self.alpha)
        own, other = (images_NCHW.dtype.type(weight) for weight in (share, 1.0 - share))
        return own * images_NCHW + other * partners_NCHW, share


Mix = Callable[[np.ndarray, np.ndarray, Draws], tuple[np.ndarray, float]]
# Stream positions -> images as the model would get them, labels int (samples,).
LoadPositions = Callable[[Sequence[int]], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class GroupMixing:
    """Mixes sample i of a norm group of n with sample n - 1 - i.

        image_i, target_i  <-  mix of sample i and sample n - 1 - i, with one draw for the n samples of the group

    One of `mixes` is drawn for each group, all with equal probability. The draws are keyed by (seed, position of the
    group's first sample in the stream). If a group is spread over several workers, each loads the partners that it
    lacks, augmented as on their own worker: nothing is communicated, and up to twice as many images are loaded.

    Args:
        mixes: of the recipe, at least one.
        seed: the recipe's.
        num_classes: of the data set.
    """

    mixes: tuple[Mix, ...]
    seed: int
    num_classes: int

    def load(
        self, part: MicroBatch, *, samples: int, norm_span: int, load: LoadPositions
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mixed samples of one forward.

        Args:
            part: the micro-batch and its place in the update.
            samples: position in the stream where the update starts.
            norm_span: samples of a norm group.
            load: gives unmixed samples.
        Returns:
            images, and targets float32 (samples, classes): the weights of the labels, which add up to 1.
        """
        mixed = [self._mixed(own, group, load) for own, group in _pieces(part, samples, norm_span)]
        images, targets = zip(*mixed, strict=True)
        return np.concatenate(images), np.concatenate(targets)

    def needed(self, part: MicroBatch, *, samples: int, norm_span: int) -> list[int]:
        """All positions that `load` asks for, in that order."""
        return [position for own, group in _pieces(part, samples, norm_span) for position in _with_partners(own, group)]

    def _mixed(self, own: range, group: range, load: LoadPositions) -> tuple[np.ndarray, np.ndarray]:
        mirrored = _mirrored(own, group)
        needed = _with_partners(own, group)
        images, labels = load(needed)
        number_of = {position: number for number, position in enumerate(needed)}
        partners = [number_of[position] for position in mirrored]
        keyed = draws(self.seed, "mix", group.start)
        mix = self.mixes[keyed.integers(len(self.mixes))]
        mixed, share = mix(images[: len(own)], images[partners], keyed)
        rows = np.zeros((len(labels), self.num_classes))
        rows[np.arange(len(labels)), labels] = 1
        return mixed, (share * rows[: len(own)] + (1.0 - share) * rows[partners]).astype(np.float32)


def _mirrored(own: range, group: range) -> list[int]:
    """The partner of each position of a group."""
    return [group.start + group.stop - 1 - position for position in own]


def _with_partners(own: range, group: range) -> list[int]:
    return [*own, *(position for position in _mirrored(own, group) if position not in own)]


def _pieces(part: MicroBatch, samples: int, norm_span: int) -> Iterator[tuple[range, range]]:
    """The part of each norm group that a micro-batch holds, and the group, as positions in the stream."""
    start = samples + part.offset
    for first in range(part.offset // norm_span * norm_span, part.offset + part.size, norm_span):
        group = range(samples + first, samples + first + norm_span)
        yield range(max(start, group.start), min(start + part.size, group.stop)), group
