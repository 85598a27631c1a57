"""What happens to images, gradients and weights, and how the model is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from lr_schedules.units import Epochs
from recipes.schema.conditions import require
from recipes.vocabulary import Component

__all__ = [
    "Augmentation",
    "Evaluation",
    "Gradient",
    "NormMomentum",
    "Precision",
    "StreamOrder",
    "Updater",
    "WeightAverage",
]


@dataclass(frozen=True, kw_only=True)
class StreamOrder:
    """In which order training samples come: a permutation an epoch, one after the other.

    Args:
        repeats: how often each sample comes in a row, every copy augmented anew (repeated augmentation; timm's and
            torchvision's RASampler); at least 1. An epoch has as many samples as without, so that it shows one in
            `repeats` of the different ones. Copies are neighbours, mostly in one norm group, whereas those samplers
            deal them to different workers and round an epoch down to a multiple of 256 samples.
    """

    repeats: int = 1

    def __post_init__(self) -> None:
        require(self.repeats >= 1, f"StreamOrder.repeats must be at least 1, got {self.repeats}")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to an image before the model sees it.

    Args:
        train: transforms of training samples, in order.
        mix: for training samples after that: one of these, drawn for each norm group with equal probability, mixes
            every image and its label with another of the group. Evaluation samples are never mixed; the training loss
            is that of the mixed targets.
        eval: transforms of evaluation samples, in order.
    """

    train: tuple[Annotated[object, Component("augmentations")], ...] = ()
    mix: tuple[Annotated[object, Component("mixes")], ...] = ()
    eval: tuple[Annotated[object, Component("augmentations")], ...] = ()


@dataclass(frozen=True, kw_only=True)
class NormMomentum:
    """How fast the running statistics of batch normalisation follow.

        average = d * average + (1 - d) * statistics      d = keep, or keep ** (B / per)

    Args:
        keep: decay factor of the average, in [0, 1).
        per: `update` (with `norm_statistics: by_group` every norm group), or a number of samples.
    """

    keep: float = 0.9
    per: Literal["update"] | int = "update"

    def __post_init__(self) -> None:
        require(0 <= self.keep < 1, f"NormMomentum.keep must be in [0, 1), got {self.keep}")
        require(self.per == "update" or self.per >= 1, f"NormMomentum.per must be at least 1, got {self.per}")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When and how the model is scored on the samples of `eval`.

    Args:
        every: `update`, or a duration such as `1ep`: after the first update that reaches each multiple.
        norm_statistics: of batch normalisation: `moving_average` over updates, `pooled` (the same, of the statistics of
            the whole update), `last_batch` (Akiba et al. 2017) or `by_group` (Hoffer et al. 2017: the average moves by
            one norm group after the other, in the order of the update).
        norm_momentum: speed of the moving averages.
    """

    every: Literal["update"] | Epochs = 1.0
    norm_statistics: Literal["moving_average", "pooled", "last_batch", "by_group"] = "moving_average"
    norm_momentum: NormMomentum = NormMomentum()

    def __post_init__(self) -> None:
        require(self.every == "update" or self.every > 0, f"Evaluation.every must be above 0, got {self.every}")


@dataclass(frozen=True, kw_only=True)
class Updater:
    """Options of the execution that change the mathematics.

    Args:
        double_buffering: apply gradients one update late, while the next ones are computed.
    """

    double_buffering: bool = False


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number formats of forward and backward; weights and optimizer are float32 in any case.

    Args:
        compute: `float32`; `tf32`: the same, but convolutions and matrix products may round their factors to the 11
            significant bits of TF32, which GPUs do since NVIDIA's Ampere and a CPU does not; `mixed16`: float16, with
            normalisation, loss and sums over micro-batches in float32; `bfloat16`: the same with 8 significant bits
            and the range of float32, so without a loss scale. Evaluation is float32 in any case.
        loss_scale: with mixed16, the initial factor on the mean loss of a norm group, so that small gradients do not
            vanish in float16: a power of two, at least 1. When a gradient overflows it is halved, and the update is
            repeated.
        double_after: updates without an overflow until the scale is doubled, at least 1.
    """

    compute: Literal["float32", "tf32", "mixed16", "bfloat16"] = "float32"
    loss_scale: int = 65536
    double_after: int = 2000

    def __post_init__(self) -> None:
        power_of_two = self.loss_scale >= 1 and self.loss_scale & (self.loss_scale - 1) == 0
        require(power_of_two, f"Precision.loss_scale must be a power of two such as 65536, got {self.loss_scale}")
        require(self.double_after >= 1, f"Precision.double_after must be at least 1, got {self.double_after}")


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What happens to the mean gradient before the optimizer sees it.

    Args:
        clip_norm: upper limit of its norm over all parameters together, above 0, before any weight decay; null for no
            limit.
    """

    clip_norm: float | None = None

    def __post_init__(self) -> None:
        require(
            self.clip_norm is None or self.clip_norm > 0, f"Gradient.clip_norm must be above 0, got {self.clip_norm}"
        )


@dataclass(frozen=True, kw_only=True)
class WeightAverage:
    """Moving average of the weights and running statistics; it is evaluated instead of the last weights.

        average = d * average + (1 - d) * weights        d = keep ** (B / per)

    Counted in samples, so that a larger batch, which makes fewer updates, forgets as fast (Busbridge et al. 2023).

    Args:
        keep: decay factor of the average over `per` samples, in [0, 1).
        per: samples, at least 1.
        start: position until which the average equals the weights.
    """

    keep: float
    per: int
    start: Epochs = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.keep < 1, f"WeightAverage.keep must be in [0, 1), got {self.keep}")
        require(self.per >= 1, f"WeightAverage.per must be at least 1, got {self.per}")
        require(self.start >= 0, f"WeightAverage.start must be at least 0, got {self.start}")
