"""What `kilobatch recipes diff` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

from recipes.diff.recipes import Comparison
from recipes.reading.tree_diff import Difference, value_texts

_WIDTH = 80
_HEAD = 24  # characters of the column of keys; a longer key has its own line
_ORIGIN = 30  # at most
_NARROWEST = 14
_TOGETHER = "\u00a0"  # a line does not end between a key and its value
_Cell = tuple[str, str, str]
_LIBRARY = "recipes/papers/"


def diff_text(comparison: Comparison, *, with_words: bool = False) -> str:
    """The recipes, a row for each difference, their effects, and the verdict; at most 80 columns.

    `with_words` includes values that only name or document.
    """
    lines = []
    for recipe in comparison.recipes:
        head = f"{recipe.label}  {recipe.name}: {recipe.opened.recipe.title or 'no title'}"
        lines += textwrap.wrap(head, _WIDTH, subsequent_indent=" " * (len(recipe.label) + 2))
    shown = [*comparison.differences, *(comparison.words if with_words else ())]
    sections = [list(section) for _, section in groupby(shown, key=lambda difference: difference.path[0])]
    rows = [[_cells(comparison, difference) for difference in section] for section in sections]
    longest = max((len(origin) for row in rows for cells in row for *_, origin in cells), default=0)
    for section, cells in zip(sections, rows, strict=True):
        lines += ["", *_section(section, cells, min(longest, _ORIGIN))]
    if comparison.effects:
        lines += ["", *_effects(comparison)]
    lines += ["", *textwrap.wrap(_verdict(comparison), _WIDTH, break_on_hyphens=False)]
    if comparison.words and not with_words:
        keys = ", ".join(dict.fromkeys(difference.path[0] for difference in comparison.words))
        words = f"Names and words differ too, which no training reads: {keys} (--all shows them)."
        lines += textwrap.wrap(words, _WIDTH)
    return "\n".join(lines) + "\n"


def _cells(comparison: Comparison, difference: Difference) -> list[_Cell]:
    """Label, value and origin of every recipe."""
    texts = value_texts(difference, space=_TOGETHER)
    rows = zip(comparison.recipes, texts, difference.tree_paths, difference.values, strict=True)
    return [(recipe.label, text, _short(recipe.origin(path, value))) for recipe, text, path, value in rows]


def _section(differences: Sequence[Difference], rows: Sequence[Sequence[_Cell]], origin_width: int) -> Iterator[str]:
    section, *inner = differences[0].path
    if inner:
        yield section
    for difference, cells in zip(differences, rows, strict=True):
        inner = difference.path[1:]
        yield from _row(f"  {'.'.join(inner)}" if inner else section, cells, origin_width)


def _row(head: str, cells: Sequence[_Cell], origin_width: int) -> Iterator[str]:
    """A head and, below each other, each recipe's value and its origin."""
    if len(head) > _HEAD:
        yield head
        head = ""
    for label, text, origin in cells:
        indent = f"{head:{_HEAD}}  {label}  "
        width = _WIDTH - len(indent) - (origin_width + 2 if origin_width else 0)
        columns = (_wrapped(text, width), width), (_wrapped_path(origin, origin_width or 1), origin_width)
        for number, line in enumerate(_side_by_side(columns)):
            yield (indent if number == 0 else " " * len(indent)) + line
        head = ""


def _effects(comparison: Comparison) -> Iterator[str]:
    """The effects, side by side, or below each other if there are too many recipes."""
    labels = [recipe.label for recipe in comparison.recipes]
    width = (_WIDTH - _HEAD) // len(labels) - 2
    if width < _NARROWEST:
        yield "What it comes to"
        for name, texts in comparison.effects.items():
            yield from _row(f"  {name}", [(label, text, "") for label, text in zip(labels, texts, strict=True)], 0)
        return
    for name, texts in {
        "What it comes to": labels,
        **{f"  {name}": each for name, each in comparison.effects.items()},
    }.items():
        columns = [([name], _HEAD), *((_wrapped(text, width), width) for text in texts)]
        yield from _side_by_side(columns)


def _side_by_side(columns: Sequence[tuple[Sequence[str], int]]) -> Iterator[str]:
    for texts in zip_longest(*(lines for lines, _ in columns), fillvalue=""):
        cells = zip(texts, columns, strict=True)
        yield "  ".join(f"{text:{width}}" for text, (_, width) in cells).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    return [line.replace(_TOGETHER, " ") for line in textwrap.wrap(text, width)] or [""]


def _wrapped_path(text: str, width: int) -> list[str]:
    """Wraps a path; a line may also end at a slash."""
    if len(text) <= width:
        return [text]
    return [line.replace("/ ", "/") for line in _wrapped(text.replace("/", "/ "), width)]


def _short(origin: str) -> str:
    """Origins without the path of the library's folder."""
    return ", ".join(part.rpartition(_LIBRARY)[2] for part in origin.split(", "))


def _verdict(comparison: Comparison) -> str:
    count = len(comparison.differences)
    if comparison.unseen:
        unseen = f"the code of {', '.join(comparison.unseen)} is not here and was not compared"
        return f"{_of_values(comparison, count).rstrip('.')}; {unseen} (--allow-code imports it)."
    return _of_values(comparison, count)


def _of_values(comparison: Comparison, count: int) -> str:
    if not count and comparison.unseen:
        return "The same values."
    if not count:
        return "The same training: every value that training reads is equal."
    moving = sum(difference.moves_schedule for difference in comparison.differences)
    count_text = f"{count} {'value differs' if count == 1 else 'values differ'}"
    if not moving:
        return f"{count_text}; every update has the same rate and batch."
    those = {1: "which", 2: "both of which"}.get(count, "all of which") if moving == count else f"of which {moving}"
    if comparison.same_schedule is False:
        return f"{count_text}, {those} {'changes' if moving == 1 else 'change'} the schedule of rate and batch."
    verb = "belongs" if moving == 1 else "belong"
    yet = "every update has the same rate and batch" if comparison.same_schedule else "too many updates to compare"
    return f"{count_text}, {those} {verb} to the schedule of rate and batch; {yet}."
