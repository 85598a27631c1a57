"""A recipe as frozen dataclasses: batch and rate over time, what happens to images, gradients and weights, claims.

Each class checks its own values; `recipes.reading.read_recipe` checks them against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from lr_schedules import BatchRamp
from lr_schedules.units import Epochs
from recipes.arguments import younger
from recipes.schema.batch_and_rate import Batch, LearningRate, Schedules, require
from recipes.schema.vocabulary import Component, lower_is_better

__all__ = [
    "Augmentation",
    "AugmentationEnd",
    "Card",
    "Claim",
    "Evaluation",
    "Evidence",
    "Gradient",
    "Init",
    "LocalSteps",
    "NormMomentum",
    "Precision",
    "Recipe",
    "StopAt",
    "StreamOrder",
    "Updater",
    "WeightAverage",
]


@dataclass(frozen=True, kw_only=True)
class StopAt:
    """The goal of a run, which ends after the evaluation that reaches it.

    Its last checkpoint, exit code 0 and the update, epoch and samples of the goal are those of that moment; without the
    goal it ends at `epochs`. Of two goals, both must be reached in one evaluation.

    Args:
        accuracy: evaluated accuracy of at least this, above 0 and up to 1; null for none.
        loss: evaluated loss of at most this, above 0, label smoothing included; null for none.
        metrics: name of a metric of `evaluation` -> value of at least this, or of at most this where lower is better;
            null for none.
    """

    accuracy: float | None = None
    loss: float | None = None
    metrics: Mapping[str, float] | None = younger(None)

    def __post_init__(self) -> None:
        in_range = self.accuracy is None or 0 < self.accuracy <= 1
        require(in_range, f"StopAt.accuracy must be above 0 and at most 1, got {self.accuracy}")
        require(self.loss is None or self.loss > 0, f"StopAt.loss must be above 0, got {self.loss}")
        require(bool(self.goals), "StopAt.accuracy must be given, or loss, or metrics")

    @property
    def goals(self) -> dict[str, float]:
        """Each score that has a goal, by its name."""
        given = {"accuracy": self.accuracy, "loss": self.loss}
        return {name: goal for name, goal in given.items() if goal is not None} | dict(self.metrics or {})

    def reached(self, scores: Mapping[str, float], *, metrics: Iterable[object]) -> bool:
        """Whether an evaluation, whose scores have names, reaches the goal; `metrics` are those of `evaluation`."""
        lower = {name: lower_is_better(name, metrics) for name in self.goals}
        return all(scores[name] <= goal if lower[name] else scores[name] >= goal for name, goal in self.goals.items())


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
class AugmentationEnd:
    """The end of augmentation: what happens to training samples at the end of the run. They are not mixed then.

    Args:
        at: position, above 0; holds for updates that start there or later.
        train: their transforms, in order, with the same size and `Normalize` as before; null: those of `eval`.
    """

    at: Epochs
    train: tuple[Annotated[object, Component("augmentations")], ...] | None = None

    def __post_init__(self) -> None:
        require(self.at > 0, f"AugmentationEnd.at must be above 0, got {self.at:g}")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to an image before the model sees it.

    Args:
        train: transforms of training samples, in order.
        mix: for training samples after that: one of these, drawn for each norm group with equal probability, mixes
            every image and its label with another of the group. Evaluation samples are never mixed; the training loss
            is that of the mixed targets.
        eval: transforms of evaluation samples, in order.
        end: from when on training samples are not augmented, or otherwise; null: never.
    """

    train: tuple[Annotated[object, Component("augmentations")], ...] = ()
    mix: tuple[Annotated[object, Component("mixes")], ...] = ()
    eval: tuple[Annotated[object, Component("augmentations")], ...] = ()
    end: AugmentationEnd | None = younger(None)

    @property
    def late(self) -> tuple[object, ...]:
        """The transforms of training samples after `end`."""
        return self.eval if self.end is None or self.end.train is None else self.end.train


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

    `eval_loss` is the recipe's own loss, label smoothing included: of two recipes with another one it is no comparison.

    Args:
        every: `update`, or a duration such as `1ep`: after the first update that reaches each multiple.
        norm_statistics: of batch normalisation: `moving_average` over updates, `pooled` (the same, of the statistics of
            the whole update), `last_batch` (Akiba et al. 2017) or `by_group` (Hoffer et al. 2017: the average moves by
            one norm group after the other, in the order of the update).
        norm_momentum: speed of the moving averages.
        held_out: share of the training samples, in (0, 1), that is scored in place of the data set's evaluation split
            and never trained on, so that choices by the score leave that split alone. Which ones is drawn for the data
            set, not by `seed`. An epoch is a pass over the others. null: nothing is held out.
        offset: position of the first evaluation, from which the multiples of `every` count; 0: the first is at `every`.
            With `every: update`, none before it. The end of the run is evaluated in any case.
        flipped: whether the logits of an image and of its mirror image are added; loss and accuracy are of the sum.
        metrics: what is worked out of all logits beside accuracy and loss, such as `[{kind: TopAccuracy, k: 5}]`.
        best: by which score the best checkpoint is chosen: `accuracy`, `loss`, or the name of one of the metrics, such
            as `macro_f1`.
    """

    every: Literal["update"] | Epochs = 1.0
    norm_statistics: Literal["moving_average", "pooled", "last_batch", "by_group"] = "moving_average"
    norm_momentum: NormMomentum = NormMomentum()
    held_out: float | None = younger(None)
    offset: Epochs = younger(0.0)
    flipped: bool = younger(False)
    metrics: tuple[Annotated[object, Component("metrics")], ...] = younger(())
    best: str = younger("accuracy")

    def __post_init__(self) -> None:
        require(self.offset >= 0, f"Evaluation.offset must be at least 0, got {self.offset}")
        require(self.every == "update" or self.every > 0, f"Evaluation.every must be above 0, got {self.every}")
        fits = self.held_out is None or 0 < self.held_out < 1
        require(fits, f"Evaluation.held_out must be above 0 and below 1, got {self.held_out}")


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """Updates of each replica by its own samples alone; now and then their weights are averaged (local SGD).

    After update u, counted from 1, the weights become the mean over the replicas if u is a multiple of `every` or began
    before `from`. Momentum, running statistics and clipping stay each replica's own; evaluation, checkpoints and
    exports have the mean of weights and statistics.

    Args:
        every: updates from one average to the next, at least 2.
        replicas: how many; `train` must run on as many workers, which share each batch evenly.
        from_: position until which the weights are averaged after every update (post-local SGD).
    """

    every: int
    replicas: int
    from_: Epochs = 0.0

    def __post_init__(self) -> None:
        require(self.every >= 2, f"LocalSteps.every must be at least 2, got {self.every}")
        require(self.replicas >= 1, f"LocalSteps.replicas must be at least 1, got {self.replicas}")
        require(self.from_ >= 0, f"LocalSteps.from_ must be at least 0, got {self.from_}")

    def averages_after(self, update: int, *, epoch: float) -> bool:
        """Whether the weights are averaged after an update, counted from 0, that began at `epoch`."""
        return epoch < self.from_ or (update + 1) % self.every == 0


@dataclass(frozen=True, kw_only=True)
class Updater:
    """Options of the execution that change the mathematics.

    Args:
        double_buffering: apply gradients one update late, while the next ones are computed.
        power_sgd_rank: send each gradient as two matrices of this rank, at least 1, and add what they leave out to the
            next one (PowerSGD); null: send it whole. The weights then depend on the number of workers by more than
            the last bits, since rounding grows.
        local_steps: steps of each worker alone, with weights that are averaged now and then; null: none.
    """

    double_buffering: bool = False
    power_sgd_rank: int | None = younger(None)
    local_steps: LocalSteps | None = younger(None)

    def __post_init__(self) -> None:
        rank = self.power_sgd_rank
        require(rank is None or rank >= 1, f"Updater.power_sgd_rank must be at least 1, got {rank}")

    @property
    def why_not_exact(self) -> str | None:
        """The word by which a recipe gives up equal bits on any number of workers; None where it does not."""
        if self.power_sgd_rank is not None:
            return "updater.power_sgd_rank sums what rounding depends on"
        return None if self.local_steps is None else "updater.local_steps trains each worker's own weights"


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
        double_after: updates without an overflow until the scale is doubled, at least 1. An update that is done again
            at half the scale is the first of them.
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


@dataclass(frozen=True, kw_only=True)
class Init:
    """Weights that a run begins with in place of draws by the seed: fine-tuning.

    Args:
        weights: path of a file of safetensors, from the folder of the file that names it: the weights of a checkpoint
            or of `kilobatch export`, or torchvision's or timm's of a ResNet.
        sha256: of that file, which must have it; left out, it is filled in, so that a run records it.
        except_: names of layers that are drawn by the seed all the same, such as `[fc]`, or patterns, such as
            `["/res5/*"]`; of the model or of the file.
    """

    weights: str
    sha256: str | None = None
    except_: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A result that a recipe promises, and its status.

    Args:
        metric: such as top1 or hours.
        kind: such as accuracy or time_to_train.
        value: value of the metric; accuracies in 0..1.
        deviation: standard deviation over the runs, at least 0.
        runs: number of runs, at least 0.
        margin: how far a rerun may fall short, at least 0.
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

    def __post_init__(self) -> None:
        in_range = self.kind != "accuracy" or 0 <= self.value <= 1
        require(in_range, f"Claim.value must be an accuracy from 0 to 1, got {self.value}")
        for name in ("deviation", "runs", "margin"):
            number = getattr(self, name)
            require(number is None or number >= 0, f"Claim.{name} must be at least 0, got {number}")


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
        title: what it is, in one line; not inherited by `extends`.
        source: the paper, code or measurement that its numbers come from: title, year, url and the like; not inherited.
        dataset: name or path of a file of `configs/datasets`.
        model: the network.
        init: weights of a file that the run begins with; null: they are drawn by `seed`.
        epochs: length of the run, above 0; in updates only where no step of `batch.global` is in `run`.
        batch: samples an update.
        learning_rate: the learning rate over time.
        optimizer: the rule that turns a gradient into a step.
        schedules: how its momentum and weight decay move.
        loss: the loss, whose mean over the global batch is minimised. Left out: `{kind: SoftmaxCrossEntropy}`.
        image_size: side of training images in pixels: a number, or steps such as
            `[{from: 0, size: 128}, {from: 30, size: 160}]`. The size at an update's start holds for all of it. Entries
            of `augmentation.train` use it by `size: image_size`; null if each has its own size.
        stream: the order of training samples.
        augmentation: transforms of the images.
        evaluation: when and how the model is scored on the evaluation samples.
        stop_at: the goal at which the run ends before `epochs`, such as `{accuracy: 0.9}`; null: it has none.
        gradient: processing of the mean gradient before the optimizer.
        weight_average: moving average of the weights, which is evaluated; null: evaluate the last weights.
        precision: number formats of the computation.
        updater: options of the execution that change the mathematics.
        extensions: what else happens between updates, such as `[{kind: WeightNorms}]`.
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
    init: Init | None = younger(None)
    epochs: Epochs
    batch: Batch
    learning_rate: LearningRate
    optimizer: Annotated[object, Component("optimizers")]
    schedules: Schedules = younger(Schedules())
    loss: Annotated[object, Component("losses")]
    image_size: BatchRamp | None = None
    stream: StreamOrder = StreamOrder()
    augmentation: Augmentation = Augmentation()
    evaluation: Evaluation = Evaluation()
    stop_at: StopAt | None = younger(None)
    gradient: Gradient = Gradient()
    weight_average: WeightAverage | None = None
    precision: Precision = Precision()
    updater: Updater = Updater()
    extensions: tuple[Annotated[object, Component("extensions")], ...] = younger(())
    seed: int = 0
    claims: tuple[Claim, ...] = ()
    card: Card | None = None
    assumed: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
