"""Recipe, data set and search as frozen dataclasses, whose fields are the keys of the YAML.

Keys, their defaults and the checks inside one section enter; a check that needs the file or the data set goes to
`reading`. Imports from `lr_schedules`, `recipes.errors` and `recipes.arguments`.

A trailing underscore avoids a word that Python reserves, and is not in the key: `global_` is `batch.global`.
"""

from recipes.schema.dataset import Dataset
from recipes.schema.recipe import (
    Augmentation,
    Batch,
    Card,
    Claim,
    Evaluation,
    Evidence,
    Gradient,
    LearningRate,
    NormMomentum,
    Precision,
    RampStep,
    Recipe,
    StreamOrder,
    Updater,
    Warmup,
    WeightAverage,
)
from recipes.schema.search import Budget, Constraint, Objective, Search, Transfer

__all__ = [
    "Augmentation",
    "Batch",
    "Budget",
    "Card",
    "Claim",
    "Constraint",
    "Dataset",
    "Evaluation",
    "Evidence",
    "Gradient",
    "LearningRate",
    "NormMomentum",
    "Objective",
    "Precision",
    "RampStep",
    "Recipe",
    "Search",
    "StreamOrder",
    "Transfer",
    "Updater",
    "Warmup",
    "WeightAverage",
]
