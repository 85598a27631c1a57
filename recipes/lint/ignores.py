"""The comments `# lint: ignore RULE[, RULE] why` of a recipe's file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

__all__ = ["Ignore", "ignores_of"]

_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*lint:\s*ignore\b\s*(?P<rest>.*)")
_WORDS = re.compile(r"(?P<rules>[\w-]+(?:\s*,\s*[\w-]+)*)\s*(?P<why>.*)")


@dataclass(frozen=True, kw_only=True)
class Ignore:
    """One comment.

    Args:
        line, column: of its `#`, counted from 1.
        target: the line it applies to: its own, or the next one that holds more than a comment.
        rules: ids, as they were written.
        why: the reason; empty if none is given.
    """

    line: int
    column: int
    target: int
    rules: tuple[str, ...]
    why: str


def ignores_of(text: str) -> Iterator[Ignore]:
    """The lint comments of a file that is valid YAML, in order; not those inside a quoted or block text.

    >>> [(found.target, found.rules, found.why) for found in ignores_of("# lint: ignore a, b tried\\nseed: 1\\n")]
    [(2, ('a', 'b'), 'tried')]
    """
    texts = [(token.start_mark.index, token.end_mark.index) for token in yaml.scan(text) if _is_text(token)]
    lines = text.split("\n")
    start = 0
    for number, line in enumerate(lines, 1):
        found = _COMMENT.search(line)
        if found and not any(first <= start + found.start() < last for first, last in texts):
            words = _WORDS.fullmatch(found["rest"].strip())
            yield Ignore(
                line=number,
                column=found.start() + 1,
                target=number if line[: found.start()].strip() else _next_key(lines, number),
                rules=tuple(re.split(r"\s*,\s*", words["rules"])) if words else (),
                why=words["why"] if words else "",
            )
        start += len(line) + 1


def _is_text(token: yaml.Token) -> bool:
    return isinstance(token, yaml.ScalarToken) and not token.plain


def _next_key(lines: list[str], after: int) -> int:
    """The next line that holds more than a comment; if there is none, the last line."""
    following = enumerate(lines[after:], after + 1)
    return next((number for number, line in following if line.split("#")[0].strip()), len(lines))
