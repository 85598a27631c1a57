"""Large-batch rules: what is valid in a recipe and most likely a mistake."""

from recipes.lint.check import lint_recipe
from recipes.lint.finding import Finding
from recipes.lint.handbook import entries, handbook

__all__ = ["Finding", "entries", "handbook", "lint_recipe"]
