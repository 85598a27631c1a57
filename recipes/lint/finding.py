"""A finding, as lint reports it."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass

__all__ = ["Finding"]

_WIDTH = 116


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that fired, at the key that caused it.

    Args:
        file, line, column: of the key, as an editor counts; the file is `command line` for `--set`.
        rule: its id.
        path: of the key, with dots; empty for a comment.
        what: what is found, with its numbers.
        way_out: what to write instead.
        why: why that is a fault.
        source: publication of the rule.
    """

    file: str
    line: int
    column: int
    rule: str
    path: str
    what: str
    way_out: str
    why: str = ""
    source: str = ""

    @property
    def headline(self) -> str:
        """Place, rule, fault and a way out in one line, as compilers write it."""
        place = f"{self.file}:{self.line}:{self.column}: {self.rule}"
        return ": ".join(filter(None, [place, self.path, f"{self.what}; {self.way_out}"]))

    def __str__(self) -> str:
        lines = [self.headline]
        for word, text in (("why", self.why), ("source", self.source)):
            if text:
                lines += textwrap.wrap(f"{word}: {text}", _WIDTH, initial_indent="    ", subsequent_indent="      ")
        return "\n".join(lines)

    def as_tree(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)
