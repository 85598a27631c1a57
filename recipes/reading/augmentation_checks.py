"""What contradicts between the augmentations of a recipe, and between them and its data set."""

from __future__ import annotations

from collections.abc import Sequence

from recipes.reading.read import Path, Reading
from recipes.schema import Dataset, Recipe
from recipes.schema.vocabulary import Unbuilt, kind_of

_KEY = ("augmentation",)


def check_augmentation(reading: Reading, recipe: Recipe, dataset: Dataset) -> None:
    """An augmentation must fit the augmentations before it and the data set: see `trainers.augmentations`.

    Training and evaluation must scale pixels alike; of a run that was trained otherwise it is a warning. What is not
    built, or is code of one's own, may scale them and not say so, and is not compared.
    """
    end = recipe.augmentation.end
    lists = {("train",): recipe.augmentation.train, ("eval",): recipe.augmentation.eval}
    if end is not None and end.train is not None:
        lists["end", "train"] = end.train
    ours = reading.vocabulary.augmentations
    scales: dict[tuple[str, ...], list[object] | None] = {}
    for keys, entries in lists.items():
        number = len(reading.problems)
        bound = _checked(reading, entries, (*_KEY, *keys), dataset)
        if len(reading.problems) > number and reading.problems[-1].path == "dataset":
            return
        scaling = [entry for entry in bound if getattr(entry, "scales_pixels", False)]
        known = len(reading.problems) == number and (scaling or {*map(kind_of, entries)} <= {*ours})
        scales[keys] = scaling if known and not any(isinstance(entry, Unbuilt) for entry in entries) else None
    train, evaluated = scales["train",], scales["eval",]
    if train is not None and evaluated is not None and _differ(train, evaluated):
        lacking, other = ("train", "eval") if evaluated and not train else ("eval", "train")
        what = f"scales pixels otherwise than `augmentation.{other}`, and the model is scored on other values"
        kind = type((train or evaluated)[0]).__name__
        way_out = f"write `{lacking}: [..., {{kind: {kind}, ...}}]` as in `{other}`"
        reading.refuse_anew((*_KEY, lacking), (*_KEY, other), what, way_out)
    if end is None:
        return
    if end.at >= recipe.epochs:
        what = f"{end.at:g} lies at or after the end of the run, {recipe.epochs:g}"
        reading.refuse((*_KEY, "end", "at"), what, "let augmentation end earlier, or remove this")
    late = scales.get(("end", "train"))
    if train is not None and late is not None and _differ(train, late):
        what = "scales pixels otherwise than `augmentation.train`"
        reading.refuse((*_KEY, "end"), what, "write `end.train` with the same `Normalize`")


def _checked(reading: Reading, entries: Sequence[object], path: Path, dataset: Dataset) -> list[object]:
    """Notes what is wrong with one list; returns it with the numbers of the data set."""
    scaled_by = normalised_by = None
    made = []
    for index, entry in enumerate(entries):
        place, kind = (*path, index), type(entry).__name__
        if scaled_by and getattr(entry, "needs_pixels", False):
            what = f"stands after {scaled_by}, whose result is no longer in 0..255"
            reading.refuse((*place, "kind"), what, f"put it before {scaled_by}")
        scales = getattr(entry, "scales_pixels", False)
        if scales and normalised_by and hasattr(entry, "bound"):
            what = f"stands after {normalised_by}, which has normalised the pixels already"
            reading.refuse((*place, "kind"), what, "remove one of both")
        if scales:
            scaled_by = kind
            normalised_by = kind if hasattr(entry, "bound") else normalised_by
        try:
            if hasattr(entry, "require_channels"):
                entry.require_channels(dataset.channels)
            if hasattr(entry, "bound"):
                entry = entry.bound(name=dataset.name, mean=dataset.mean, std=dataset.std, subset_of=dataset.subset_of)
        except ValueError as error:
            if hasattr(entry, "bound") and reading.is_later(("dataset",), place):
                what = f"does not go with the inherited `augmentation`, {reading.origin(place)}: {error}"
                reading.refuse(("dataset",), what, "write `augmentation` anew beside `dataset`")
                break
            reading.refuse_error(error, type(entry), place)
        made.append(entry)
    return made


def _differ(one: list[object], other: list[object]) -> bool:
    """Whether one list scales pixels and another does not, or both scale them once, by other numbers of the channels.

    Other ways of scaling, such as of one's own classes, cannot be compared.
    """
    if not one or not other:
        return bool(one) != bool(other)
    numbers = [{(entry.mean, entry.std) for entry in entries if hasattr(entry, "bound")} for entries in (one, other)]
    return len(one) == len(other) == 1 and all(numbers) and numbers[0] != numbers[1]
