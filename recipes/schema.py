"""What a recipe and a data set are: frozen dataclasses whose fields are the keys of the YAML.

A trailing underscore belongs to Python, not to the key: `global_` is `batch.global`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from lr_schedules import BatchRamp, Constant
from lr_schedules.units import Epochs, Schedule
from recipes.vocabulary import Component

__all__ = [
    "Augmentation",
    "Batch",
    "Claim",
    "Dataset",
    "Evaluation",
    "LearningRate",
    "NormMomentum",
    "RampStep",
    "Recipe",
    "Updater",
    "Warmup",
]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Facts of a data set and how to read it: a file of `configs/datasets`.

    Args:
        name: of the data set. Left out: the name of the file.
        title: what it is, in a line.
        source: where its facts come from.
        num_train: training samples, at least 1. Left out, as the next two: the reader counts.
        num_eval: samples that are scored, at least 1.
        num_classes: classes, at least 1.
        channels: colour channels of an image, at least 1.
        mean: mean of each channel, of pixel values scaled to 0..1.
        std: standard deviation of each channel, of pixel values scaled to 0..1, above 0.
        reader: the component that opens it; null where there is none yet.
        root: folder of its files; a relative one counts from the data set's file. `--data` gives another.
        lacks: names of methods that are not built: a kind named here is accepted and cannot be opened.
    """

    name: str
    title: str = ""
    source: Any = None
    num_train: int
    num_eval: int
    num_classes: int
    channels: int
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    reader: Annotated[object, Component("datasets")] | None = None
    root: Path | None = None
    lacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_train", "num_eval", "num_classes", "channels"):
            _require(getattr(self, name) >= 1, f"Dataset.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and len(values) != self.channels:
                raise ValueError(f"Dataset.{name} needs one number for each of {self.channels} channels")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise ValueError(f"Dataset.std must be above 0, got {self.std}")


@dataclass(frozen=True, kw_only=True)
class RampStep:
    """A step of a ramp.

    Args:
        from_: where the size begins; the first step begins at 0.
        size: samples, at least 1.
    """

    from_: Epochs
    size: int

    def __post_init__(self) -> None:
        _require(self.size >= 1, f"RampStep.size must be at least 1, got {self.size}")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How many samples an update averages.

    Args:
        global_: samples averaged into one update: a number, or a ramp such as
            `[{from: 0, size: 2048}, {from: 30, size: 4096}]`.
        norm_span: samples whose batch-normalisation statistics are shared: a number or a ramp with the steps of
            `global`. Every batch must be a multiple of its span. Left out: the largest number up to 32 that divides
            every batch.
    """

    global_: BatchRamp
    norm_span: BatchRamp


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """The first epochs of the learning rate.

        rate(t) = target * w(t)        w(0) = start, w(epochs) = 1
        target  = reference * rule(target_batch / per)

    Args:
        joins: `multiply`: times the schedule, whose clock runs from 0 (Goyal et al. 2017); `before`: the schedule's
            clock starts when the warmup ends (MLPerf, torchvision); `over`: the warmup replaces the beginning of a
            schedule that runs from 0 (the code of You et al. 2019).
        target_batch: the global batch whose rate the warmup aims at. Left out: the first batch; required where the
            batch moves inside the warmup.
        shape: the factor w. Its `kind` and keys stand beside `joins`; its `start` is `reference` (the unscaled rate),
            0, `{rate: 0.1}` or `{factor: 0.03125}`.
    """

    joins: Literal["multiply", "before", "over"] = "multiply"
    target_batch: int
    shape: Annotated[object, Component("warmups")]

    def __post_init__(self) -> None:
        _require(self.target_batch >= 1, f"Warmup.target_batch must be at least 1, got {self.target_batch}")


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """How the learning rate follows batch and time.

        rate(t) = reference * rule(B(t) / per) * schedule(t)

    Args:
        reference: the rate at a global batch of `per`, above 0.
        per: samples a batch at which `reference` holds, at least 1.
        rule: how the rate follows the batch: `linear`, `sqrt` or `none`.
        scale_with: the batch that the rule sees while a ramp moves: the `current` or the `initial` one.
        every: how often the schedule is read: `update`, or a duration such as `1ep`.
        warmup: its first epochs; null for none.
        schedule: the factor over time. A required `epochs` that is left out is the rest of the run.
    """

    reference: float
    per: int
    rule: Literal["linear", "sqrt", "none"] = "linear"
    scale_with: Literal["current", "initial"] = "current"
    every: Literal["update"] | Epochs = "update"
    warmup: Warmup | None = None
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        _require(self.reference > 0, f"LearningRate.reference must be above 0, got {self.reference}")
        _require(self.per >= 1, f"LearningRate.per must be at least 1, got {self.per}")
        _require(self.every == "update" or self.every > 0, f"LearningRate.every must be above 0, got {self.every}")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to an image before the model sees it, in order.

    Args:
        train: for training samples.
        eval: for samples that are scored.
    """

    train: tuple[Annotated[object, Component("augmentations")], ...] = ()
    eval: tuple[Annotated[object, Component("augmentations")], ...] = ()


@dataclass(frozen=True, kw_only=True)
class NormMomentum:
    """How fast the running statistics of batch normalisation follow.

        average = d * average + (1 - d) * statistics      d = keep, or keep ** (B / per)

    Args:
        keep: what is kept of the average, in [0, 1).
        per: `update`, or a number of samples.
    """

    keep: float = 0.9
    per: Literal["update"] | int = "update"

    def __post_init__(self) -> None:
        _require(0 <= self.keep < 1, f"NormMomentum.keep must be in [0, 1), got {self.keep}")
        _require(self.per == "update" or self.per >= 1, f"NormMomentum.per must be at least 1, got {self.per}")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When and how the model is scored on the samples of `eval`.

    Args:
        every: `update`, or a duration such as `1ep`: after the first update that reaches each multiple.
        norm_statistics: of batch normalisation: `moving_average` over updates, `pooled` (the same, of the statistics of
            the whole update) or `last_batch` (Akiba et al. 2017).
        norm_momentum: of the moving averages.
    """

    every: Literal["update"] | Epochs = 1.0
    norm_statistics: Literal["moving_average", "pooled", "last_batch"] = "moving_average"
    norm_momentum: NormMomentum = NormMomentum()

    def __post_init__(self) -> None:
        _require(self.every == "update" or self.every > 0, f"Evaluation.every must be above 0, got {self.every}")


@dataclass(frozen=True, kw_only=True)
class Updater:
    """What of the execution changes the mathematics.

    Args:
        double_buffering: apply gradients one update late, while the next ones are computed.
    """

    double_buffering: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a recipe promises, and where that stands.

    Args:
        metric: such as top1 or hours.
        kind: such as accuracy or time_to_train.
        value: of the metric; accuracies in 0..1.
        deviation: standard deviation over the runs.
        runs: number of runs.
        margin: how far a rerun may fall short.
        on: the hardware.
        status: `reproduced` here, `predicted`, or `not run`.
        source: where the number stands.
    """

    metric: str
    kind: str
    value: float
    deviation: float | None = None
    runs: int | None = None
    margin: float | None = None
    on: str = ""
    status: Literal["reproduced", "predicted", "not run"]
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe: what is trained, on what and how, and on no hardware in particular.

    Args:
        name: names the run's folder: letters, digits, `_`, `.` and `-`. Left out: the name of the file.
        title: what it is, in a line.
        source: the paper, code or measurement that its numbers come from: title, year, url and the like.
        dataset: name or path of a file of `configs/datasets`.
        model: what is trained.
        epochs: length of the run, above 0.
        batch: samples an update.
        learning_rate: how the learning rate moves.
        optimizer: how a gradient becomes a step.
        loss: what is minimised: the mean over the global batch.
        augmentation: what happens to images.
        evaluation: when and how the model is scored.
        updater: what of the execution changes the mathematics.
        seed: of order, augmentation and initial weights, at least 0.
        claims: what the recipe promises; not inherited by `extends`.
        assumed: paths of values that the source does not give.
        lacks: names of methods that are not built: the recipe validates, shows, curves and plans, and `train` refuses
            it by that name.
    """

    name: str
    title: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)
    dataset: str
    model: Annotated[object, Component("models")]
    epochs: Epochs
    batch: Batch
    learning_rate: LearningRate
    optimizer: Annotated[object, Component("optimizers")]
    loss: Annotated[object, Component("losses")]
    augmentation: Augmentation = Augmentation()
    evaluation: Evaluation = Evaluation()
    updater: Updater = Updater()
    seed: int = 0
    claims: tuple[Claim, ...] = ()
    assumed: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
