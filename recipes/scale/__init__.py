"""`kilobatch recipes scale`: a recipe at another batch, derived by published rules with a reason for every key.

Rules that change a value with the batch enter. Imports from `recipes.reading` and the rooms below it.
"""

from recipes.scale.derive import Scaled, scale_recipe, scaled_text, scaling_changes
from recipes.scale.ramp import Measured, ramp_recipe, step_changes, stepped_recipe
from recipes.scale.request import Change, parse_batch
from recipes.scale.seesaw import seesaw_recipe

__all__ = [
    "Change",
    "Measured",
    "Scaled",
    "parse_batch",
    "ramp_recipe",
    "scale_recipe",
    "scaled_text",
    "scaling_changes",
    "seesaw_recipe",
    "step_changes",
    "stepped_recipe",
]
