"""The JSON Schema and the reference: from the dataclasses, complete, and the committed page is current."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from lr_schedules import BatchRamp
from recipes.reading.json_schema import file_schema, json_schema
from recipes.reading.read import fields_of, options_of
from recipes.reading.reference import argument_texts, reference
from recipes.reading.registry import find, names
from recipes.reading.yaml import parse_yaml
from recipes.schema import Recipe
from trainers.launch.vocabulary import search_vocabulary, vocabulary

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def schema():
    return json.loads(json.dumps(json_schema(vocabulary())))


def faults(schema, value, path="recipe"):
    """What a schema says against a value: the part of JSON Schema that ours uses."""
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": int | float,
        "boolean": bool,
        "null": type(None),
    }
    result = []
    for word in ("anyOf", "oneOf"):
        fits = [not faults(option, value, path) for option in schema.get(word, ())]
        if word in schema and (not any(fits) or (word == "oneOf" and sum(fits) > 1)):
            result.append(f"{path}: {word} fits {sum(fits)} times")
    if "type" in schema:
        is_kind = isinstance(value, kinds[schema["type"]]) and (
            schema["type"] == "boolean" or not isinstance(value, bool)
        )
        result += [] if is_kind else [f"{path}: no {schema['type']}"]
    result += [f"{path}: not {schema['const']}"] if schema.get("const", value) != value else []
    result += [f"{path}: not among"] if value not in schema.get("enum", [value]) else []
    result += [f"{path}: is what it must not be"] if "not" in schema and not faults(schema["not"], value, path) else []
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        result.append(f"{path}: no match")
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        result.append(f"{path}: too small")
    if isinstance(value, dict):
        result += [f"{path}.{key}: missing" for key in schema.get("required", ()) if key not in value]
        known = schema.get("properties", {})
        for key, inner in value.items():
            if key in known:
                result += faults(known[key], inner, f"{path}.{key}")
            elif schema.get("additionalProperties") is False:
                result.append(f"{path}.{key}: unknown")
            elif isinstance(more := schema.get("additionalProperties"), dict):
                result += faults(more, inner, f"{path}.{key}")
        if "if" in schema and not faults(schema["if"], value, path):
            result += faults(schema["then"], value, path)
    if isinstance(value, list):
        items = schema.get("prefixItems", [schema.get("items", {})] * len(value))
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            result.append(f"{path}: length {len(value)}")
        result += [
            fault
            for i, (each, inner) in enumerate(zip(items, value, strict=False))
            for fault in faults(each, inner, f"{path}.{i}")
        ]
    return result


def as_read(name, kind="recipes"):
    """A file's own tree, without what it extends."""

    def plain(node):
        if isinstance(node.value, dict):
            return {key: plain(inner) for key, inner in node.value.items()}
        return [plain(inner) for inner in node.value] if isinstance(node.value, list) else node.value

    return plain(parse_yaml(find(kind, name).read_bytes(), file=name))


@pytest.mark.parametrize("name", names("recipes"))
def test_schema_accepts_the_library(schema, name):
    assert faults(schema, as_read(name)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": "30 apples"},
        {"epochs": -1},
        {"kilobatch": 2},
        {"batch": {"global": 0}},
        {"batch": {"global": [{"form": 0, "size": 3}]}},
        {"learning_rate": {"reference": "0.1"}},
        {"learning_rate": {"rule": "cubic"}},
        {"learning_rate": {"warmup": {"kind": "GradualWarmup", "start": 0.1}}},
        {"learning_rate": {"schedule": {"kind": "MultiStep", "boundary": [3]}}},
        {"model": "ResNet50"},
        {"model": {"kind": "ResNet50", "zero_last_gama": True}},
        {"model": {"kind": "ResNet50", "zero_last_gamma": 1}},
        {"optimizer": {"kind": "MomentumSGD", "no_decay": ["norms"]}},
        {"augmentation": {"train": [{"kind": "RandomCrop", "size": "8"}]}},
        {"claims": [{"metric": "top1", "kind": "accuracy", "value": 0.7, "status": "done"}]},
        {"dataset": None},
    ],
    ids=str,
)
def test_schema_refuses(schema, change):
    whole = {**as_read("goyal2017"), **change}
    if change == {"dataset": None}:
        whole.pop("dataset")
    assert faults(schema, whole)


@pytest.mark.parametrize("of", ["dataset", "cluster", "search", "frontier"])
def test_the_schema_of_other_files_accepts_the_library_and_refuses_mistakes(of):
    kind = "searches" if of == "search" else f"{of}s"
    schema = json.loads(json.dumps(file_schema(search_vocabulary(), of, strict=True)))
    trees = {name: as_read(name, kind) for name in names(kind)}
    found = {name: faults(schema, tree) for name, tree in trees.items() if not tree.get("lacks")}
    assert not any(found.values()), found
    wrong = {"dataset": {"reader": {"kind": "Imagefolder"}}, "cluster": {"exchange": {"wire": "float8"}}}
    wrong |= {of: {"space": {"epochs": {"kind": "Floats"}}} for of in ("search", "frontier")}
    for change in ({"colour": 3}, wrong[of]):
        assert faults(schema, {**trees[names(kind)[0]], **change}), change


def test_a_strict_schema_knows_the_kinds():
    schema = json.loads(json.dumps(file_schema(vocabulary(), "recipe", strict=True)))
    recipe = as_read("digits/baseline")
    assert faults(schema, recipe) == []
    assert faults(schema, {**recipe, "optimizer": {"kind": "AdamW"}})
    assert faults(schema, {**recipe, "augmentation": {"train": [{"kind": "RandomHorizontalFlip"}]}})
    assert faults(schema, {**recipe, "lr": 0.1})
    assert faults(schema, {"kilobatch": 1, "extends": "digits/baseline", "optimizer": {"weight_decay": 0.1}}) == []


def test_schema_names_every_kind_of_the_vocabulary(schema):
    text = json.dumps(schema)
    for field in dataclasses.fields(vocabulary()):
        if field.name not in ("datasets", "communicators"):  # of other files
            for kind in getattr(vocabulary(), field.name):
                assert f'"kind": {{"const": "{kind}"}}' in text


def test_every_key_has_a_meaning():
    classes = {Recipe}
    for cls in list(classes):
        classes |= {field.hint for field in fields_of(cls) if dataclasses.is_dataclass(field.hint)}
    for field in dataclasses.fields(vocabulary()):
        classes |= set(getattr(vocabulary(), field.name).values())
    lacking = [
        f"{cls.__name__}.{field.key}"
        for cls in classes
        for field in fields_of(cls)
        if not argument_texts(cls).get(field.name)
    ]
    assert lacking == []


def test_committed_reference_is_current():
    """Write it anew with: ./scripts/docs pages"""
    assert (ROOT / "docs" / "recipes.md").read_text() == reference(search_vocabulary())


def test_every_mapping_of_a_recipe_has_a_section_of_the_reference():
    text = reference(search_vocabulary())
    mappings = [
        field.key
        for field in fields_of(Recipe)
        for option in options_of(field.hint)
        if dataclasses.is_dataclass(option) and option is not BatchRamp
    ]
    assert len(mappings) >= 9
    assert [key for key in mappings if f"\n## `{key}`\n" not in text] == []
