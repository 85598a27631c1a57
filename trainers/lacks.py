"""What a recipe asks for and kilobatch does not have yet."""

from __future__ import annotations

from recipes.errors import InputRefused
from recipes.schema import Dataset, Recipe


class NotBuilt(InputRefused):
    """The recipe or its data set asks for a method that is not built; names it."""


def refuse_unbuilt(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse to train what is not built, by name.

    Raises:
        NotBuilt: the recipe or the data set lacks something, or leaves values open.
    """
    if recipe.open:
        raise NotBuilt(
            f"recipe {recipe.name} leaves open what nobody published: {', '.join(recipe.open)}; to train it, give "
            "these values in a recipe that extends it, with `open: []`"
        )
    lacking = dict.fromkeys(recipe.lacks, f"recipe {recipe.name}")
    lacking |= dict.fromkeys(dataset.lacks, f"data set {dataset.name}")
    if lacking:
        named = ", ".join(f"{name} ({where})" for name, where in lacking.items())
        raise NotBuilt(
            f"not built yet: {named}; this recipe can be validated, shown, drawn and planned, but not trained"
        )
    if dataset.reader is None:
        raise NotBuilt(
            f"data set {dataset.name} has no reader; name one in its file, e.g. reader: {{kind: ImageFolder}}"
        )
