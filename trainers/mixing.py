"""Mixup, cutmix and the like, norm group by norm group, the same on every worker that holds a part of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recipes.planning.division import MicroBatch
from recipes.planning.draws import Draws, draws

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

    def _mixed(self, own: range, group: range, load: LoadPositions) -> tuple[np.ndarray, np.ndarray]:
        mirrored = [group.start + group.stop - 1 - position for position in own]
        needed = [*own, *(position for position in mirrored if position not in own)]
        images, labels = load(needed)
        place = {position: at for at, position in enumerate(needed)}
        partners = [place[position] for position in mirrored]
        keyed = draws(self.seed, "mix", group.start)
        mix = self.mixes[keyed.integers(len(self.mixes))]
        mixed, share = mix(images[: len(own)], images[partners], keyed)
        rows = np.eye(self.num_classes)[labels]
        return mixed, (share * rows[: len(own)] + (1.0 - share) * rows[partners]).astype(np.float32)


def _pieces(part: MicroBatch, samples: int, norm_span: int) -> Iterator[tuple[range, range]]:
    """The part of each norm group that a micro-batch holds, and the group, as positions in the stream."""
    start = samples + part.offset
    for first in range(part.offset // norm_span * norm_span, part.offset + part.size, norm_span):
        group = range(samples + first, samples + first + norm_span)
        yield range(max(start, group.start), min(start + part.size, group.stop)), group
