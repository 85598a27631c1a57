"""What a run asks for and does not find: methods that kilobatch does not have yet, and its data."""

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


class DataRefused(InputRefused):
    """The data are not where they are looked for, or not what the data set's file says."""


def require_data(dataset: Dataset) -> None:
    """Let the reader count the data once, before ranks start that would meet the same one by one.

    Raises:
        DataRefused: they cannot be read, or are not as many as the data set's file says. More classes than are found
            are let through.
    """
    try:
        found = dataset.reader.facts(dataset.root)
    except (LookupError, OSError, ValueError) as error:
        way_out = "" if dataset.root is None else "; another folder is given with --data"
        way_out += f"; {dataset.obtain}" if dataset.obtain else ""
        raise DataRefused(f"data set {dataset.name}: {error}{way_out}") from error
    for key, count in found.items():
        said = getattr(dataset, key)
        if count > said or (count < said and key != "num_classes"):
            raise DataRefused(
                f"data set {dataset.name}: its file says {key}: {said}, and there are {count}; correct it there, or "
                "give the right folder with --data"
            )
