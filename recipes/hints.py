"""Type hints of the schema, taken apart and put into words."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from lr_schedules import BatchRamp
from lr_schedules.units import Epochs, Schedule
from recipes.positions import UNITS
from recipes.vocabulary import Component

__all__ = ["Field", "component_of", "fields_of", "is_epochs", "options_of", "sections_with", "words"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A key of a mapping in the YAML.

    Args:
        key: as it is written there.
        name: of the dataclass's field: the key, with an underscore appended if Python reserves the word.
        hint: its type.
        default: the value if it is left out; `dataclasses.MISSING` if it must be given.
    """

    key: str
    name: str
    hint: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


@cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """The keys of a dataclass, in its order."""
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found.append(Field(key=field.name.rstrip("_"), name=field.name, hint=hints[field.name], default=default))
    return tuple(found)


def component_of(hint: Any) -> Component | None:
    """The group of a field that holds a component, None for any other field."""
    if hint == Schedule:
        return Component("schedules")
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Component)), None)


def is_epochs(hint: Any) -> bool:
    """Whether a field is a position or a duration in epochs."""
    return hint == Epochs


def options_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of any other hint the hint itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def sections_with(cls: type, key: str) -> list[str]:
    """The keys of a dataclass whose value is a mapping that has this key: for `norm_span` of a recipe, `batch`."""
    return [
        field.key
        for field in fields_of(cls)
        for option in options_of(field.hint)
        if dataclasses.is_dataclass(option) and any(inner.key == key for inner in fields_of(option))
    ]


def words(hint: Any) -> str:
    """A type hint in words: what a value must be.

    >>> words(float), words(Literal["linear", "sqrt"]), words(tuple[int, ...]), words(int | None)
    ('a number', 'linear or sqrt', 'a list, each a whole number', 'a whole number or null')
    """
    plain = {
        float: "a number",
        int: "a whole number",
        str: "text",
        bool: "true or false",
        Path: "a path",
        types.NoneType: "null",
        BatchRamp: "a whole number or a ramp",
    }
    options, origin = options_of(hint), get_origin(hint)
    if len(options) > 1:
        return " or ".join(map(words, options))
    if is_epochs(hint):
        return UNITS
    if component := component_of(hint):
        return f"{'an' if component.word[0] in 'ao' else 'a'} {component.word}: `kind` and its keys"
    if origin is Annotated:
        return words(get_args(hint)[0])
    if origin is Literal:
        names = [str(name) for name in get_args(hint)]
        return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    if origin is tuple:
        inner = [word for word in get_args(hint) if word is not ...]
        if ... in get_args(hint):
            return f"a list, each {words(inner[0])}"
        return f"a list of {len(inner)}: {', '.join(map(words, inner))}"
    if origin in (dict, Mapping) and get_origin(get_args(hint)[1]) is tuple:
        return "`key: [value, ...]` pairs"
    if origin in (dict, Mapping) or (dataclasses.is_dataclass(hint) and hint not in plain):
        return "`key: value` pairs"
    return plain.get(hint, "a value")
