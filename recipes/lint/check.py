"""Runs the rules on a recipe, gives each fault its line, drops those that a comment ignores, and prints the rest.

The comment is `# lint: ignore RULE[, RULE] why`, on the line of the key or above it.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from recipes.errors import RecipeError, nearest
from recipes.lint.case import Case, Fault
from recipes.lint.handbook import Entry, entries
from recipes.lint.rules import workers as worker_rules
from recipes.reading.load import Origins, chain_of, load_tree
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.registry import shown
from recipes.reading.yaml import Origin
from recipes.schema.vocabulary import Vocabulary

_COMMAND_LINE = "command line"
_WIDTH = 116  # columns of the printed text
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*lint:\s*ignore\b\s*(?P<rest>.*)")
_WORDS = re.compile(r"(?P<rules>[\w-]+(?:\s*,\s*[\w-]+)*)\s*(?P<why>.*)")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that fired, at the key that caused it.

    Args:
        file, line, column: of the key, as an editor counts; the file is `command line` for `--set`.
        path: of the key, with dots; empty for a comment.
        what, way_out: what is found, with its numbers, and what to write instead.
        why, source: why that is a fault, and the publication of the rule.
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
        """Line and column, rule, fault and a way out in one line, as compilers write it."""
        start = f"{self.file}:{self.line}:{self.column}: {self.rule}"
        return ": ".join(filter(None, [start, self.path, f"{self.what}; {self.way_out}"]))

    def __str__(self) -> str:
        lines = [self.headline]
        for word, text in (("why", self.why), ("source", self.source)):
            if text:
                lines += textwrap.wrap(f"{word}: {text}", _WIDTH, initial_indent="    ", subsequent_indent="      ")
        return "\n".join(lines)


def lint_recipe(
    name_or_path: str | Path,
    *,
    vocabulary: Vocabulary,
    overrides: Sequence[str] = (),
    allow_code: bool = False,
    data_root: Path | None = None,
    workers: int | None = None,
) -> list[Finding]:
    """What the rules find in a recipe, in the order of its files.

    Args:
        name_or_path, vocabulary, overrides, allow_code, data_root: as for `recipes.open_recipe`.
        workers: number of workers; None skips the rules that depend on it.
    Raises:
        RecipeError: the recipe does not open.
    """
    options: dict[str, Any] = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
    opened = open_recipe(name_or_path, overrides=overrides, of_run=None, **options)
    written, origins = load_tree(opened.path, overrides=overrides)
    chain = chain_of(opened.path)
    inherited = load_tree(chain[1][0])[0] if len(chain) > 1 else {}
    case = Case(opened=opened, written=written, base=_base(chain, options), inherited=inherited, workers=workers)
    active = entries()
    if workers is None:
        active = {name: pair for name, pair in active.items() if pair[0].__module__ != worker_rules.__name__}
    comments = _Comments(files=[_File(path=path, extends=link) for path, link in chain])
    order = {name: position for position, name in enumerate([_COMMAND_LINE, *(file.name for file in comments.files)])}
    left = []
    for rule, entry in active.values():
        for fault in rule(case):
            path, origin = _blamed_key(fault.keys, origins, order)
            finding = _finding(fault, entry, path, origin)
            if not comments.ignore(finding, origin):
                left.append(finding)
    left.sort(key=lambda finding: (order[finding.file], finding.line, finding.column, finding.rule))
    return [*left, *comments.faults(active)]


def _base(chain: Sequence[tuple[Path, Origin | None]], options: Mapping[str, Any]) -> OpenedRecipe | None:
    """The recipe that is extended; None if there is none, or the file does not open by itself."""
    try:
        return open_recipe(chain[1][0], **options) if len(chain) > 1 else None
    except RecipeError:
        return None


def _blamed_key(keys: tuple[str, ...], origins: Origins, order: Mapping[str, int]) -> tuple[str, Origin]:
    """The key to report, with its origin: the one whose file comes first in the chain; of several, the first."""
    candidates = [(key, *_nearest(key, origins)) for key in keys]
    key, _, origin = min(candidates, key=lambda candidate: order[candidate[2].file] if candidate[1] else len(order))
    return key, origin


def _nearest(key: str, origins: Origins) -> tuple[int, Origin]:
    """The origin of a key, or of the nearest mapping around it, and the length of the path that was found."""
    path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    while path not in origins:
        path = path[:-1]
    return len(path), origins[path]


def _finding(fault: Fault, entry: Entry, path: str, origin: Origin) -> Finding:
    return Finding(
        file=origin.file,
        line=origin.key_line,
        column=origin.key_column,
        rule=entry.rule,
        path=path,
        what=fault.what,
        way_out=fault.way_out,
        why=entry.why,
        source=entry.source,
    )


@dataclass(frozen=True, kw_only=True)
class Ignore:
    """One comment.

    Args:
        line, column: of its `#`, counted from 1.
        target: the line it applies to: its own, or the next one that holds more than a comment.
        rules, why: ids as they were written, and the reason; empty if none is given.
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
    quoted = (token for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken) and not token.plain)
    texts = [(token.start_mark.index, token.end_mark.index) for token in quoted]
    lines = text.split("\n")
    start = 0
    for number, line in enumerate(lines, 1):
        comment = _COMMENT.search(line)
        if comment and not any(first <= start + comment.start() < last for first, last in texts):
            words = _WORDS.fullmatch(comment["rest"].strip())
            yield Ignore(
                line=number,
                column=comment.start() + 1,
                target=number if line[: comment.start()].strip() else _next_key(lines, number),
                rules=tuple(re.split(r"\s*,\s*", words["rules"])) if words else (),
                why=words["why"] if words else "",
            )
        start += len(line) + 1


