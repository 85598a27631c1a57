"""`kilobatch recipes scale`: a recipe at another batch, derived by published rules with a reason for every key.

Rules that change a value with the batch enter. Imports from `recipes.reading` and the rooms below it.
"""

from recipes.scale.derive import Scaled, scale_recipe, scaled_text, scaling_changes
from recipes.scale.request import Change, parse_batch
from recipes.scale.seesaw import seesaw_recipe

__all__ = ["Change", "Scaled", "parse_batch", "scale_recipe", "scaled_text", "scaling_changes", "seesaw_recipe"]
