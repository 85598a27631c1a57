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

__all__ = ["PICTURES", "library_page", "library_pictures", "published_recipes", "write_library_page"]

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
    """The page as text.

    Args:
        recipes: by name.
        pictures: whether it shows the pictures of `library_pictures`.
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
        sections.append(card_markdown(facts, picture=_picture(name) if pictures else None, level=2))
    heads = "| recipe | batch | epochs | largest rate | optimizer | claimed | status |\n|---|---|---|---|---|---|---|"
    return "\n".join([_INTRODUCTION, heads, *rows, "", *sections])


def library_pictures(recipes: Iterable[tuple[str, OpenedRecipe]]) -> dict[str, str]:
    """The pictures that the page shows: path below the page's folder -> SVG."""
    return {_picture(name): curve_picture(opened.recipe) for name, opened in recipes}


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


def _picture(name: str) -> str:
    return f"{PICTURES}/{name.replace('/', '-')}.svg"


def _anchor(name: str) -> str:
    """GitHub's anchor of a recipe's heading."""
    return name.replace("/", "")
