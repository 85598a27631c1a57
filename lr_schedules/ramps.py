"""Ramps: how the batch size moves over the run."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from lr_schedules.units import Epochs, require_increasing

__all__ = ["BatchRamp"]


@dataclass(frozen=True, kw_only=True)
class BatchRamp:
    """A batch size for each stage of the run; one stage is a constant batch.

        B(t) = sizes[i]      boundaries[i] <= t < boundaries[i + 1]

    Args:
        boundaries: epochs at which a size begins, the first 0, increasing.
        sizes: samples in a batch, one for each boundary, each at least 1.
    Raises:
        ValueError: `boundaries` does not begin with 0 or does not increase, `sizes` has another length, or a size is
            not a whole number greater than 0.

    >>> suzuki = BatchRamp(boundaries=(0.0, 30.0), sizes=(2048, 4096))
    >>> suzuki(29.99), suzuki(30.0)
    (2048, 4096)

    Source: Smith et al. 2017, arXiv 1711.00489 (grow the batch); the example's sizes: Suzuki 2018, ChainerMN 1.3.
    """

    boundaries: tuple[Epochs, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        require_increasing("BatchRamp.boundaries", self.boundaries)
        if self.boundaries[0] != 0:
            raise ValueError(f"BatchRamp.boundaries must begin with 0, got {self.boundaries[0]!r}")
        if not isinstance(self.sizes, tuple) or len(self.sizes) != len(self.boundaries):
            raise ValueError(f"BatchRamp.sizes must be a tuple of {len(self.boundaries)}, got {self.sizes!r}")
        for size in self.sizes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"BatchRamp.sizes must be whole numbers > 0, got {size!r}")

    @property
    def changes(self) -> tuple[tuple[float, int], ...]:
        """(boundary, size) of the first stage, and of each that has another size than the stage before it.

        >>> BatchRamp(boundaries=(0.0, 30.0, 60.0), sizes=(64, 64, 128)).changes
        ((0.0, 64), (60.0, 128))
        """
        stages = zip(self.boundaries, self.sizes, (None, *self.sizes), strict=False)
        return tuple((start, size) for start, size, before in stages if size != before)

    def __call__(self, epoch: float) -> int:
        return self.sizes[max(0, bisect_right(self.boundaries, epoch) - 1)]
