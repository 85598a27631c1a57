"""Safe YAML: text to values with their line and column, and values back to text.

Scalars follow YAML 1.2's core rules, not the 1.1 of PyYAML's constructors: `1e-4` is a number, `on`, `1:30` and
`2017-06-08` are text, only `true` and `false` are booleans. Nothing here can construct an object or run code.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import yaml

from recipes.errors import Problem, RecipeError

_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")

MAX_BYTES = 1_000_000
MAX_NODES = 10_000
MAX_DEPTH = 50
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.inf|\.nan", re.IGNORECASE)
# Escapes in double quotes can produce these: control characters are commands to a terminal, lone surrogates not UTF-8.
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_LARGEST_INT = 2**63 - 1
# Words of YAML 1.1, or of YAML 1.2 in capitals, that are text here.
OTHER_WORDS = {"null": "null", "none": "null"} | dict.fromkeys(("true", "yes", "on"), "true")
OTHER_WORDS |= dict.fromkeys(("false", "no", "off"), "false")


class OverrideSource(str):
    """Stands for the file's name in the origin of an overridden value, such as `command line`."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value was written.

    Args:
        file: as a user would open it; a `OverrideSource` for a value that is in no file.
        line, column: of the value, counted from 1.
        key_line, key_column: of its key in a mapping; of the value itself in a list.
        rule: that filled the value in when this program wrote the file, see `derived.py`; empty if none did.
    """

    file: str
    line: int
    column: int
    key_line: int
    key_column: int
    rule: str = ""

    def __str__(self) -> str:
        return str(self.file) if isinstance(self.file, OverrideSource) else f"{self.file}:{self.line}"

    def problem(self, path: str, what: str, way_out: str, *, at_key: bool = False) -> Problem:
        """A problem with this value, or with its key."""
        line, column = (self.key_line, self.key_column) if at_key else (self.line, self.column)
        return Problem(file=self.file, line=line, column=column, path=path, what=what, way_out=way_out)


@dataclass(kw_only=True)
class Node:
    """A value and its origin; the values inside a dict or a list are nodes too."""

    value: object
    origin: Origin

    def plain(self) -> Any:
        """The value without origins: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: inner.plain() for key, inner in self.value.items()}
        return [inner.plain() for inner in self.value] if isinstance(self.value, list) else self.value


