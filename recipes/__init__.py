"""Recipes as checked data: what is trained, on what, and at what cost. Needs neither Chainer nor MPI."""

from recipes.errors import Problem, RecipeError
from recipes.planning.rates import batch_size_at, learning_rate_at, momentum_at, norm_span_at
from recipes.reading.open import OpenedRecipe, open_cluster, open_dataset, open_recipe
from recipes.schema import Dataset, Recipe
from recipes.schema.vocabulary import Component, Unbuilt, Vocabulary

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
