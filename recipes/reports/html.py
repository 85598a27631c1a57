"""HTML that is escaped unless it was made here: texts of a run come from strangers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from recipes.reports.style import DARK


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


def inline_svg(text: str, *, prefix: str, label: str) -> Markup:
    """Matplotlib's SVG as a part of a page.

    Its names start with `prefix`, so that pictures of one page do not take each other's; its colours become the page's
    variables, which follow the reader's light or dark; what names other places (DOCTYPE, name spaces) falls away.
    """
    body = text[text.index("<svg") :]
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    inner = body[body.index(">") + 1 :].replace("xlink:href=", "href=")
    inner = re.sub(r'\bid="', f'id="{prefix}-', inner)
    inner = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", inner)
    inner = re.sub(r"#[0-9a-f]{6}\b", lambda match: f"var(--k{match[0][1:]})" if match[0] in DARK else match[0], inner)
    view = re.search(r'viewBox="([-0-9. ]+)"', body)
    assert view, "matplotlib writes a viewBox"
    return Markup(f'<svg viewBox="{view[1]}" role="img" aria-label="{html.escape(label)}">{inner}')
