"""The names that a recipe may use as `kind`, the dataclasses behind them, and the families of optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ADAPTIVE", "Component", "LAYERWISE", "MOMENTUM_SGD", "SearchVocabulary", "Unbuilt", "Vocabulary"]


# A step is proportional to the gradient: linear scaling, Goyal et al. 2017.
MOMENTUM_SGD = ("CorrectedMomentumSGD", "CorrectedNesterovAG", "MomentumSGD", "NesterovAG", "SGD")
# The gradient is divided by the root of its mean square: the square root, Malladi et al. 2022 and You et al. 2019.
ADAPTIVE = ("Adam", "Lamb")
# A layer's step is proportional to the norm of its weights, except for normalisation and biases.
LAYERWISE = ("Lamb", "Lars")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What `kind` may be, group by group; a value is a frozen dataclass whose fields are the keys beside `kind`.

    `trainers.launch.vocabulary` makes it, so that this package needs no Chainer.

    Args:
        models, optimizers, losses, augmentations, mixes, datasets, communicators, schedules, warmups: name ->
            dataclass. A mapping may know more names than it lists, and may import a dataclass when its name is asked
            for.
    """

    models: Mapping[str, type]
    optimizers: Mapping[str, type]
    losses: Mapping[str, type]
    augmentations: Mapping[str, type]
    mixes: Mapping[str, type]
    datasets: Mapping[str, type]
    communicators: Mapping[str, type]
    schedules: Mapping[str, type]
    warmups: Mapping[str, type]


@dataclass(frozen=True, kw_only=True)
class SearchVocabulary(Vocabulary):
    """The names a search may use beside those of its recipe.

    Args:
        ranges, samplers, pruners: as in `Vocabulary`.
    """

    ranges: Mapping[str, type]
    samplers: Mapping[str, type]
    pruners: Mapping[str, type]


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