def parse_yaml(data: bytes, *, file: str, line: int = 1, column: int = 1, path: str = "") -> Node:
    """The one document of a YAML text.

    Args:
        data: UTF-8.
        file: for the origins.
        line, column: where the text begins.
        path: of the value that the text is, with dots; empty for a whole file.
    Raises:
        RecipeError: not UTF-8 or not YAML, more than one document, a tag, a merge key, a key that is given twice or is
            no text, a control character, a number that is not finite or a whole one of more than 64 bits, an alias
            inside its own anchor, or more than the limits above.
    """
    source = _Source(file=file, first_line=line, first_column=column)
    if len(data) > MAX_BYTES:
        source.refuse(_Mark(0, 0), f"the file has {len(data):,} bytes", f"a recipe has at most {MAX_BYTES:,}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        lines = data[: error.start].split(b"\n")
        source.refuse(_Mark(len(lines) - 1, len(lines[-1])), "not UTF-8 text", "save the file as UTF-8")
    try:
        composer = _Composer(text, source)
        try:
            root = composer.get_single_node()
        finally:
            composer.dispose()
    except yaml.MarkedYAMLError as error:
        source.refuse_syntax(error)
    except yaml.reader.ReaderError as error:
        before = text[: error.position].split("\n")
        what = f"the character {chr(error.character)!r} is not allowed in YAML"
        mark = _Mark(len(before) - 1, len(before[-1]))
        source.refuse(mark, what, "remove it, or write it as an escape in double quotes")
    if root is None:
        source.refuse(_Mark(0, 0), "the file is empty", "write `kilobatch: 1` and the keys of docs/recipes.md")
    node = _Expansion(source).expand(root, None, frozenset(), path)
    if source.problems:
        raise RecipeError(source.problems)
    return node


class _Mark(NamedTuple):
    """A position, as PyYAML's marks have it: counted from 0."""

    line: int
    column: int


@dataclass(kw_only=True)
class _Source:
    """The text being read; turns PyYAML's marks into origins and problems."""

    file: str
    first_line: int
    first_column: int
    problems: list[Problem] = field(default_factory=list)

    def origin(self, mark: yaml.Mark, key: yaml.Mark) -> Origin:
        (line, column), (key_line, key_column) = map(self.user_position, (mark, key))
        return Origin(file=self.file, line=line, column=column, key_line=key_line, key_column=key_column)

    def user_position(self, mark: yaml.Mark | _Mark) -> tuple[int, int]:
        """Line and column as a user counts them."""
        return mark.line + self.first_line, mark.column + (self.first_column if mark.line == 0 else 1)

    def note(self, mark: yaml.Mark | _Mark, what: str, way_out: str, path: str = "") -> None:
        line, column = self.user_position(mark)
        path = path.strip(".")
        self.problems.append(Problem(file=self.file, line=line, column=column, path=path, what=what, way_out=way_out))

    def refuse(self, mark: yaml.Mark | _Mark, what: str, way_out: str) -> NoReturn:
        self.note(mark, what, way_out)
        raise RecipeError(self.problems)

    def refuse_syntax(self, error: yaml.MarkedYAMLError) -> NoReturn:
        mark = error.problem_mark or error.context_mark
        what = " ".join(filter(None, [error.context, error.problem]))
        way_out = "check the indentation, the brackets and the quotes around this place"
        if "\\t" in what:
            what, way_out = "a tab begins a value or indents a line", "indent with spaces"
        elif "mapping values are not allowed" in what:
            what, way_out = "a second `key: value` on one line", "check the indentation, quote text that contains `: `"
        elif "single document" in what:
            what, way_out = "a second document begins", "one file holds one document: remove `---`"
        elif "undefined alias" in what:
            way_out = "give the anchor `&name` before the alias `*name`"
        self.refuse(mark, what, way_out)


class _Composer(yaml.SafeLoader):
    """PyYAML's composer, which stops at once where a limit is exceeded or a tag appears."""

    def __init__(self, text: str, source: _Source) -> None:
        super().__init__(text)
        self.source = source
        self.depth = 0
        self.num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        event = self.peek_event()
        mark = event.start_mark
        if getattr(event, "tag", None) is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.source.refuse(mark, f"the tag {tag} asks for an object", "a recipe is plain data: remove the tag")
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            self.source.refuse(mark, f"more than {MAX_NODES:,} values", "shorten the file")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.source.refuse(mark, f"more than {MAX_DEPTH} levels of nesting", "flatten this value")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Expansion:
    """Expands PyYAML's node graph, with its aliases, into a tree of `Node`."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.num_nodes = 0

    def expand(self, node: yaml.Node, key: yaml.Node | None, inside: frozenset[int], path: str = "") -> Node:
        mark = node.start_mark
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            self.source.refuse(mark, f"aliases expand to more than {MAX_NODES:,} values", "write the values out")
        if id(node) in inside:
            self.source.refuse(mark, "an alias stands inside its own anchor", "write the value out")
        if len(inside) >= MAX_DEPTH:
            self.source.refuse(mark, f"more than {MAX_DEPTH} levels of nesting", "flatten this value")
        origin = self.source.origin(mark, (key or node).start_mark)
        inside = inside | {id(node)}
        if isinstance(node, yaml.MappingNode):
            return Node(value=self.mapping(node, inside, path), origin=origin)
        if isinstance(node, yaml.SequenceNode):
            items = [self.expand(item, None, inside, f"{path}.{i}") for i, item in enumerate(node.value)]
            return Node(value=items, origin=origin)
        return Node(value=self.scalar(node, path), origin=origin)

    def mapping(self, node: yaml.MappingNode, inside: frozenset[int], path: str) -> dict[str, Node]:
        made: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or not key.value:
                self.source.note(key.start_mark, "a key is not text", "write `key: value`", path)
                continue
            if self.refused_characters(key, path):
                continue
            inner = f"{path}.{key.value}".strip(".")
            if key.value == "<<":
                self.source.note(key.start_mark, "merge keys are not read", "write the values out", inner)
            elif key.value in made:
                what = f"given twice, first on line {made[key.value].origin.key_line}"
                self.source.note(key.start_mark, what, "remove one of the two", inner)
            else:
                made[key.value] = self.expand(value, key, inside, inner)
        return made

    def scalar(self, node: yaml.ScalarNode, path: str) -> object:
        text = node.value
        if node.style is not None:
            return None if self.refused_characters(node, path) else text
        if text in ("", "~", "null"):
            return None
        if text in ("true", "false"):
            return text == "true"
        number = None
        if _INT.fullmatch(text):
            number = self.whole(node, path)
        elif _FLOAT.fullmatch(text):
            number = float(text)
        elif not _NOT_FINITE.fullmatch(text):
            return text
        if number is None or not math.isfinite(number):
            self.source.note(node.start_mark, f"{text:.40} is not a finite number", "write a number", path)
        return number

    def whole(self, node: yaml.ScalarNode, path: str) -> int:
        # Check the length first: Python's int() refuses numbers of thousands of digits.
        if len(node.value) <= 20 and abs(int(node.value)) <= _LARGEST_INT:
            return int(node.value)
        what = f"{node.value:.40} has more than 64 bits"
        self.source.note(node.start_mark, what, "write a smaller number", path)
        return 0

    def refused_characters(self, node: yaml.ScalarNode, path: str) -> bool:
        """Whether a text holds a control character; if so, the problem is noted."""
        match = _NO_TEXT.search(node.value)
        if match:
            self.source.note(node.start_mark, f"holds the control character {match[0]!a}", "remove it", path)
        return match is not None


def flow_text(value: Any) -> str:
    """A value in a line, as JSON; characters beyond 16 bits unescaped, since YAML does not join surrogate escapes.

    >>> flow_text({"title": "caf\u00e9 \U0001f600"})
    '{"title": "caf\\\\u00e9 \U0001f600"}'
    """
    return _PAIR.sub(lambda pair: json.loads(f'"{pair[0]}"'), json.dumps(value))


def line_text(value: Any) -> str:
    """A value in a line, as people write it in a recipe.

    >>> line_text({"kind": "Adam", "no_decay": ["norm"], "eps": 1e-08}), line_text(0.1)
    ('{kind: Adam, no_decay: [norm], eps: 1.0e-08}', '0.1')
    """
    text = yaml.dump([value], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9, default_flow_style=True)
    return text.strip()[1:-1]


def block_text(tree: Any) -> str:
    """Plain data as the text of a YAML file.

    >>> block_text({"name": "5e-2", "epochs": 2})
    "name: '5e-2'\\nepochs: 2\\n"
    >>> block_text({"train": (same := {}), "eval": same})
    'train: {}\\neval: {}\\n'
    """
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes a text such as `5e-2`, which is text to PyYAML (YAML 1.1) and a number in YAML 1.2; writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
