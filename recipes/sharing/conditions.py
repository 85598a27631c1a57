"""The conditions of `kilobatch registry search`, such as `accuracy>=0.75`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from recipes.errors import InputRefused
from recipes.sharing.registries import FACTS, Entry

_CONDITION = re.compile(r"([a-z_]+)(>=|<=|!=|=|>|<)(.+)")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


def found_in(entries: Sequence[Entry], conditions: Sequence[str]) -> list[Entry]:
    """The entries that meet all conditions, such as `dataset=imagenet`, `accuracy>=0.75` or `device_hours<100`.

    An accuracy that was not measured meets none.

    Raises:
        InputRefused: a condition cannot be read.
    """
    for condition in conditions:
        match = _CONDITION.fullmatch(condition.replace(" ", ""))
        if match is None or match[1] not in FACTS:
            way_out = f"write a key, one of = != < <= > >=, and a value; keys: {', '.join(FACTS)}"
            raise InputRefused(f"{condition!r} is no condition; {way_out}")
        key, how, text = match.groups()
        entries = [each for each in entries if not (key == "accuracy" and each.unmeasured)]
        entries = [entry for entry in entries if _meets(entry.facts.get(key), how, text)]
    return list(entries)


def _meets(fact: Any, how: str, text: str) -> bool:
    if isinstance(fact, int | float):
        try:
            return _COMPARE[how](fact, float(text))
        except ValueError:
            raise InputRefused(f"{text!r} is no number, and {how} compares numbers here") from None
    return fact is not None and how in ("=", "!=") and _COMPARE[how](str(fact), text)
