"""A recipe's file as one tree: `extends` merged, `--set` applied, the origin of every value kept.

`resolved_text` writes a tree back as YAML, with the origins as comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from recipes.errors import Problem, RecipeError
from recipes.reading.derived import UNSURE, outdated, position_of, with_rules
from recipes.reading.registry import UnknownNameError, find, is_of_library, is_of_pack, require_possible, shown
from recipes.reading.yaml import Node, Origin, OverrideSource, flow_text, parse_yaml
from recipes.sharing.pack_file import HEAD, SUFFIX

_FLOW_WIDTH = 90
_INDEX = re.compile("[0-9]{1,6}")  # of a list: Python's int() refuses thousands of digits

Origins = dict[tuple[str | int, ...], Origin]
VERSION = 1
# version -> dotted path of a key before it -> since it. Files of older versions are read so, and the identity of a
# recipe is that of the oldest one.
RENAMED: dict[int, dict[str, str]] = {}
_GONE = object()
# A key that only files of one kind have -> that kind; the first that a file has decides.
_KINDS = {"reader": "data set", "model": "recipe", "goal": "frontier", "space": "search"}
_LONGEST_CHAIN = 32  # files that extend one another
# Keys that are not inherited: a derived recipe is another run, which nobody has measured.
_OWN_KEYS = ("name", "claims", "card")


def load_tree(
    path: Path,
    *,
    overrides: Sequence[str | None] = (),
    overrides_from: str = "command line",
    kind: str | None = "recipe",
    counted_anew: bool = True,
) -> tuple[dict[str, object], Origins]:
    """The merged tree of a recipe, a data set or a cluster.

    Args:
        path: of the file.
        overrides: `a.b=c` as given to `--set`, `cluster.a.b=c` for a cluster; c is read as YAML. None for an option
            that is for another file.
        overrides_from: who gave the overrides, for the origins.
        kind: what the file must be: recipe, search, frontier, data set or cluster; None for any other file. The first
            three must say `kilobatch: 1`, or a later version up to `VERSION`.
        counted_anew: read a position of a file that this program wrote as it was written at first, such as 0.5run; else
            as the number of epochs that it was.
    Returns:
        Plain dicts, lists and scalars, and the origin of every value in them by its path of keys and indices; the empty
        path stands for the file itself. Values that a rule filled in are left out where they are to be derived anew.
    Raises:
        RecipeError: a file is missing, is not the YAML we read, is of another kind, extends itself, or an override
            cannot be applied.
    """
    root = _load(path, kind=kind)
    _require_kind(root, kind)
    for number, override in enumerate(overrides, 1):
        if override is not None:
            root = _merge(root, _override(override, number, root, kind, OverrideSource(overrides_from)))
    origins: Origins = {}
    tree = _flatten(root, (), origins)
    assert isinstance(tree, dict)
    for keys in outdated(origins):
        if origins[keys].rule != UNSURE:
            del reduce(getitem, keys[:-1], tree)[keys[-1]]
            del origins[keys]
    for keys, origin in origins.items() if counted_anew else ():
        if position := position_of(origin.rule):
            reduce(getitem, keys[:-1], tree)[keys[-1]] = position
            origins[keys] = replace(origin, rule="")
    return tree, origins


def overrides_by_file(overrides: Sequence[str]) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """The overrides for the recipe, and those for the cluster's file, whose first key is `cluster`.

    Both are as long as `overrides`, with None in place of the others, because a problem names the option's number.

    >>> overrides_by_file(["seed=1", "cluster.exchange.wire=float16"])
    (('seed=1', None), (None, 'cluster.exchange.wire=float16'))
    """
    first = {text: text.partition("=")[0].strip().partition(".")[0] for text in overrides}
    own = tuple(None if first[text] == "cluster" else text for text in overrides)
    return own, tuple(text if first[text] == "cluster" else None for text in overrides)


def chain_of(path: Path) -> list[tuple[Path, Origin | None]]:
    """A recipe's file and those it extends, in order, each with the origin of its `extends`, None for the last."""
    link = _parsed(path.read_bytes(), shown(path)).value.get("extends")
    return [(path, None)] if link is None else [(path, link.origin), *chain_of(_base(link, path))]


