"""Cards of recipes: what a recipe changed, where its values come from and what it promises.

A card is printed on a terminal or written as a page; docs/library.md has the cards of the whole library. Imports from
`recipes.reports` and the rooms below it.
"""

from recipes.cards.card import CardFacts, card_facts, card_markdown, card_text
from recipes.cards.pages import card_page, library_page, published_recipes, write_card, write_library_page
from recipes.cards.picture import curve_picture

__all__ = [
    "CardFacts",
    "card_facts",
    "card_markdown",
    "card_page",
    "card_text",
    "curve_picture",
    "library_page",
    "published_recipes",
    "write_card",
    "write_library_page",
]
