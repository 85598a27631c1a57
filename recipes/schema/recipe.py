"""The keys of a recipe, its claims and its card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from lr_schedules import BatchRamp
from lr_schedules.units import Epochs
from recipes.schema.moving import Batch, LearningRate
from recipes.schema.training import Augmentation, Evaluation, Gradient, Precision, StreamOrder, Updater, WeightAverage
from recipes.vocabulary import Component

__all__ = ["Card", "Claim", "Evidence", "Recipe"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A result that a recipe promises, and its status.

    Args:
        metric: such as top1 or hours.
        kind: such as accuracy or time_to_train.
        value: value of the metric; accuracies in 0..1.
        deviation: standard deviation over the runs.
        runs: number of runs.
        margin: how far a rerun may fall short.
        on: the hardware.
        status: `reproduced` here, `predicted`, or `not run`.
        source: where the number was published.
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
class Evidence:
    """Where the values of a recipe come from, in words.

    Args:
        verified: read in the source or in its authors' code.
        derived: worked out from what was read.
        not_checked: second-hand, remembered or guessed; their paths are listed in `assumed`.
    """

    verified: str = ""
    derived: str = ""
    not_checked: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Background of a recipe, shown by `kilobatch recipes card`.

    Args:
        changed: differences from usual practice.
        hardware: hardware of the publication or measurement.
        evidence: where its values come from.
        deviations: where this recipe knowingly differs from what it reproduces.
    """

    changed: str
    hardware: str
    evidence: Evidence
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe: what is trained, on which data and how, independent of the hardware.

    Args:
        name: names the run's folder: letters, digits, `_`, `.` and `-`. Left out: the name of the file.
        title: what it is, in one line.
        source: the paper, code or measurement that its numbers come from: title, year, url and the like.
        dataset: name or path of a file of `configs/datasets`.
        model: the network.
        epochs: length of the run, above 0.
        batch: samples an update.
        learning_rate: the learning rate over time.
        optimizer: the rule that turns a gradient into a step.
        loss: the loss, whose mean over the global batch is minimised.
        image_size: side of training images in pixels: a number, or steps such as
            `[{from: 0, size: 128}, {from: 30, size: 160}]`. The size at an update's start holds for all of it. Entries
            of `augmentation.train` use it by `size: image_size`; null if each has its own size.
        stream: the order of training samples.
        augmentation: transforms of the images.
        evaluation: when and how the model is scored on the evaluation samples.
        gradient: processing of the mean gradient before the optimizer.
        weight_average: moving average of the weights, which is evaluated; null: evaluate the last weights.
        precision: number formats of the computation.
        updater: options of the execution that change the mathematics.
        seed: seed of order, augmentation and initial weights, at least 0.
        claims: results that the recipe promises; not inherited by `extends`.
        card: background of the recipe in words; not inherited by `extends`.
        assumed: paths of values that the source does not give.
        open: paths of unpublished values that are not guessed here; their values are placeholders, so that the recipe
            opens. `train` refuses it and names these paths; to train it, give the values and set `open: []`.
        lacks: names of methods that are not built: `validate`, `show`, `curve` and `plan` work, and `train` refuses the
            recipe by these names.
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
    image_size: BatchRamp | None = None
    stream: StreamOrder = StreamOrder()
    augmentation: Augmentation = Augmentation()
    evaluation: Evaluation = Evaluation()
    gradient: Gradient = Gradient()
    weight_average: WeightAverage | None = None
    precision: Precision = Precision()
    updater: Updater = Updater()
    seed: int = 0
    claims: tuple[Claim, ...] = ()
    card: Card | None = None
    assumed: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