def not_taken_over(
    before: Mapping[str, Any], tree: Mapping[str, Any], origins: Mapping[str, str], path: str = ""
) -> Iterator[str]:
    """A line for each mapping that one of another `kind` replaced, where keys of both now have the default.

    Args:
        before: the tree of what is extended.
        tree, origins: of the recipe, resolved, as of `OpenedRecipe`.
        path: of both, with a dot at its end.

    >>> before, tree = {"kind": "Sgd", "weight_decay": 1e-4}, {"kind": "Lars", "weight_decay": 0.0}
    >>> list(not_taken_over({"optimizer": before}, {"optimizer": tree}, {"optimizer.weight_decay": "default"}))
    ['optimizer: another kind replaces the whole mapping; not taken over: weight_decay']
    """
    if before.get("kind") != tree.get("kind"):
        shared = before.keys() & tree.keys() - {"kind"}
        lost = [k for k in before if k in shared and tree[k] != before[k] and origins.get(path + k) == "default"]
        if lost:
            yield f"{path[:-1]}: another kind replaces the whole mapping; not taken over: {', '.join(lost)}"
        return
    for key in before:
        if isinstance(before[key], Mapping) and isinstance(tree.get(key), Mapping):
            yield from not_taken_over(before[key], tree[key], origins, f"{path}{key}.")


