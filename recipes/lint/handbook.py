"""The texts of the rules, from the docstrings of `recipes.lint.rules`, and docs/lint.md made of them."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, dataclass
from functools import cache

from recipes.lint.case import Rule
from recipes.lint.rules import all_rules

_SECTIONS = ("Way out", "Source", "Fires", "Quiet")
_INTRODUCTION = """\
# Rules of `kilobatch recipes lint`

`kilobatch recipes lint RECIPE...` reports values that are valid, and at a large batch most likely a mistake. Each
finding has its line, the reason, the source of the rule and a way out:

    kilobatch recipes lint mine.yaml
    kilobatch recipes lint mine.yaml --cluster mn1            # also the rule that needs the number of workers
    kilobatch recipes lint mine.yaml -n 512

The exit code is 0 if nothing is found, 5 if something is found, and 2 if a recipe is wrong; the findings in the
others are printed first.

A finding points to the key that causes it. If several keys cause it together, it points to one in the recipe's own file
before one in a file that the recipe extends. The rule `span-over-share` needs the number of workers, from `--cluster`
or `-n`.

**To keep a value** that a rule reports, write a comment with the reason on the line of the key or above it:

```yaml
learning_rate:
  # lint: ignore no-warmup the paper has none
  warmup: null
batch: {global: 16384}    # lint: ignore linear-beyond-8k a point of the paper's figure
```

Commas separate several rules. The reason is required (`bare-ignore`). A comment on the line of `extends` covers
everything that the extended recipe brings. A recipe inherits the comments of the file that it extends, with their
keys. A comment whose rule does not fire there is reported (`unused-ignore`). Resolved recipes, such as those of runs
and of searches, have no such comments: lint the file that you wrote.

Each rule below has two examples, one that it reports and one that it accepts. They extend `goyal2017`, which has batch
8,192, rate 0.1 per 256 samples and five epochs of warmup. The rules are functions of `recipes/lint/rules`, and this
text comes from their docstrings by `kilobatch recipes lint --rules --markdown`.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The parts of a rule's docstring: its id, what is found, why that is a fault, a way out and the source.

    Args:
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
    pairs = [(rule, entry_of(rule)) for rule in all_rules()]
    return {entry.rule: (rule, entry) for rule, entry in pairs}


def entry_of(rule: Rule) -> Entry:
    """The entry that a rule's docstring makes; a part that it lacks is empty."""
    sections: dict[str, list[str]] = {"": []}
    title = ""
    for line in (inspect.getdoc(rule) or "").splitlines():
        name, colon, rest = line.partition(":")
        if colon and name in _SECTIONS:
            title = name
            sections[title] = [rest.strip()]
        else:
            sections[title].append(line)
    what, _, why = "\n".join(sections[""]).partition("\n\n")
    way_out, source = (sections.get(title, []) for title in ("Way out", "Source"))
    return Entry(
        rule=rule.__name__.replace("_", "-"),
        what=_one_line([what]),
        why=_one_line([why]),
        way_out=_one_line(way_out),
        source=_one_line(source),
        fires=_recipe(sections.get("Fires", [])),
        quiet=_recipe(sections.get("Quiet", [])),
    )


def rules_text(as_json: bool = False) -> str:
    """Every rule in a line."""
    rows = [entry for _, entry in entries().values()]
    if as_json:
        return json.dumps([asdict(entry) for entry in rows], indent=2) + "\n"
    width = max(len(entry.rule) for entry in rows)
    return "".join(f"{entry.rule:{width}}  {entry.what}\n" for entry in rows)


def handbook() -> str:
    """docs/lint.md."""
    parts = [_INTRODUCTION, *(_section(entry) for _, entry in entries().values())]
    return "\n".join(parts)


def _one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _recipe(lines: list[str]) -> str:
    changes = [line[4:] for line in lines[1:] if line.strip()]
    return "\n".join(["kilobatch: 1", "extends: goyal2017", *changes]) + "\n" if changes else ""


def _section(entry: Entry) -> str:
    lines = [f"## `{entry.rule}`", "", entry.what, "", entry.why, ""]
    lines += [f"**Way out:** {entry.way_out}", "", f"**Source:** {entry.source}", ""]
    lines += ["Reported:", "", "```yaml", entry.fires + "```", "", "Accepted:", "", "```yaml", entry.quiet + "```", ""]
    return "\n".join(lines)
