"""The values that differ between resolved recipes, and these values as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Keys of a recipe that only name or document it, and affect no run.
WORDS = ("name", "title", "source", "claims", "card", "assumed", "open")
_WORDS_OF_DATASET = ("title", "source", "classes", "root", "obtain", "sources", "lacks")
_SCHEDULE = (
    ("epochs",),
    ("batch", "global"),
    ("learning_rate",),
    ("evaluation", "held_out"),
    ("dataset", "num_train"),
)
UNORDERED = ("assumed", "lacks", "no_decay", "open")
# Stands for a value that a recipe lacks at a path; None would mean null.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
# label -> (value, its keys below the tree that holds it)
_Labelled = dict[str, tuple[Any, tuple[str, ...]]]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs between recipes.

    Args:
        path: its keys. An element of a list is named by what it is: its `kind`, or where a step begins.
        values: of each recipe; MISSING where it has none. Of components of different kinds the keys that they do not
            share, those that they share are differences of their own.
        tree_paths: dotted path in each recipe's own tree, as `--set` takes it; None where it has none.
    """

    path: tuple[str, ...]
    values: tuple[Any, ...]
    tree_paths: tuple[str | None, ...]

    @property
    def is_words(self) -> bool:
        """Whether it only names or documents the recipe."""
        return self.path[0] in WORDS

    @property
    def moves_schedule(self) -> bool:
        """Whether learning rate or global batch of the updates depend on it."""
        return any(self.path[: len(keys)] == keys for keys in _SCHEDULE)


