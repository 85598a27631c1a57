"""What `kilobatch recipes lint` prints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from recipes.lint.case import Finding
from recipes.lint.handbook import Entry


def findings_text(findings_of: Mapping[str, Sequence[Finding]], as_json: bool = False) -> str:
    """The findings in each recipe, by the name that the user gave."""
    if as_json:
        trees = {name: [finding.as_tree() for finding in findings] for name, findings in findings_of.items()}
        return json.dumps(trees, indent=2) + "\n"
    # Two recipes may share a file: its findings are printed once, and so is the reason of each rule.
    once = dict.fromkeys(finding for findings in findings_of.values() for finding in findings)
    explained: set[str] = set()
    lines = []
    for finding in once:
        lines.append(finding.headline if finding.rule in explained else str(finding))
        explained.add(finding.rule)
    lines += [f"{name}: {_count(len(findings))}" for name, findings in findings_of.items()]
    return "\n".join(lines) + "\n"


def rules_text(rules: Iterable[Entry], as_json: bool = False) -> str:
    """Every rule in a line."""
    if as_json:
        return json.dumps([asdict(entry) for entry in rules], indent=2) + "\n"
    rows = list(rules)
    width = max(len(entry.rule) for entry in rows)
    return "".join(f"{entry.rule:{width}}  {entry.what}\n" for entry in rows)


def _count(number: int) -> str:
    return "clean" if number == 0 else f"{number} finding{'s' if number > 1 else ''}"
