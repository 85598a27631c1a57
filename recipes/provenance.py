"""A resolved recipe as YAML, with the origin of every value beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipes.errors import RecipeError
from recipes.yaml_nodes import parse_yaml
from recipes.yaml_text import flow_text

__all__ = ["resolved_text"]

_FLOW_WIDTH = 90


def resolved_text(tree: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """A recipe's file as text: it opens to the same recipe, and a comment on each line gives the values' origin.

    Args:
        tree: resolved, of JSON's types.
        origins: dotted path -> text.
    """
    lines = list(_lines(tree, "", "", origins))
    width = min(max((len(text) for text, origin in lines if origin), default=0), 60)
    return "".join(f"{text:{width}}  # {origin}".rstrip() + "\n" if origin else f"{text}\n" for text, origin in lines)


def _lines(tree: Any, path: str, indent: str, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    in_list = isinstance(tree, list)
    for key, value in enumerate(tree) if in_list else tree.items():
        inner = f"{path}.{key}".lstrip(".")
        label = f"{indent}-" if in_list else f"{indent}{_scalar(key)}:"
        origin = _shared_origin(value, inner, origins)
        flow = _flow(value)
        if origin is not None and (_is_scalar(value) or len(label) + len(flow) < _FLOW_WIDTH):
            yield f"{label} {flow}", origin
        elif in_list:
            first, *others = _lines(value, inner, indent + "  ", origins)
            yield f"{label} {first[0].lstrip()}", first[1]
            yield from others
        else:
            yield label, ""
            yield from _lines(value, inner, indent + "  ", origins)


def _shared_origin(value: Any, path: str, origins: Mapping[str, str]) -> str | None:
    """The common origin of all values inside a value, None if they differ."""
    if path in origins:
        return origins[path]
    found = {origins[leaf] for leaf in origins if leaf.startswith(f"{path}.")}
    return found.pop() if len(found) == 1 else None


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Mapping | list) or not value


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
