"""Cards as files: docs/library.md with the cards of all recipes, and one card as HTML or Markdown."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from recipes.cards.card import CardFacts, card_facts, card_markdown, peak_rate
from recipes.cards.picture import curve_picture
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.registry import names
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.page import document
from recipes.reports.wording import number
from recipes.schema import Claim, Recipe
from recipes.schema.vocabulary import Vocabulary

PICTURES = "pictures/library"  # beside the page
_PAPERS = Path(__file__).resolve().parent.parent / "papers"
_INTRODUCTION = """\
# The library

The library holds the recipes of published large-batch trainings and a few of our own. Each has a card below: its claim,
its evidence, and its known differences from the publication. The cards come from the files in `recipes/papers`;
`./scripts/docs pages` writes this page anew.

    kilobatch recipes card goyal2017                    # the card in the terminal
    kilobatch recipes card goyal2017 -o goyal.html      # a page with a picture of the curves
    kilobatch train digits/large_batch -n 2             # trains a recipe by its name

**Claims** are results from the source, or our own measurements. `reproduced` means that we trained the recipe here.
`not run` means that we did not, because the hardware or the data were missing. A margin, where a claim has one, is
ours: it is how far a rerun may fall short.

**Evidence** has three grades. `verified` values were read in the source or in its authors' code. `derived` values
follow from those. `not checked` values are second-hand, remembered or guessed; the list *Assumed* names their keys.

**Open** keys have no published value. The recipe holds a placeholder there, so that it can be opened and drawn.
`kilobatch train` refuses it until you give the value.
"""


def published_recipes(vocabulary: Vocabulary) -> list[tuple[str, OpenedRecipe]]:
    """The recipes of `recipes/papers` by name; not those of the working directory and of other packages.

    Raises:
        RecipeError: one of them does not open.
    """
    opened = [(name, open_recipe(name, vocabulary=vocabulary)) for name in names("recipes")]
    return [(name, recipe) for name, recipe in opened if recipe.path.resolve().is_relative_to(_PAPERS)]


def library_page(recipes: Iterable[tuple[str, OpenedRecipe]], *, pictures: bool = True) -> str:
    """The page as text, with or without the pictures of `library_pictures`."""
    rows, sections = [], []
    for name, opened in sorted(recipes, key=lambda pair: _natural(pair[0])):
        facts = card_facts(name, opened)
        sizes = sorted(set(opened.recipe.batch.global_.sizes))
        cells = [
            f"[{name}](#{name.replace('/', '')})",  # the anchor that GitHub gives its heading
            " to ".join(number(size) for size in (sizes[0], sizes[-1])[: len(sizes)]),
            number(opened.recipe.epochs),
            f"{peak_rate(opened.recipe):.4g}",
            opened.tree["optimizer"]["kind"],
            "; ".join(claim for claim, *_ in facts.claims) or "–",
            "open" if facts.open else _status(opened),
        ]
        rows.append(f"| {' | '.join(cells)} |")
        sections.append(card_markdown(facts, picture=_picture_path(name) if pictures else None, level=2))
    heads = "| recipe | batch | epochs | largest rate | optimizer | claimed | status |\n|---|---|---|---|---|---|---|"
    return "\n".join([_INTRODUCTION, heads, *rows, "", *sections])


def library_pictures(recipes: Iterable[tuple[str, OpenedRecipe]]) -> dict[str, str]:
    """The pictures that the page shows: path below the page's folder -> SVG."""
    return {_picture_path(name): curve_picture(opened.recipe) for name, opened in recipes}


def write_library_page(recipes: Iterable[tuple[str, OpenedRecipe]], path: Path) -> list[Path]:
    """Writes the page and the folder of its pictures; returns both paths.

    Pictures of recipes that no longer exist are removed.

    Raises:
        OSError: a file cannot be written.
    """
    recipes = list(recipes)
    folder = path.parent / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    drawn = library_pictures(recipes)
    for old in folder.glob("*.svg"):
        if f"{PICTURES}/{old.name}" not in drawn:
            old.unlink()
    for file, text in drawn.items():
        (path.parent / file).write_text(text, encoding="utf-8")
    path.write_text(library_page(recipes), encoding="utf-8")
    return [path, folder]


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers inside names by their value.

    >>> sorted(["goyal2017/512", "goyal2017/1024", "goyal2017"], key=_natural)
    ['goyal2017', 'goyal2017/512', 'goyal2017/1024']
    """
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"([0-9]+)", name)]


def _status(opened: OpenedRecipe) -> str:
    """The status of its claims: `reproduced` if one is, else that of the first; a dash without claims."""
    statuses = [claim.status for claim in opened.recipe.claims]
    return "reproduced" if "reproduced" in statuses else next(iter(statuses), "–")


def _picture_path(name: str) -> str:
    return f"{PICTURES}/{name.replace('/', '-')}.svg"


def write_card(name: str, opened: OpenedRecipe, path: Path, *, claims: Sequence[Claim] = ()) -> list[Path]:
    """Writes the card in the format of the path's suffix; returns the files written.

    Args:
        name, opened, claims: as of `card_facts`.
        path: of the file.
    Raises:
        ValueError: an ending that is neither .html nor .md.
        OSError: a file cannot be written.
    """
    facts = card_facts(name, opened, claims=claims)
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
    return document(facts.title, joined(card_sections(facts, opened.recipe)))


def card_sections(facts: CardFacts, recipe: Recipe) -> list[Markup]:
    """The parts of a card's page, with a picture of the recipe's curves."""
    source = tag("a", facts.source, href=facts.url) if facts.url.startswith("https://") else facts.source
    body = [tag("div", joined([facts.name, " · ", source]), class_="muted"), _standing(facts)]
    body += [_words(facts), _picture(recipe), _claims(facts)]
    body += [tag("h2", "The recipe"), table(("what", "value"), facts.values, class_="values")]
    for head, paths in (("Assumed: the source does not give these", facts.assumed), ("Left open", facts.open)):
        if paths:
            body += [tag("h2", head), tag("ul", *(tag("li", tag("code", path)) for path in paths))]
    return body


def _standing(facts: CardFacts) -> Markup:
    if not facts.obstacles:
        words = f"can be trained here{' with --allow-code' * facts.has_own_code}"
        return tag("p", tag("span", words, class_="badge success"), class_="verdict")
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


def _picture(recipe: Recipe) -> Markup:
    drawn = base64.b64encode(curve_picture(recipe).encode()).decode()
    image = tag(
        "img",
        src=f"data:image/svg+xml;base64,{drawn}",
        alt="Learning rate and batch against epochs",
        style="width: 100%; max-width: 45rem",
    ).removesuffix("</img>")
    return joined([tag("h2", "Curves"), tag("figure", Markup(image))])


def _claims(facts: CardFacts) -> Markup:
    if not facts.claims:
        return joined([tag("h2", "Claims"), tag("p", "None.")])
    return joined([tag("h2", "Claims"), table(("claimed", "on", "status", "place in the source"), facts.claims)])
