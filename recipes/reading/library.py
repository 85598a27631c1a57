"""The library of recipes: its list, and copies to start your own recipe from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any

from recipes.errors import Problem, RecipeError
from recipes.reading.load import load_tree
from recipes.reading.open import open_recipe
from recipes.reading.registry import (
    find_or_refuse,
    is_of_library,
    library_name,
    names,
    path_of_pack,
    require_suffix,
    shown,
)
from recipes.reading.yaml import Node, flow_text, parse_yaml
from recipes.schema.vocabulary import Vocabulary


def library(*, vocabulary: Vocabulary, allow_code: bool = False) -> tuple[list[dict[str, Any]], list[Problem]]:
    """A row for every recipe that has a name, sorted by name, and the problems of those that do not open.

    `global_batch_size` is that of the first update.
    """
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for name in names("recipes"):
        try:
            opened = open_recipe(name, vocabulary=vocabulary, allow_code=allow_code)
        except RecipeError as error:
            problems += error.problems
        else:
            recipe = opened.recipe
            row = {
                "name": name,
                "title": recipe.title,
                "dataset": recipe.dataset,
                "model": opened.tree["model"]["kind"],
            }
            row |= {"epochs": recipe.epochs, "global_batch_size": recipe.batch.global_.sizes[0]}
            rows.append({**row, "source": dict(recipe.source)})
    return rows, problems


def copy_recipe(name: str, target: Path | None = None) -> Path:
    """Copies a recipe's file, comments included.

    A first line names the original. The `source` that it inherits in the library, and a copy does not, comes last. The
    paths in a run's recipe, of its data set and of what it begins with, are written as the new file needs them.

    Args:
        name: of the recipe.
        target: the new file; by default the recipe's file name in the working directory.
    Raises:
        RecipeError: there is no such recipe, a path in another recipe would name another file in the copy, or the new
            file exists, has another suffix or cannot be written.
    """
    source = find_or_refuse("recipes", name)
    if path_of_pack(name) != name:
        way_out = "write a file with `kilobatch: 1`, `extends: REGISTRY/NAME@VERSION` and your own values"
        raise RecipeError([Problem(file=name, what="the recipe of a pack lies beside its data set", way_out=way_out)])
    target = target or Path(source.name)
    require_suffix(target)
    of = f"{shown(name)}, kilobatch {version('kilobatch')}"
    origin = f"# A copy of {of}. What you change is no longer what it claims.\n"
    try:
        content = _content_for(source, target)
        with target.open("xb") as file:
            file.write(origin.encode() + content + _inherited_source(source).encode())
    except OSError as error:
        reason = "exists, and a copy never overwrites" if isinstance(error, FileExistsError) else str(error.strerror)
        way_out = "give another name: kilobatch recipes copy NAME FILE.yaml"
        problem = Problem(file=shown(target), what=reason, way_out=way_out)
        raise RecipeError([problem]) from None
    return target


def _content_for(source: Path, target: Path) -> bytes:
    """What is in a recipe's file, for a copy; of a run's recipe with the paths that the copy needs."""
    content = source.read_bytes()
    of_run = (source.parent / "run.yaml").is_file()
    lines, problems = content.decode(errors="replace").splitlines(keepends=True), []
    for key, node, here, there in _moved(source, content, target.parent):
        row, column = node.origin.line - 1, node.origin.column - 1
        before, rest = lines[row][:column], lines[row][column:]
        if of_run and key != "extends" and rest.startswith(node.value):  # not in quotes: as a run writes it
            below = os.path.realpath(target.parent)
            path = os.path.relpath(here, below) if Path(here).is_relative_to(below) else here
            lines[row] = f"{before}{flow_text(path)}{rest[len(node.value) :]}"
        else:
            what = f"is {shown(Path(here))}, and would be {shown(Path(there))} in the copy"
            problems.append(node.origin.problem(key, what, _instead_of_copy(source, target)))
    if problems:
        raise RecipeError(problems)
    return "".join(lines).encode() if of_run else content


def _moved(source: Path, content: bytes, folder: Path) -> Iterator[tuple[str, Node, str, str]]:
    """The relative paths of a recipe that name another file in a copy: key, value, the file here, the file there."""
    root = parse_yaml(content, file=shown(source)).value
    values: dict[str, Any] = dict(root) if isinstance(root, dict) else {}
    init = values.get("init")
    values["init.weights"] = init.value.get("weights") if init is not None and isinstance(init.value, dict) else None
    for key in ("extends", "dataset", "init.weights"):
        node = values.get(key)
        text = node.value if node is not None else None
        if not isinstance(text, str) or (key != "init.weights" and not text.endswith((".yaml", ".yml"))):
            continue
        here, there = (os.path.realpath(place / os.path.expanduser(text)) for place in (source.parent, folder))
        if key == "dataset":  # a file beside the recipe, else one below the working directory
            here, there = (path if os.path.isfile(path) else os.path.realpath(text) for path in (here, there))
        if here != there:
            yield key, node, here, there


def _instead_of_copy(source: Path, target: Path) -> str:
    """What to do where the copy of a recipe would name other files."""
    name, file, below = library_name(source), os.path.realpath(source), os.path.realpath(target.parent)
    if name is None and Path(file).is_relative_to(below):
        name = os.path.relpath(file, below)
    if name is None:
        beside = quote(str(source.parent / "FILE.yaml"))
        return f"copy it into its own folder: kilobatch recipes copy {quote(str(source))} {beside}"
    return f"write `kilobatch: 1`, `extends: {name}` and your own values into {shown(target)}"


def _inherited_source(path: Path) -> str:
    """The `source` that a recipe of the library inherits, as YAML; empty where it has its own."""
    if not is_of_library(path) or re.search("^source:", path.read_text(encoding="utf-8"), re.MULTILINE):
        return ""
    tree, _ = load_tree(path)
    return f"source: {json.dumps(tree['source'], ensure_ascii=False)}\n" if "source" in tree else ""