def comparable_tree(recipe: Mapping[str, Any], dataset: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved recipe with the facts of its data set in place of the data set's name."""
    facts = {key: value for key, value in dataset.items() if key not in _WORDS_OF_DATASET}
    return {**{key: value for key, value in without_place(recipe).items() if key != "kilobatch"}, "dataset": facts}


def without_place(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved recipe without the path of its initial weights, which their SHA-256 names better."""
    init = recipe.get("init")
    return {**recipe, **({"init": {**init, "weights": None}} if init else {})}


def compare(trees: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """The values that differ between the trees, in the order of the first tree.

    The order of keys does not count. A list is compared element by element: components by their kind, steps of a ramp
    by where they begin, points by their position; one number is the ramp of one step. Other lists are one value.

    >>> flip, crop = {"kind": "Flip"}, {"kind": "Crop", "size": 8}
    >>> found = compare([{"train": [crop]}, {"train": [flip, {**crop, "size": 9}]}])
    >>> [(difference.path, difference.tree_paths) for difference in found]
    [(('train', 'Crop', 'size'), ('train.0.size', 'train.1.size')), (('train', 'Flip'), (None, 'train.0'))]
    """
    return list(_compared((), tuple(trees), ((),) * len(trees)))


def _compared(
    path: tuple[str, ...], values: tuple[Any, ...], paths: tuple[tuple[str, ...] | None, ...]
) -> Iterator[Difference]:
    def difference(values: Sequence[Any], *keys: str) -> Difference:
        dotted = tuple(None if tree_path is None else ".".join(tree_path) for tree_path in paths)
        return Difference(path=(*path, *keys), values=tuple(values), tree_paths=dotted)

    labelled = _labelled(values)
    if labelled is None:
        unordered = path[-1] in UNORDERED
        if not all(_same(values[0], other, unordered=unordered) for other in values[1:]):
            yield difference(values)
        return
    in_all = set.intersection(*(set(inner) for inner in labelled))
    labels = dict.fromkeys(label for inner in labelled for label in inner)
    if "kind" in in_all and len({str(inner["kind"][0]) for inner in labelled}) > 1:
        own = [{key: inner[key][0] for key in inner if key == "kind" or key not in in_all} for inner in labelled]
        yield difference(own)
        labels = dict.fromkeys(label for label in labels if label in in_all and label != "kind")
    for label in labels:
        entries = [inner.get(label) for inner in labelled]
        below = zip(paths, entries, strict=True)
        yield from _compared(
            (*path, label),
            tuple(MISSING if pair is None else pair[0] for pair in entries),
            tuple(None if tree_path is None or pair is None else (*tree_path, *pair[1]) for tree_path, pair in below),
        )
    orders = [[label for label in inner if label in in_all] for inner in labelled]
    if all(isinstance(value, list) for value in values) and any(order != orders[0] for order in orders):
        yield difference(orders, "order")


def _labelled(values: Sequence[Any]) -> list[_Labelled] | None:
    """Each value as a mapping with comparable labels; None if the values are compared as a whole."""
    if all(isinstance(value, Mapping) for value in values):
        return [{str(key): (inner, (str(key),)) for key, inner in value.items()} for value in values]
    if any(map(is_ramp, values)) and all(is_ramp(value) or type(value) is int for value in values):
        return [ramp_steps(value) for value in values]
    if not all(isinstance(value, list) for value in values):
        return None
    if all(isinstance(item, Mapping) and "kind" in item for value in values for item in value):
        return [_components(value) for value in values]
    if all(_is_points(value) for value in values):
        return [{f"at {_exactly(x)}": (y, (str(i), "1")) for i, (x, y) in enumerate(value)} for value in values]
    return None


def is_ramp(value: Any) -> bool:
    """Whether a value of a resolved recipe is a list of `{from, size}`."""
    steps = isinstance(value, list) and value
    return bool(steps) and all(
        isinstance(step, Mapping) and set(step) == {"from", "size"} and _is_number(step["from"]) for step in steps
    )


def ramp_steps(value: Any) -> _Labelled:
    """The steps of a ramp by their start; steps that change nothing are left out."""
    if not isinstance(value, list):
        return {"from 0": (value, ())}
    steps: _Labelled = {}
    before = None
    for index, step in enumerate(value):
        if step["size"] != before:
            steps[f"from {_exactly(step['from'])}"] = (step["size"], (str(index), "size"))
        before = step["size"]
    return steps


def _components(value: list[Any]) -> _Labelled:
    """Components by their kind; the second of a kind is labelled as in `Cutout 2`."""
    seen: Counter[str] = Counter()
    components: _Labelled = {}
    for index, item in enumerate(value):
        kind = str(item["kind"])
        seen[kind] += 1
        label = kind if seen[kind] == 1 else f"{kind} {seen[kind]}"
        while label in components:  # a method that is not built may be called `Cutout 2`
            label += "'"
        components[label] = (item, (str(index),))
    return components


def _is_points(value: list[Any]) -> bool:
    pairs = [item for item in value if isinstance(item, list) and len(item) == 2 and _is_number(item[0])]
    return bool(value) and len(pairs) == len(value) == len({pair[0] for pair in pairs})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exactly(position: float) -> str:
    """A label that is equal for equal positions only, however close they are."""
    return repr(int(position) if isinstance(position, float) and position.is_integer() else position)


def _same(one: Any, other: Any, *, unordered: bool = False) -> bool:
    """Whether two values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, list) and isinstance(other, list):
        if unordered:
            one, other = sorted(one, key=str), sorted(other, key=str)
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and (one == other or (one != one and other != other))


def value_texts(difference: Difference, *, space: str = " ") -> list[str]:
    """The values of all recipes, `-` for a missing one; floats to six digits if these distinguish them.

    `space` stands between a key and its value.
    """
    values = difference.values
    if difference.path[-1].startswith("from "):  # a step of only some recipes' ramps
        return ["as before" if value is MISSING else str(value) for value in values]
    exact = [value_text(value, space) for value in values]
    short = [value_text(value, space, digits=6) for value in values]
    return short if len(set(short)) == len(set(exact)) else exact


def value_text(value: Any, space: str = " ", *, digits: int | None = None) -> str:
    """A value in a line, as in a recipe; a component as its kind and its keys. `digits` of a float: None for all.

    >>> value_text({"kind": "Warm", "epochs": 5, "start": {"rate": 0.1}}), value_text([1, None, True])
    ('Warm: epochs 5, start {rate 0.1}', '[1, null, true]')
    """

    def inside(item: Any) -> str:
        text = value_text(item, space, digits=digits)
        return f"{{{text}}}" if isinstance(item, Mapping) and item else text

    if value is MISSING:
        return "-"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{key}{space}{inside(item)}" for key, item in value.items() if key != "kind")
        return ": ".join(filter(None, [str(value.get("kind", "")), pairs])) or "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inside, value))}]"
    if isinstance(value, float) and digits is not None:
        return f"{value:.{digits}g}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
