"""The names that `kind` may have: from this package, other packages and, if allowed, the user's own code."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import lr_schedules
from lr_schedules import shapes, warmups
from recipes.errors import InputRefused
from recipes.vocabulary import SearchVocabulary, Vocabulary
from trainers.own_code import own_class

__all__ = ["search_vocabulary", "vocabulary"]

_SCHEDULES = ("Product", *shapes.__all__)


def vocabulary(*, allow_code: bool = False) -> Vocabulary:
    """All names a recipe may use.

    A name of another package comes from the entry-point group `kilobatch.models`, `kilobatch.optimizers`,
    `kilobatch.losses`, `kilobatch.augmentations`, `kilobatch.mixes`, `kilobatch.datasets`, `kilobatch.communicators`,
    `kilobatch.schedules` or `kilobatch.warmups`, and is imported when a recipe uses it.

    Args:
        allow_code: `kind: mymodule.MyNet` imports from the working directory.
    """

    def group(name: str, package: object, names: tuple[str, ...] | list[str]) -> _Group:
        return _Group(name=name, package=package, names=tuple(names), allow_code=allow_code)

    def of_trainers(name: str) -> _Group:
        package = importlib.import_module(f"trainers.{name}")
        return group(name, package, package.__all__)

    return Vocabulary(
        models=of_trainers("models"),
        optimizers=of_trainers("optimizers"),
        losses=of_trainers("losses"),
        augmentations=of_trainers("augmentations"),
        mixes=of_trainers("mixes"),
        datasets=of_trainers("datasets"),
        communicators=of_trainers("communicators"),
        schedules=group("schedules", lr_schedules, _SCHEDULES),
        warmups=group("warmups", lr_schedules, warmups.__all__),
    )


def search_vocabulary(*, allow_code: bool = False) -> SearchVocabulary:
    """All names a search may use, including those of its recipe; for `allow_code` see `vocabulary`.

    Other packages add to them by the groups `kilobatch.samplers`, `kilobatch.pruners` and `kilobatch.ranges`.
    """

    def group(name: str, module: str) -> _Group:
        package = importlib.import_module(module)
        return _Group(name=name, package=package, names=tuple(package.__all__), allow_code=False)

    return SearchVocabulary(
        **vars(vocabulary(allow_code=allow_code)),
        ranges=group("ranges", "recipes.ranges"),
        samplers=group("samplers", "trainers.samplers"),
        pruners=group("pruners", "trainers.pruners"),
    )


@dataclass(frozen=True, kw_only=True)
class _Group(Mapping[str, type]):
    """The names of one group; checking for a name and listing the names import nothing."""

    name: str
    package: object
    names: tuple[str, ...]
    allow_code: bool

    def __getitem__(self, kind: str) -> type:
        if kind in self.names:
            return getattr(self.package, kind)
        for entry in self._entry_points():
            if entry.name == kind:
                return _loaded(entry)
        if self.allow_code and "." in kind:
            return own_class(kind, group=self.name)
        raise KeyError(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self.names, *(entry.name for entry in self._entry_points())}))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, kind: object) -> bool:
        return kind in self.names or any(kind == entry.name for entry in self._entry_points())

    def _entry_points(self) -> list:
        return list(entry_points(group=f"kilobatch.{self.name}"))


class KindBroken(ImportError, InputRefused):
    """A `kind` of an installed package cannot be imported."""


def _loaded(entry: EntryPoint) -> type:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        what = f"{entry.value}, of an installed package, is broken: {type(error).__name__}: {error}"
        raise KindBroken(f"{what}; mend or remove that package") from error
