"""`kilobatch recipes lint`: finds what is valid in a recipe, but most likely a mistake at a large batch.

A rule is one function in a file of `rules`; the other files run the rules and print. Imports from `recipes.reading` and
the rooms below it.
"""

from recipes.lint.check import Finding, findings_text, lint_recipe
from recipes.lint.handbook import entries, handbook, rules_text

__all__ = ["Finding", "entries", "findings_text", "handbook", "lint_recipe", "rules_text"]
