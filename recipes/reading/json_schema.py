"""The JSON Schema of a recipe's file, for editors: from the same dataclasses that read it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter

from lr_schedules import BatchRamp
from recipes.reading.read import Field, component_of, fields_of, is_epochs, options_of
from recipes.reading.reference import argument_texts, first_line
from recipes.schema import RampStep, Recipe, Warmup
from recipes.schema.vocabulary import Component, Vocabulary

_POSITION = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?\s*(ep|up|sp|ksp|Msp|Gsp|run)$"},
    ]
}
_START = {
    "anyOf": [
        {"const": "reference"},
        {"const": 0},
        {"type": "object", "properties": {"rate": {"type": "number"}}, "required": ["rate"]},
        {"type": "object", "properties": {"factor": {"type": "number"}}, "required": ["factor"]},
    ]
}
_NULL = {"type": "null"}


def json_schema(vocabulary: Vocabulary) -> dict[str, Any]:
    """A schema that accepts every recipe that opens; `validate` also checks what a schema cannot express.

    Any key may be null, which removes an inherited value; only a recipe without `extends` needs all required keys.
    """
    recipe = _object(Recipe, vocabulary)
    required = [field.key for field in fields_of(Recipe) if field.required and field.key != "name"]
    recipe["properties"] = {
        "kilobatch": {"const": 1, "description": "Version of the schema."},
        "extends": {"type": "string", "description": "A recipe of the library, or a path below this file's folder."},
        **recipe["properties"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kilobatch recipe",
        **recipe,
        # A recipe may have keys of methods that it names in `lacks`.
        "additionalProperties": {"description": "A key of a method that `lacks` names."},
        "required": ["kilobatch"],
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": required},
    }


def _object(cls: type, vocabulary: Vocabulary, special: Mapping[str, Any] | None = None) -> dict[str, Any]:
    properties = {field.key: _property(cls, field, vocabulary, special or {}) for field in fields_of(cls)}
    return {"type": "object", "description": first_line(cls), "properties": properties, "additionalProperties": False}


def _property(cls: type, field: Field, vocabulary: Vocabulary, special: Mapping[str, Any]) -> dict[str, Any]:
    made = special.get(field.key) or _value(field.hint, vocabulary)
    schema = {"anyOf": [made, _NULL], "description": argument_texts(cls).get(field.name, "")}
    if not field.required and not dataclasses.is_dataclass(field.default):
        schema["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
    return schema


def _value(hint: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    options = options_of(hint)
    if len(options) > 1:
        return {"anyOf": [_value(option, vocabulary) for option in options]}
    if hint is types.NoneType:
        return _NULL
    if is_epochs(hint):
        return _POSITION
    if hint is BatchRamp:
        step = _object(RampStep, vocabulary)
        return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": step, "minItems": 1}]}
    if hint is Warmup:
        return _warmup(vocabulary)
    if component := component_of(hint):
        return _component(component, vocabulary)
    if dataclasses.is_dataclass(hint):
        return _object(hint, vocabulary)
    if get_origin(hint) is tuple:
        inner = [_value(each, vocabulary) for each in get_args(hint) if each is not ...]
        if ... in get_args(hint):
            return {"type": "array", "items": inner[0]}
        return {"type": "array", "prefixItems": inner, "minItems": len(inner), "maxItems": len(inner)}
    return TypeAdapter(hint).json_schema()


def _component(component: Component, vocabulary: Vocabulary) -> dict[str, Any]:
    """One alternative for each `kind`, one for kinds that `lacks` names, and one without, for a change to a base."""
    group: Mapping[str, type] = getattr(vocabulary, component.group)
    known = [
        # A schedule may contain schedules: inside, the schema requires only a `kind`, or it would recurse.
        _with_kind({"const": kind}, _object(group[kind], vocabulary) if kind != "Product" else _product(group[kind]))
        for kind in group
    ]
    return {"oneOf": [*known, *_unknown(list(group))]}


def _product(cls: type) -> dict[str, Any]:
    schedules = {"type": "array", "items": {"type": "object", "required": ["kind"]}}
    return {"description": first_line(cls), "properties": {"factors": schedules}, "additionalProperties": False}


def _warmup(vocabulary: Vocabulary) -> dict[str, Any]:
    beside = {field.key: field for field in fields_of(Warmup) if field.key != "shape"}
    more = {key: _property(Warmup, field, vocabulary, {}) for key, field in beside.items()}
    known = []
    for kind, cls in vocabulary.warmups.items():
        made = _object(cls, vocabulary, {"start": _START})
        made["properties"] |= more
        known.append(_with_kind({"const": kind}, made))
    return {"oneOf": [*known, {"type": "object", "not": {"required": ["kind"]}}]}


def _with_kind(kind: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "properties": {"kind": kind, **made["properties"]}, "required": ["kind"]}


def _unknown(known: list[str]) -> list[dict[str, Any]]:
    unbuilt = {"type": "string", "not": {"enum": known}}
    return [
        {"type": "object", "properties": {"kind": unbuilt}, "required": ["kind"], "description": "named in `lacks`"},
        {"type": "object", "not": {"required": ["kind"]}, "description": "changes to what is extended"},
    ]
