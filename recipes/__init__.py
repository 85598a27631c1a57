"""Recipes as checked data: what is trained, on what, and at what cost. Needs neither Chainer nor MPI.

The names below are loaded when they are asked for: `import recipes.errors` must not load NumPy, whose BLAS reads the
number of its threads only once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipes.errors import Problem, RecipeError
    from recipes.planning.rates import batch_size_at, learning_rate_at, momentum_at, norm_span_at
    from recipes.reading.open import OpenedRecipe, open_cluster, open_dataset, open_recipe
    from recipes.schema import Dataset, Recipe
    from recipes.schema.vocabulary import Component, Unbuilt, Vocabulary

_MODULES = {
    "errors": ("Problem", "RecipeError"),
    "planning.rates": ("batch_size_at", "learning_rate_at", "momentum_at", "norm_span_at"),
    "reading.open": ("OpenedRecipe", "open_cluster", "open_dataset", "open_recipe"),
    "schema": ("Dataset", "Recipe"),
    "schema.vocabulary": ("Component", "Unbuilt", "Vocabulary"),
}

__all__ = [
    "Component",
    "Dataset",
    "OpenedRecipe",
    "Problem",
    "Recipe",
    "RecipeError",
    "Unbuilt",
    "Vocabulary",
    "batch_size_at",
    "learning_rate_at",
    "momentum_at",
    "norm_span_at",
    "open_cluster",
    "open_dataset",
    "open_recipe",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"recipes.{module}"), name)
    raise AttributeError(f"module 'recipes' has no attribute {name!r}")
