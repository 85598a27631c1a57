"""Values that a rule filled in when this program wrote the file of a recipe: of a run, a pack or a search's best trial.

They follow what they came from: where a file that extends this one, or an option, changes that and does not give them,
they count as left out, and the rule fills them in anew. A position that was written as 0.5run or 500up is read as that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.reading.registry import PACKED
from recipes.reading.yaml import Node, Origin, flow_text, parse_yaml

_Keys = tuple[str | int, ...]
_POSITION = re.compile(r", ((?P<position>[0-9.]\S*) = (?P<value>\S+))$")
_POSITION_IN_COMMENT = re.compile(r"# (?:.+:\d+|command line|search .+ trial \d+)(, [0-9.]\S* = \S+)$")

UNSURE = "unsure"  # in place of a rule: the file does not say whether one filled the value in
# Last key of a value that a rule fills in -> what the rule reads.
_SOURCES: dict[object, tuple[_Keys, ...]] = {
    "epochs": (("epochs",), ("learning_rate", "warmup")),
    "target_batch": (("batch", "global"),),
    "per": (("batch", "global"),),
    "norm_span": (("batch", "global"),),
    "sha256": (("init", "weights"),),
}
_COMMENT = re.compile(r"\s# ([^\"'#]+)$")
_RESOLVED = {"assumed", "claims", "lacks", "open"}  # which a file that this program wrote has all of, also where empty
# An origin in a file that this program wrote, before such files kept the rules of the file that they were made from.
_IN_A_WRITTEN_FILE = re.compile(r"(.*/)?(\d+-)?(recipe|best|trial-\d+)\.yaml:\d+")


def with_rules(root: Node, path: Path, data: bytes) -> Node:
    """The tree of a recipe's file, in which the origins of values that a rule filled in name it.

    Recorded are rules in `origins.json` of a pack, in `run.yaml` of a run, and in the comments of any other file. A
    value that is not what the rule makes of the file was edited since, and is the user's own.
    """
    beside, lines = _recorded_beside(path), data.decode("utf-8-sig").splitlines()
    is_resolved = root.value.keys() >= _RESOLVED

    def rule_of(keys: _Keys, node: Node) -> str:
        if beside is not None:
            text = str(beside.get(".".join(map(str, keys)), ""))
            position = _POSITION.search(text)
        else:
            line = lines[node.origin.line - 1].rstrip()
            written, found = _POSITION_IN_COMMENT.search(line) if is_resolved else None, _COMMENT.search(line)
            position, text = written and _POSITION.search(written[1]), found[1] if found else ""
        if position:
            return position[1] if position["value"] == flow_text(node.value) else ""
        if keys[-1] not in _SOURCES or (keys[-1] == "epochs" and "schedule" not in keys and keys[0] != "schedules"):
            return ""
        if text.startswith("rule: "):
            return text if _by_rule(root, keys) in (None, node.value) else ""
        is_unsure = _IN_A_WRITTEN_FILE.fullmatch(text) if text else is_resolved
        return UNSURE if is_unsure and keys[-1] in ("epochs", "target_batch") else ""

    return _marked(root, (), rule_of)


def outdated(origins: Mapping[_Keys, Origin]) -> list[_Keys]:
    """The values that a rule filled in, where a later layer than theirs has changed what it reads."""
    return [keys for keys, origin in origins.items() if origin.rule and _is_outdated(keys, origins)]


def position_rule(text: str, value: float) -> str:
    """What is recorded of a position with a unit beside its origin: '0.5run = 45'."""
    return f"{text.replace(' ', '')} = {flow_text(value)}"


def position_of(rule: str) -> str:
    """The position as it was written, of what is recorded; empty for another rule."""
    found = _POSITION.search(f", {rule}")
    return found["position"] if found else ""


def unsure(tree: Mapping[str, Any], origins: Mapping[_Keys, Origin]) -> Iterator[str]:
    """A line for each value that may have to follow a later layer, and stays, since its file does not say so."""
    for keys in outdated(origins):
        value = reduce(getitem, keys, tree)
        if value != _by_rule(tree, keys):
            name, shown = ".".join(map(str, keys)), flow_text(value)
            what = f"stays {shown}, from {origins[keys]}, which does not say whether a rule gave it"
            yield f"{name} {what}; {name}=null derives it anew, {name}={shown} keeps it"


def _is_outdated(keys: _Keys, origins: Mapping[_Keys, Origin]) -> bool:
    """Whether anything that the rule reads is of another file or of an option, was removed by one, or is a position."""
    if position_of(origins[keys].rule):
        return False
    for source in _SOURCES[keys[-1]]:
        read = [origin for inner, origin in origins.items() if inner[: len(source)] == source]
        if {origin.file for origin in read} != {origins[keys].file} or any(position_of(it.rule) for it in read):
            return True
    return False


def _recorded_beside(path: Path) -> Mapping[str, Any] | None:
    """The origins of a pack's or a run's recipe, by dotted path; None for any other file."""
    if path.name != PACKED:
        return None
    with suppress(OSError, ValueError, RecursionError):
        origins = json.loads((path.parent / "origins.json").read_bytes())
        return origins if isinstance(origins, dict) else {}
    with suppress(OSError, RecipeError):
        return _origins_of_run((path.parent / "run.yaml").read_bytes())
    return None


@lru_cache(maxsize=4)  # a search opens its recipe hundreds of times
def _origins_of_run(data: bytes) -> Mapping[str, Any]:
    origins = _value(parse_yaml(data, file="run.yaml"), "origins")
    return {key: node.value for key, node in origins.items()} if isinstance(origins, dict) else {}


def _by_rule(root: Any, keys: _Keys) -> Any:
    """What a rule makes of the tree of a resolved recipe; None where that takes more than the tree."""
    if keys[-1] in ("per", "target_batch"):
        batch = _value(root, "batch", "global")
        return _value(batch[0], "size") if isinstance(batch, list) and batch else batch
    if keys[-1] != "epochs":
        return None
    epochs, warmup = _value(root, "epochs"), ("learning_rate", "warmup")
    if keys[0] == "learning_rate" and _value(root, *warmup, "joins") == "before":
        with suppress(TypeError):  # not as it was written
            return epochs - _value(root, *warmup, "epochs")
    return epochs


def _value(tree: Any, *keys: str) -> Any:
    """The value at a path of mappings of a tree, plain or of nodes; None if there is none."""
    for key in keys:
        children = tree.value if isinstance(tree, Node) else tree
        if not isinstance(children, dict) or key not in children:
            return None
        tree = children[key]
    return tree.value if isinstance(tree, Node) else tree


def _marked(node: Node, keys: _Keys, rule_of: Callable[[_Keys, Node], str]) -> Node:
    if isinstance(node.value, dict):
        return replace(node, value={key: _marked(inner, (*keys, key), rule_of) for key, inner in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[_marked(inner, (*keys, at), rule_of) for at, inner in enumerate(node.value)])
    rule = rule_of(keys, node) if keys else ""
    return replace(node, origin=replace(node.origin, rule=rule)) if rule else node
