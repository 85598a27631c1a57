"""The names that a recipe may use as `kind`, and the dataclasses behind them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What `kind` may be, group by group; a value is a frozen dataclass whose fields are the keys beside `kind`.

    `trainers.launch.vocabulary` makes it, so that this package needs no Chainer.

    Args:
        models, optimizers, losses, metrics, augmentations, mixes, datasets, extensions, communicators, schedules,
            warmups: name -> dataclass. A mapping may accept more names than it lists, and may import a dataclass when
            it is used.
    """

    models: Mapping[str, type]
    optimizers: Mapping[str, type]
    losses: Mapping[str, type]
    metrics: Mapping[str, type]
    augmentations: Mapping[str, type]
    mixes: Mapping[str, type]
    datasets: Mapping[str, type]
    extensions: Mapping[str, type]
    communicators: Mapping[str, type]
    schedules: Mapping[str, type]
    warmups: Mapping[str, type]


@dataclass(frozen=True, kw_only=True)
class SearchVocabulary(Vocabulary):
    """The names a search may use beside those of its recipe.

    Args:
        ranges, samplers: as in `Vocabulary`.
    """

    ranges: Mapping[str, type]
    samplers: Mapping[str, type]


@dataclass(frozen=True)
class Component:
    """Marks a field, as in `Annotated[object, Component("models")]`, that holds an object of one group.

    Args:
        group: a field of `Vocabulary`.
    """

    group: str

    @property
    def word(self) -> str:
        """What one of the group is called."""
        irregular = {"losses": "loss", "mixes": "mix", "datasets": "data set reader"}
        return irregular.get(self.group, self.group.removesuffix("s"))


@dataclass(frozen=True, kw_only=True)
class Unbuilt:
    """A component whose kind the recipe names in `lacks`: it is shown and planned, and cannot be trained.

    Args:
        kind: the name.
        fields: the keys beside `kind`, as they were written.
    """

    kind: str
    fields: Mapping[str, object]


def kind_of(component: object) -> str:
    """The `kind` of a component, built or not."""
    return component.kind if isinstance(component, Unbuilt) else type(component).__name__


def described_in(cls: type) -> str:
    """Where a user reads what a component's keys are: the page of ours, or the file of another's code.

    >>> described_in(Unbuilt)
    'docs/recipes.md'
    """
    if cls.__module__.partition(".")[0] in ("lr_schedules", "recipes", "trainers"):
        return "docs/recipes.md"
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return PurePath(file).name if file else cls.__module__


def rate_rule(optimizer: object) -> str | None:
    """How an optimizer's rate follows the batch, by its class attribute `rate_rule`; None where it has none.

    `linear`: a step is proportional to the gradient (Goyal et al. 2017). `sqrt`: the gradient is divided by the root of
    its mean square (Malladi et al. 2022, You et al. 2019).
    """
    return getattr(optimizer, "rate_rule", None)


def is_layerwise(optimizer: object) -> bool:
    """Whether a layer's step is proportional to the norm of its weights, by the class attribute `layerwise`.

    Normalisation and biases are not scaled so.
    """
    return getattr(optimizer, "layerwise", False)


def metric_name(metric: object) -> str:
    """What a metric is called in the records: its attribute `name`, or its class in small letters, as `macro_f1`."""
    own = getattr(metric, "name", None)
    return own if isinstance(own, str) else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()


def lower_is_better(score: str, metrics: Iterable[object]) -> bool:
    """Whether the lower one of two scores is the better one, by the name of the score.

    So it is of the loss, and of a metric whose attribute `higher_is_better` is False.
    """
    own = (metric for metric in metrics if metric_name(metric) == score)
    return score == "loss" or any(not getattr(metric, "higher_is_better", True) for metric in own)
