"""The texts of the rules, from the docstrings of `recipes.lint.rules`, and docs/lint.md made of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache

from recipes.lint import rules
from recipes.lint.case import Rule

__all__ = ["Entry", "entries", "handbook"]

_SECTIONS = ("Way out", "Source", "Fires", "Quiet")
_INTRODUCTION = """\
# Rules of `kilobatch recipes lint`

Made by `kilobatch recipes lint --rules --markdown` from the docstrings of `recipes/lint/rules`.

`kilobatch recipes lint RECIPE...` reads recipes as `validate` does and reports what is valid and, at a large batch,
most likely a mistake. It ends with exit code 0 where nothing is found, 5 where something is, 2 where a recipe is
wrong. A finding stands at the key that makes it; where several do together, at the one that the recipe's own file
gives, before those of the files it extends. The rules `float16-sum` and `span-over-share` need the number of workers:
`--cluster mn1` or `-n 256`; what gradients cross the wire as is that of the cluster's `exchange`, or `--wire float16`.

**To keep what a rule reports**, say why in the recipe, on the line of the key or above it:

```yaml
learning_rate:
  # lint: ignore no-warmup the paper has none
  warmup: null
batch: {global: 16384}    # lint: ignore linear-beyond-8k a point of the paper's figure
```

Several ids are separated by commas; the reason is required (`bare-ignore`). On the line of `extends` the comment
is about everything that the extended recipe brings. A recipe inherits the comments of the file that it extends, with
their keys. A comment on a line where its rule does not fire is reported: `unused-ignore`.

The examples are recipes that extend `goyal2017`: batch 8,192, rate 0.1 per 256, five epochs of warmup.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The parts of a rule's docstring.

    Args:
        rule: its id.
        what: what is found.
        why: why that is a fault.
        way_out, source: as in a finding.
        fires: a recipe that breaks this rule and no other.
        quiet: a recipe that just keeps it.
    """

    rule: str
    what: str
    why: str
    way_out: str
    source: str
    fires: str
    quiet: str


@cache
def entries() -> dict[str, tuple[Rule, Entry]]:
    """Every rule by its id, with its entry."""
    found = [(getattr(rules, name), _entry(name)) for name in rules.__all__]
    return {entry.rule: (rule, entry) for rule, entry in found}


def handbook() -> str:
    """docs/lint.md."""
    parts = [_INTRODUCTION, *(_section(entry) for _, entry in entries().values())]
    return "\n".join(parts)


def _entry(name: str) -> Entry:
    text = inspect.getdoc(getattr(rules, name)) or ""
    what, _, rest = text.partition("\n\n")
    why, _, rest = rest.partition("\n\n")
    sections: dict[str, list[str]] = {}
    for line in rest.splitlines():
        title, colon, first = line.partition(":")
        if colon and title in _SECTIONS:
            sections[title] = [first.strip()]
        else:
            sections[next(reversed(sections))].append(line)
    words = {title: " ".join(" ".join(sections[title]).split()) for title in ("Way out", "Source")}
    return Entry(
        rule=name.replace("_", "-"),
        what=" ".join(what.split()),
        why=" ".join(why.split()),
        way_out=words["Way out"],
        source=words["Source"],
        fires=_recipe(sections["Fires"]),
        quiet=_recipe(sections["Quiet"]),
    )


def _recipe(lines: list[str]) -> str:
    return "\n".join(["kilobatch: 1", "extends: goyal2017", *(line[4:] for line in lines[1:] if line.strip())]) + "\n"


def _section(entry: Entry) -> str:
    lines = [f"## `{entry.rule}`", "", entry.what, "", entry.why, ""]
    lines += [f"**Way out:** {entry.way_out}", "", f"**Source:** {entry.source}", ""]
    lines += ["Fires:", "", "```yaml", entry.fires + "```", "", "Does not:", "", "```yaml", entry.quiet + "```", ""]
    return "\n".join(lines)