def _next_key(lines: list[str], after: int) -> int:
    """The next line that holds more than a comment; if there is none, the last line."""
    following = enumerate(lines[after:], after + 1)
    return next((number for number, line in following if line.split("#")[0].strip()), len(lines))


@dataclass(kw_only=True)
class _File:
    """A file of the chain, with its comments; `used` holds the (comment, rule) pairs that ignored a finding."""

    path: Path
    extends: Origin | None
    used: set[tuple[Ignore, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.name = shown(self.path)
        self.ignores = tuple(ignores_of(self.path.read_text(encoding="utf-8-sig")))

    def has(self, rule: str, lines: set[int]) -> bool:
        """Whether a comment on one of these lines names the rule; records that it was used."""
        matching = {(ignore, rule) for ignore in self.ignores if rule in ignore.rules and ignore.target in lines}
        self.used |= matching
        return bool(matching)


@dataclass(kw_only=True)
class _Comments:
    """The comments of a recipe's file and of those that it extends, in this order."""

    files: list[_File]

    def ignore(self, finding: Finding, origin: Origin) -> bool:
        """Whether a comment ignores this finding: on its line, or on an `extends` that leads to its file."""
        ignored = False
        for file in self.files:
            if file.name == finding.file:
                return file.has(finding.rule, {origin.key_line, origin.line}) or ignored
            if file.extends is not None and finding.file != _COMMAND_LINE:
                ignored |= file.has(finding.rule, {file.extends.key_line})
        return ignored

    def faults(self, active: dict[str, Any]) -> Iterator[Finding]:
        """Faults of the comments in the recipe's own file."""
        own = self.files[0]
        for ignore in own.ignores:
            position = {"file": own.name, "line": ignore.line, "column": ignore.column, "path": ""}
            if not ignore.rules or not ignore.why:
                way_out = "write `# lint: ignore RULE why`"
                yield Finding(**position, rule="bare-ignore", what="gives no reason", way_out=way_out)
            for rule in ignore.rules:
                if rule not in entries():
                    what, way_out = f"there is no rule {rule}", nearest(rule, list(entries()), called="rules")
                    yield Finding(**position, rule="unused-ignore", what=what, way_out=way_out)
                elif rule in active and (ignore, rule) not in own.used:
                    what = f"{rule} finds nothing at line {ignore.target}"
                    yield Finding(**position, rule="unused-ignore", what=what, way_out="remove it, or move it")


def findings_text(findings_of: Mapping[str, Sequence[Finding]], as_json: bool = False) -> str:
    """The findings in each recipe, by the name that the user gave."""
    if as_json:
        trees = {name: [asdict(finding) for finding in findings] for name, findings in findings_of.items()}
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


def _count(number: int) -> str:
    return "clean" if number == 0 else f"{number} finding{'s' if number > 1 else ''}"
