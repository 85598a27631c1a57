"""HTML that is escaped unless it was made here: texts of a run come from strangers."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is HTML already; any other text is escaped on its way in."""


def tag(name: str, *children: object, **attributes: str) -> Markup:
    """An element; a trailing underscore of an attribute's name is removed.

    >>> tag("td", "<b>", class_="value")
    '<td class="value">&lt;b&gt;</td>'
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(text)}"' for key, text in attributes.items()
    )
    return Markup(f"<{name}{attribute_text}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Markup:
    """Children one after the other, escaped where they are not markup; no line breaks before a percent sign."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(str(child)) for child in children))


def _escaped(text: str) -> str:
    return html.escape(text).replace(" %", "&nbsp;%")


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], **attributes: str) -> Markup:
    """A table that scrolls by itself where the page is too narrow for it; a row may be a `tr` already."""
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    made = (row if isinstance(row, Markup) else tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    body = tag("tbody", *made)
    return tag("div", tag("table", head, body, **attributes), class_="scroll", tabindex="0")
