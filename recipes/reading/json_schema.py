"""JSON Schemas of the files of recipes, data sets, clusters, searches, frontiers: from the classes that read them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter

from lr_schedules import BatchRamp
from lr_schedules.units import Epochs
from recipes.planning.cluster import Cluster
from recipes.reading.read import Field, component_of, fields_of, options_of
from recipes.reading.reference import argument_texts, first_line
from recipes.schema import Dataset, Frontier, RampStep, Recipe, Search, Warmup
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
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LACKED = "named in `lacks`"
_LACKED_KEY = {"description": "A key of a method that `lacks` names."}


_COUNTED = ("num_train", "num_eval", "num_classes")  # the reader counts them where a data set's file does not
_FILES = {"dataset": Dataset, "cluster": Cluster, "search": Search, "frontier": Frontier}


def file_schema(vocabulary: Vocabulary, of: str, *, strict: bool = False) -> dict[str, Any]:
    """A schema that accepts every file of a kind that opens.

    Args:
        vocabulary: of a search or frontier that of searches.
        of: recipe, dataset, cluster, search or frontier.
        strict: refuse kinds that the vocabulary lacks, and other unknown keys: for files that name nothing in `lacks`
            and no kind of one's own.
    """
    if of == "recipe":
        made = json_schema(vocabulary)
    else:
        made = _object(_FILES[of], vocabulary)
        required = [field.key for field in fields_of(_FILES[of]) if field.required and field.key not in _COUNTED]
        made["properties"]["kilobatch"] = {"const": 1, "description": "Version of the schema."}
        made |= {"required": [key for key in required if key != "name"]}
        made = {"$schema": _DIALECT, "title": f"kilobatch {of}", **made}
    return _closed(made) if strict else made


def _closed(schema: Any) -> Any:
    """The same without the alternatives for what `lacks` may name."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema if not (isinstance(each, dict) and each.get("description") == _LACKED)]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _closed(value) for key, value in schema.items()}
    return inner | ({"additionalProperties": False} if schema.get("additionalProperties") == _LACKED_KEY else {})


def json_schema(vocabulary: Vocabulary) -> dict[str, Any]:
    """A schema that accepts every recipe that opens; `validate` also checks what a schema cannot express.

    Any key may be null, which removes an inherited value; only a recipe without `extends` needs all required keys.
    """
    recipe = _object(Recipe, vocabulary)
    required = [field.key for field in fields_of(Recipe) if field.required and field.key not in ("name", "loss")]
    recipe["properties"] = {
        "kilobatch": {"const": 1, "description": "Version of the schema."},
        "extends": {"type": "string", "description": "A recipe of the library, or a path below this file's folder."},
        **recipe["properties"],
    }
    return {
        "$schema": _DIALECT,
        "title": "kilobatch recipe",
        **recipe,
        "additionalProperties": _LACKED_KEY,
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
    if hint == Epochs:
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
    if get_origin(hint) is Mapping and (component := component_of(get_args(hint)[1])):
        return {"type": "object", "additionalProperties": _component(component, vocabulary)}
    if get_origin(hint) is Mapping and dataclasses.is_dataclass(get_args(hint)[1]):
        return {"type": "object", "additionalProperties": _object(get_args(hint)[1], vocabulary)}
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
        {"type": "object", "properties": {"kind": unbuilt}, "required": ["kind"], "description": _LACKED},
        {"type": "object", "not": {"required": ["kind"]}, "description": "changes to what is extended"},
    ]
