"""Recipe, data set, search and frontier as frozen dataclasses, whose fields are the keys of the YAML.

Keys, their defaults and the checks inside one section enter; a check that needs the file or the data set goes to
`reading`. Imports from `lr_schedules`, `recipes.errors` and `recipes.arguments`.

A trailing underscore avoids a word that Python reserves, and is not in the key: `global_` is `batch.global`.
"""

from recipes.schema import batch_and_rate, dataset, frontier, recipe, search
from recipes.schema.batch_and_rate import *  # noqa: F403
from recipes.schema.dataset import *  # noqa: F403
from recipes.schema.frontier import *  # noqa: F403
from recipes.schema.recipe import *  # noqa: F403
from recipes.schema.search import *  # noqa: F403

__all__ = sorted([*batch_and_rate.__all__, *dataset.__all__, *frontier.__all__, *recipe.__all__, *search.__all__])
