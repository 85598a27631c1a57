"""A card as one self-contained page, or as Markdown with a picture beside it."""

from __future__ import annotations

from pathlib import Path

from recipes.cards.facts import CardFacts, card_facts
from recipes.cards.picture import curve_picture
from recipes.cards.texts import card_markdown
from recipes.open import OpenedRecipe
from recipes.reports.markup import Markup, inline_svg, joined, table, tag
from recipes.reports.page import document

__all__ = ["card_page", "write_card"]


def write_card(name: str, opened: OpenedRecipe, path: Path) -> list[Path]:
    """Writes the card in the format of the path's suffix; returns the files written.

    Raises:
        ValueError: an ending that is neither .html nor .md.
        OSError: a file cannot be written.
    """
    facts = card_facts(name, opened)
    if path.suffix.lower() == ".html":
        path.write_text(card_page(facts, opened), encoding="utf-8", errors="replace")  # paths may be no UTF-8
        return [path]
    if path.suffix.lower() != ".md":
        raise ValueError(f"{path}: a card is written as .html or .md")
    picture = path.with_suffix(".svg")
    picture.write_text(curve_picture(opened.recipe), encoding="utf-8")
    path.write_text(card_markdown(facts, picture=picture.name), encoding="utf-8", errors="replace")
    return [path, picture]


def card_page(facts: CardFacts, opened: OpenedRecipe) -> str:
    """The page as text, with its picture inline."""
    source = tag("a", facts.source, href=facts.url) if facts.url.startswith("https://") else facts.source
    body = [tag("div", joined([facts.name, " · ", source]), class_="muted"), _standing(facts)]
    body += [_words(facts), _picture(opened), _claims(facts)]
    body += [tag("h2", "The recipe"), table(("what", "value"), facts.values, class_="values")]
    for head, paths in (("Assumed: the source does not give these", facts.assumed), ("Left open", facts.open)):
        if paths:
            body += [tag("h2", head), tag("ul", *(tag("li", tag("code", path)) for path in paths))]
    return document(facts.title, joined(body))


def _standing(facts: CardFacts) -> Markup:
    if not facts.obstacles:
        return tag("p", tag("span", "can be trained here", class_="badge success"), class_="verdict")
    badge = tag("span", "cannot be trained here", class_="badge")
    return tag("p", badge, "; ".join(facts.obstacles), class_="verdict")


def _words(facts: CardFacts) -> Markup:
    card = facts.card
    if card is None:
        return tag("p", "This recipe has no card.", class_="muted")
    evidence = card.evidence
    rows = [("hardware", card.hardware), ("verified", evidence.verified), ("derived", evidence.derived)]
    rows.append(("not checked", evidence.not_checked))
    parts = [tag("p", card.changed), table(("evidence", ""), [row for row in rows if row[1]])]
    if card.deviations:
        parts += [tag("h2", "Known deviations"), tag("ul", *(tag("li", text) for text in card.deviations))]
    return joined(parts)


def _picture(opened: OpenedRecipe) -> Markup:
    from recipes.reports.plots import curve_figure, svg_text

    figure = curve_figure(opened.recipe, opened.dataset)
    drawing = inline_svg(svg_text(figure), prefix="curve", label="Learning rate, batch and momentum against epochs")
    return joined([tag("h2", "Curves"), tag("figure", drawing)])


def _claims(facts: CardFacts) -> Markup:
    if not facts.claims:
        return joined([tag("h2", "Claims"), tag("p", "None.")])
    return joined([tag("h2", "Claims"), table(("claimed", "on", "status", "place in the source"), facts.claims)])
