"""Cards, for readers: what a recipe changed, where its values come from and what it promises.

A card is printed on a terminal or written as a page; docs/library.md has the cards of the whole library.
"""

from recipes.cards.facts import CardFacts, card_facts
from recipes.cards.library_page import library_page, published_recipes, write_library_page
from recipes.cards.page import card_page, write_card
from recipes.cards.picture import curve_picture
from recipes.cards.texts import card_markdown, card_text

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
