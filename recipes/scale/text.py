"""What `kilobatch recipes scale` prints."""

from __future__ import annotations

import json
import textwrap
from shlex import quote
from typing import Any

from recipes.scale.derive import Scaled
from recipes.scale.request import Change

_WIDTH = 116


def scaled_text(scaled: Scaled, as_json: bool = False) -> str:
    """Every key with its reason and source, then what is not promised."""
    if as_json:
        return json.dumps(scaled.as_tree(), indent=2) + "\n"
    factor = scaled.batch / scaled.before
    rates = "full rate {:.6g} -> {:.6g}".format(*scaled.rates)
    lines = [f"{scaled.recipe}: batch {scaled.before:,} -> {scaled.batch:,} (k = {factor:g}), {rates}", ""]
    width = max(len(change.key) for change in scaled.changes)
    sources = list(dict.fromkeys(change.source for change in scaled.changes if change.source))
    for change in scaled.changes:
        lines += _values(change, width + 2)
        words = change.reason + (f" [{sources.index(change.source) + 1}]" if change.source else "")
        indent = " " * (width + 4)
        lines += textwrap.wrap(words, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    lines += ["", *(f"[{number}] {source}" for number, source in enumerate(sources, 1)), "", "Not promised:"]
    for text in scaled.not_promised:
        lines += textwrap.wrap(text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    lines += ["", f"wrote {scaled.file}; look at it: kilobatch recipes lint {quote(str(scaled.file))}"]
    return "\n".join(lines) + "\n"


def _values(change: Change, width: int) -> list[str]:
    """A key and its values, in two lines if they are long."""
    start = f"{change.key:{width}}"
    if not change.moves:
        return [f"{start}{_value(change.after)}, unchanged"]
    before, after = _value(change.before), _value(change.after)
    if width + len(before) + len(after) > _WIDTH:
        return [f"{start}{before}", f"{' ' * width}-> {after}"]
    return [f"{start}{before} -> {after}"]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return "none" if value is None else json.dumps(value).strip('"')
