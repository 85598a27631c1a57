"""A card on a terminal and in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from urllib.parse import quote

from recipes.cards.facts import CardFacts

__all__ = ["card_markdown", "card_text"]


def card_text(facts: CardFacts, width: int = 100) -> str:
    """The card as lines of at most `width` characters, unless a single word is longer."""
    lines = [f"{facts.name}: {facts.title}", *_wrapped(f"{facts.source} {facts.url}".strip(), width), ""]
    for head, text in _words(facts):
        lines += [*_wrapped(text, width, head=f"{head:<13}", indent=13)]
    lines.append("")
    for claim, on, status, source in facts.claims:
        lines += _wrapped(f"{claim} on {on}; {status}; {source}", width, head="claimed      ", indent=13)
    if not facts.claims:
        lines.append("claimed      nothing")
    lines.append("")
    key_width = max(len(key) for key, _ in facts.values) + 2
    for key, value in facts.values:
        lines += _wrapped(value, width, head=f"{key:<{key_width}}", indent=key_width)
    for head, paths in (("assumed", facts.assumed), ("open", facts.open)):
        if paths:
            lines += ["", *_wrapped(", ".join(paths), width, head=f"{head:<13}", indent=13)]
    lines += ["", *_wrapped(_standing(facts), width)]
    return "\n".join(line.rstrip() for line in lines)


def card_markdown(facts: CardFacts, *, picture: str | None = None, level: int = 1) -> str:
    """The card as a section.

    Args:
        facts: of the recipe.
        picture: link to a picture of its curves; None for none.
        level: of its heading.
    """
    parts = [f"{'#' * level} {facts.name}", f"**{facts.title}**"]
    source = f"[{facts.source}]({facts.url})" if facts.url else facts.source
    parts.append(f"{source}. {_standing(facts)}")
    if picture is not None:
        parts.append(f"![Learning rate and batch of {facts.name} against epochs]({quote(picture)})")
    parts.append("\n".join(f"- **{head}:** {text}" for head, text in _words(facts)))
    if facts.claims:
        rows = [f"| {' | '.join(claim)} |" for claim in facts.claims]
        parts.append("\n".join(["| claimed | on | status | place in the source |", "|---|---|---|---|", *rows]))
    if facts.open:
        parts.append(f"Open: {_paths(facts.open)}.")
    parts.append("<details><summary>All values, and which are assumed</summary>")
    parts.append("\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.values)]))
    parts += [f"Assumed: {_paths(facts.assumed)}."] if facts.assumed else []
    return "\n\n".join([*parts, "</details>"]) + "\n"


def _paths(paths: tuple[str, ...]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def _words(facts: CardFacts) -> Iterator[tuple[str, str]]:
    card = facts.card
    if card is None:
        yield "card", "this recipe has none"
        return
    yield "changed", card.changed
    yield "hardware", card.hardware
    evidence = card.evidence
    heads = (("verified", evidence.verified), ("derived", evidence.derived), ("not checked", evidence.not_checked))
    yield from ((head, text) for head, text in heads if text)
    yield from (("deviation", text) for text in card.deviations)


def _standing(facts: CardFacts) -> str:
    return f"Cannot be trained here: {'; '.join(facts.obstacles)}." if facts.obstacles else "Can be trained here."


def _wrapped(text: str, width: int, *, head: str = "", indent: int = 0) -> list[str]:
    filler = " " * indent
    # A head that is too long for its column keeps a space before the text.
    head = head if not head or head.endswith(" ") else f"{head} "
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=filler, break_long_words=False, break_on_hyphens=False
    )
