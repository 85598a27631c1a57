"""A recipe, whole."""

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
class Evidence:
    """Where the values of a recipe come from, in words.

    Args:
        verified: read in the source or in its authors' code.
        derived: worked out from what was read.
        not_checked: told by others, remembered or guessed; their paths stand in `assumed`.
    """

    verified: str = ""
    derived: str = ""
    not_checked: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a reader wants to know of a recipe before the values: `kilobatch recipes card`.

    Args:
        changed: what it did differently from what was usual.
        hardware: on which it was published or measured.
        evidence: where its values come from.
        deviations: where this recipe knowingly differs from what it reproduces.
    """

    changed: str
    hardware: str
    evidence: Evidence
    deviations: tuple[str, ...] = ()


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
        image_size: side of training images in pixels: a number, or steps such as
            `[{from: 0, size: 128}, {from: 30, size: 160}]`. An update has the size of its start. Entries of
            `augmentation.train` take it by `size: image_size`; null where each says its own.
        stream: the order of training samples.
        augmentation: what happens to images.
        evaluation: when and how the model is scored.
        gradient: what happens to the mean gradient.
        weight_average: the weights that are scored: a moving average; null for the last ones.
        precision: in which numbers is computed.
        updater: what of the execution changes the mathematics.
        seed: of order, augmentation and initial weights, at least 0.
        claims: what the recipe promises; not inherited by `extends`.
        card: what it changed and what is known of it, in words; not inherited by `extends`.
        assumed: paths of values that the source does not give.
        open: paths of values that nobody published and nobody here guesses; what stands there only lets the recipe
            open. `train` refuses it by these paths; who knows the values gives them and sets `open: []`.
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
