"""docs/library.md: the cards of all recipes on one page, with a picture of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from recipes.cards.facts import card_facts, peak_rate
from recipes.cards.picture import curve_picture
from recipes.cards.texts import card_markdown
from recipes.open import OpenedRecipe, open_recipe
from recipes.registry import names
from recipes.reports.wording import number
from recipes.vocabulary import Vocabulary

__all__ = ["PICTURES", "library_page", "published_recipes", "write_library_page"]

PICTURES = "pictures/library"  # beside the page
_PAPERS = Path(__file__).resolve().parent.parent / "papers"
_INTRODUCTION = """\
# The library

Made by `kilobatch recipes card --library docs/library.md` from the cards of the recipes in `recipes/papers`.

**Claims** are what the source says, or what was measured here: `reproduced` was trained here, `not run` was not, for
want of the hardware or the data. Where a claim has a margin it is ours: how far a rerun may fall short.
**Evidence:** `verified` was read in the source or its authors' code, `derived` is worked out from that, `not checked`
is told by others, remembered or guessed; the keys concerned stand under Assumed. What nobody published stands under
Open: what the recipe holds there only lets it be opened and drawn, and it is not trained until somebody gives it.

`kilobatch recipes card RECIPE` shows a card on the terminal, `-o FILE.html` as a page with a larger picture.
"""


def published_recipes(vocabulary: Vocabulary) -> list[tuple[str, OpenedRecipe]]:
    """The recipes of `recipes/papers` by name; not those of the working directory and of other packages.

    Raises:
        RecipeError: one of them does not open.
    """
    opened = [(name, open_recipe(name, vocabulary=vocabulary)) for name in names("recipes")]
    return [(name, recipe) for name, recipe in opened if recipe.path.resolve().is_relative_to(_PAPERS)]


def library_page(recipes: Iterable[tuple[str, OpenedRecipe]]) -> str:
    """The page as text.

    Args:
        recipes: by name.
    """
    rows, sections = [], []
    for name, opened in sorted(recipes, key=lambda pair: _natural(pair[0])):
        facts = card_facts(name, opened)
        sizes = sorted(set(opened.recipe.batch.global_.sizes))
        cells = [
            f"[{name}](#{_anchor(name)})",
            " to ".join(number(size) for size in (sizes[0], sizes[-1])[: len(sizes)]),
            number(opened.recipe.epochs),
            f"{peak_rate(opened.recipe):.4g}",
            opened.tree["optimizer"]["kind"],
            "; ".join(claim for claim, *_ in facts.claims) or "–",
            "open" if facts.open else _status(opened),
        ]
        rows.append(f"| {' | '.join(cells)} |")
        sections.append(card_markdown(facts, picture=f"{PICTURES}/{_file(name)}", level=2))
    heads = "| recipe | batch | epochs | largest rate | optimizer | claimed | status |\n|---|---|---|---|---|---|---|"
    return "\n".join([_INTRODUCTION, heads, *rows, "", *sections])


def write_library_page(recipes: Iterable[tuple[str, OpenedRecipe]], path: Path) -> list[Path]:
    """Writes the page and the folder of its pictures; returns both paths.

    Pictures of recipes that no longer exist are removed.

    Raises:
        OSError: a file cannot be written.
    """
    recipes = list(recipes)
    folder = path.parent / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {_file(name): curve_picture(opened.recipe) for name, opened in recipes}
    for old in folder.glob("*.svg"):
        if old.name not in drawn:
            old.unlink()
    for file, text in drawn.items():
        (folder / file).write_text(text, encoding="utf-8")
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


def _file(name: str) -> str:
    return name.replace("/", "-") + ".svg"


def _anchor(name: str) -> str:
    """GitHub's anchor of a recipe's heading."""
    return name.replace("/", "")
