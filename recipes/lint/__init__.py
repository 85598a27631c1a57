"""`kilobatch recipes lint`: finds what is valid in a recipe, but most likely a mistake at a large batch."""

from recipes.lint.case import Finding
from recipes.lint.check import lint_recipe
from recipes.lint.handbook import entries, handbook

__all__ = ["Finding", "entries", "handbook", "lint_recipe"]
