"""`kilobatch recipes scale`: a recipe at another batch, derived by published rules with a reason for every key."""

from recipes.scale.derive import Scaled, scale_recipe
from recipes.scale.request import Change, parse_batch

__all__ = ["Change", "Scaled", "parse_batch", "scale_recipe"]