def _load(path: Path, *, kind: str | None, chain: tuple[Path, ...] = ()) -> Node:
    file = shown(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise RecipeError([Problem(file=file, what=what, way_out="check the path")]) from None
    root = _parsed(data, file)
    if not isinstance(root.value, dict):
        raise RecipeError([root.origin.problem("", "holds no keys", "write `key: value` lines, see docs/recipes.md")])
    if kind in ("recipe", "search", "frontier") or "kilobatch" in root.value:
        root = _at_this_version(root, kind)
    root = _with_absolute_weights(root, path)
    if "extends" not in root.value:
        return with_rules(root, path, data) if kind == "recipe" else root
    link, root = root.value["extends"], _without(root, "extends")
    chain = (*chain, path.resolve())
    base = _base(link, path)
    if base.resolve() in chain:
        names = " -> ".join(shown(known) for known in (*chain, base))
        raise RecipeError([link.origin.problem("extends", f"a circle: {names}", "remove one of these links")])
    if len(chain) >= _LONGEST_CHAIN:
        what = f"over {_LONGEST_CHAIN} files extend one another"
        raise RecipeError([link.origin.problem("extends", what, "write some of them as one file")])
    inherited = _beside(base, _load(base, kind=kind, chain=chain))
    inherited = _without(inherited, *_OWN_KEYS)
    return _merge(inherited if is_of_library(path) else _without_publication(inherited, root), root)


def _without_publication(inherited: Node, root: Node) -> Node:
    """What a recipe inherits from another publication: no title and source; no value that it gives itself is assumed.

    In the library a recipe and the one that it extends are of one publication.
    """
    inherited = _without(inherited, "title", "source")
    assumed = inherited.value.get("assumed")
    if assumed is None or not isinstance(assumed.value, list):
        return inherited
    kept = [path for path in assumed.value if not _gives(root, str(path.value).split("."))]
    return replace(inherited, value={**inherited.value, "assumed": replace(assumed, value=kept)})


def _gives(node: Node, keys: list[str]) -> bool:
    """Whether a tree has a value at a path, or one in place of what is around it."""
    for key in keys:
        if not isinstance(node.value, dict):
            return True
        if key not in node.value:
            return False
        node = node.value[key]
    return True


def _beside(base: Path, inherited: Node) -> Node:
    """What a recipe in a pack gives to one that extends it: its data set's file lies in the pack, too."""
    dataset = inherited.value.get("dataset")
    if dataset is None or not (base.parent / HEAD).is_file():
        return inherited
    placed = replace(dataset, value=str(base.parent / str(dataset.value)))
    return replace(inherited, value={**inherited.value, "dataset": placed})


@lru_cache(maxsize=512)  # the library and its data sets are over a hundred
def _parsed(data: bytes, file: str) -> Node:
    """A file's tree, cached, because a library's recipes extend the same few files. It must not be changed."""
    return parse_yaml(data, file=file)


def _without(node: Node, *keys: str) -> Node:
    return replace(node, value={key: value for key, value in node.value.items() if key not in keys})


def _with_absolute_weights(root: Node, path: Path) -> Node:
    """A file's tree, with `init.weights` counted from its folder: what extends it may lie in another one.

    A pack names weights below its own folder only: who packs a recipe that extends it gives the file away.
    """
    init = root.value.get("init")
    weights = init.value.get("weights") if init is not None and isinstance(init.value, dict) else None
    if weights is None or not isinstance(weights.value, str):
        return root
    file = os.path.abspath(path.parent / os.path.expanduser(weights.value))
    if is_of_pack(path) and not _is_below(file, path.parent):
        what = f"{weights.value} lies outside {shown(path.parent)}"
        way_out = "a pack carries its weights: do not use this one, and ask who made it"
        raise RecipeError([weights.origin.problem("init.weights", what, way_out)])
    return _put(root, ["init", "weights"], replace(weights, value=file))


def _require_kind(root: Node, kind: str | None) -> None:
    """Refuse a file of another kind in one line: its keys would be unknown, each in a line of its own."""
    found = next((known for key, known in _KINDS.items() if key in root.value), kind)
    if kind is None or found == kind:
        return
    start = replace(root.origin, line=1, column=1)
    if found == "data set":
        way_out = f"name it in a recipe: `dataset: {start.file}`"
    elif found != "recipe":
        way_out = f"it is for `kilobatch {found} {start.file}`"
    elif kind in ("data set", "cluster"):
        way_out = "name the one after its `dataset:`" if kind == "data set" else "see docs/clusters.md"
    else:
        way_out = f"write a {kind} that names it, `recipe: {start.file}`, see docs/{kind}.md"
    raise RecipeError([start.problem("", f"is the file of a {found}, and not of a {kind}", way_out)])


def _at_this_version(root: Node, kind: str | None) -> Node:
    """A file's tree, with the keys of an older version under their names of today."""
    version = root.value.get("kilobatch")
    if version is None:
        _require_kind(root, kind)
        start = replace(root.origin, line=1, column=1)
        raise RecipeError([start.problem("kilobatch", "is missing", f"begin the file with `kilobatch: {VERSION}`")])
    if type(version.value) is not int or not 1 <= version.value <= VERSION:
        what = f"{_flatten(version, (), {})!r} is not a version that this program reads"
        raise RecipeError([version.origin.problem("kilobatch", what, f"write `kilobatch: {VERSION}`")])
    for newer in range(version.value + 1, VERSION + 1):
        for before, since in RENAMED[newer].items():
            root = renamed(root, before, since)
    return root


def renamed(tree: Any, before: str, since: str) -> Any:
    """A tree, plain or of nodes, in which the value at one dotted path has another; itself where nothing is there.

    >>> renamed({"batch": {"global": 8, "norm_span": 4}}, "batch.global", "batch.size")
    {'batch': {'norm_span': 4, 'size': 8}}
    """
    found = tree
    for key in before.split("."):
        children = _children(found)
        if not isinstance(children, dict) or key not in children:
            return tree
        found = children[key]
    return _put(_put(tree, before.split("."), _GONE), since.split("."), found)


def _put(tree: Any, keys: list[str], value: Any) -> Any:
    """A copy of a tree with a value at a path; _GONE removes what is there."""
    children, (key, *inner) = dict(_children(tree)), keys
    if inner:
        there = children.get(key, replace(value, value={}) if isinstance(value, Node) else {})
        children[key] = _put(there, inner, value)
    elif value is _GONE:
        del children[key]
    else:
        children[key] = value
    return replace(tree, value=children) if isinstance(tree, Node) else children


def _children(tree: Any) -> Any:
    return tree.value if isinstance(tree, Node) else tree


def _base(link: Node, path: Path) -> Path:
    """The file that `extends` names: in the library, or below the folder of this file."""
    name = link.value
    if not isinstance(name, str) or not name:
        raise RecipeError([link.origin.problem("extends", "must be one name or path", "write `extends: goyal2017`")])
    if name.endswith(SUFFIX):
        way_out = "push it into a registry, and extend it by its name there, such as team/resnet50@3"
        raise RecipeError([link.origin.problem("extends", "the file of a pack cannot be extended", way_out)])
    if not name.endswith((".yaml", ".yml")):
        try:
            return find("recipes", name)
        except UnknownNameError as error:
            raise RecipeError([link.origin.problem("extends", error.what, error.way_out)]) from None
    try:
        require_possible(name)
    except UnknownNameError as error:
        raise RecipeError([link.origin.problem("extends", error.what, error.way_out)]) from None
    base = path.parent / name
    if Path(name).is_absolute() or not _is_below(base, path.parent):
        way_out = "move the file there, or use a name of the library"
        raise RecipeError([link.origin.problem("extends", f"{name} lies outside {shown(path.parent)}", way_out)])
    if not base.is_file():
        what = f"there is no file {shown(base)}"
        raise RecipeError([link.origin.problem("extends", what, f"the path counts from {shown(path)}")])
    return base


def _is_below(file: str | Path, folder: Path) -> bool:
    """Whether a file lies below a folder, by where links lead."""
    return Path(os.path.realpath(file)).is_relative_to(folder.resolve())


def _merge(base: Node, over: Node) -> Node:
    """`over` merged onto `base`: mappings key by key, null removes a key, everything else replaces.

    A null for a key that `base` does not have stays, as a value. A mapping with another `kind` replaces the whole
    mapping: fields of the other kind would be unknown keys.
    """
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    kind = over.value.get("kind")
    if kind is not None and ("kind" not in base.value or base.value["kind"].value != kind.value):
        return over
    merged = dict(base.value)
    for key, node in over.value.items():
        if node.value is None and key in merged:
            del merged[key]
        else:
            merged[key] = _merge(merged[key], node) if key in merged else node
    return Node(value=merged, origin=over.origin)


def _override(text: str, number: int, root: Node, kind: str | None, source: OverrideSource) -> Node:
    """An override `a.b=c` as a tree for `_merge`; an element of a list is named by its index."""
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    origin = Origin(file=source, line=number, column=1, key_line=number, key_column=1)
    if not equals or not all(keys):
        raise RecipeError([origin.problem("", f"--set {text} is no assignment", "write --set key.inner_key=value")])
    if kind == "cluster":
        first, *keys = keys
        assert first == kind
        if not keys:
            way_out = "give the file with --cluster, or set a key of it: --set cluster.key=value"
            raise RecipeError([origin.problem(kind, "cannot be set as a whole", way_out)])
    if keys[0] in ("extends", "kilobatch"):
        raise RecipeError([origin.problem(keys[0], "cannot be set", "give the other recipe instead")])
    column = len(text) - len(value.lstrip()) + 1
    data = (value.strip() or "null").encode()
    node = parse_yaml(data, file=source, line=number, column=column, path=".".join(keys))
    node.origin = replace(node.origin, key_line=number, key_column=1)
    below: list[Node | None] = [root]
    for key in keys[:-1]:
        below.append(_child(below[-1], key))
    for key, parent in zip(reversed(keys), reversed(below), strict=True):
        if parent is not None and isinstance(parent.value, list):
            node = _with_item(parent, key, node, origin, path)
        else:
            node = Node(value={key: node}, origin=origin)
    return node


def _child(node: Node | None, key: str) -> Node | None:
    if node is not None and isinstance(node.value, dict):
        return node.value.get(key)
    if node is not None and isinstance(node.value, list) and (index := index_in(node.value, key)) is not None:
        return node.value[index]
    return None


def index_in(items: Sequence[Any], key: str) -> int | None:
    """The index in a list that a key of a dotted path names, None if it names none.

    >>> index_in(["a", "b"], "1"), index_in(["a", "b"], "2"), index_in(["a", "b"], "9" * 5000)
    (1, None, None)
    """
    index = int(key) if _INDEX.fullmatch(key) else len(items)
    return index if index < len(items) else None


def _with_item(parent: Node, key: str, node: Node, origin: Origin, path: str) -> Node:
    """The whole list with one element merged, because `_merge` replaces lists."""
    if (index := index_in(parent.value, key)) is None:
        what = f"{key[:40]} is no place in a list of {len(parent.value)}"
        way_out = f"count from 0 to {len(parent.value) - 1}, or set the whole list"
        raise RecipeError([origin.problem(path, what, way_out)])
    items = list(parent.value)
    items[index] = _merge(items[index], node)
    return Node(value=items, origin=parent.origin)


def _flatten(node: Node, path: tuple[str | int, ...], origins: Origins) -> object:
    origins[path] = node.origin
    if isinstance(node.value, dict):
        return {key: _flatten(child, (*path, key), origins) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_flatten(child, (*path, index), origins) for index, child in enumerate(node.value)]
    return node.value


def resolved_text(tree: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """A resolved tree as text that opens to the same recipe; comments give the origins, by dotted path."""
    lines = list(_lines(tree, "", "", origins))
    width = min(max((len(text) for text, origin in lines if origin), default=0), 60)
    return "".join(f"{text:{width}}  # {origin}".rstrip() + "\n" if origin else f"{text}\n" for text, origin in lines)


def _lines(tree: Any, path: str, indent: str, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    in_list = isinstance(tree, list)
    for key, value in enumerate(tree) if in_list else tree.items():
        inner = f"{path}.{key}".lstrip(".")
        label = f"{indent}-" if in_list else f"{indent}{_scalar(key)}:"
        origin = _shared_origin(inner, origins)
        flow = _flow(value)
        is_leaf = not isinstance(value, Mapping | list) or not value
        if origin is not None and (is_leaf or len(label) + len(flow) < _FLOW_WIDTH):
            yield f"{label} {flow}", origin
        elif in_list:
            first, *others = _lines(value, inner, indent + "  ", origins)
            yield f"{label} {first[0].lstrip()}", first[1]
            yield from others
        else:
            yield label, ""
            yield from _lines(value, inner, indent + "  ", origins)


def _shared_origin(path: str, origins: Mapping[str, str]) -> str | None:
    """The common origin of all values below a path, None if they differ."""
    if path in origins:
        return origins[path]
    shared = {origins[leaf] for leaf in origins if leaf.startswith(f"{path}.")}
    return shared.pop() if len(shared) == 1 else None


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """A scalar in YAML; text is not quoted if it is read back unchanged in any place."""
    if not isinstance(value, str):
        return flow_text(value)
    try:
        read = parse_yaml(f"[{value}]".encode(), file="").value
    except (RecipeError, UnicodeEncodeError):  # a path may be no UTF-8
        return flow_text(value)
    plain = len(read) == 1 and read[0].value == value and ": " not in value and " #" not in value
    return value if plain else flow_text(value)
