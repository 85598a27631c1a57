"""The meaning of a recipe's tree: positions in epochs, the batch ramp, the warmup's aim, and what contradicts what."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lr_schedules import BatchRamp
from recipes.errors import RecipeError
from recipes.positions import first_sample_at, parse_position
from recipes.rates import full_rate
from recipes.reading import REFUSED, Path, Reading
from recipes.registry import UnknownNameError
from recipes.schema import Batch, Dataset, LearningRate, RampStep, Recipe, Warmup
from recipes.vocabulary import Component, Vocabulary

__all__ = ["read_recipe"]

_LARGEST_DEFAULT_SPAN = 32
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_DOUBLE_BUFFERING = "DoubleBuffering"


def read_recipe(
    reading: Reading, tree: Mapping[str, Any], *, stem: str, open_dataset: Callable[[str], Dataset]
) -> tuple[Recipe, Dataset, dict[str, Any]]:
    """A recipe from its merged tree.

    Args:
        reading: with the tree's origins; takes the problems.
        tree: as `load_tree` gives it.
        stem: name of the recipe's file, for a recipe that has no name.
        open_dataset: name -> facts; a RecipeError or UnknownNameError of it is a problem at `dataset`.
    Returns:
        The recipe, its data set, and the tree with every default; the first two are REFUSED where there are problems.
    """
    given = {key: value for key, value in tree.items() if key != "kilobatch"}
    if "name" not in given:
        given["name"] = stem
        reading.notes[("name",)] = "rule: the name of the file"
    lacks = given.get("lacks")
    reading.lacks = tuple(name for name in lacks if isinstance(name, str)) if isinstance(lacks, list) else ()
    meaning = _Meaning(reading=reading, open_dataset=open_dataset)
    using = {
        "dataset": meaning.read_dataset,
        "epochs": partial(meaning.read_epochs, global_=_inside(given, "batch", "global")),
        "batch": meaning.read_batch,
        "learning_rate": meaning.read_learning_rate,
    }
    recipe, resolved = reading.record(Recipe, given, (), using=using)
    if recipe is not REFUSED:
        _check(reading, recipe, resolved)
    return recipe, meaning.dataset, {"kilobatch": 1, **resolved}


def _inside(tree: object, *keys: str) -> object:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


@dataclass(kw_only=True)
class _Meaning:
    """Reads, in the order of the schema, the parts of a recipe that depend on each other."""

    reading: Reading
    open_dataset: Callable[[str], Dataset]
    dataset: Any = REFUSED
    epochs: float | None = None
    ramp: BatchRamp | None = None

    def read_dataset(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        name, resolved = self.reading.value(str, raw, path)
        if name is REFUSED:
            return REFUSED, resolved
        try:
            self.dataset = self.open_dataset(name)
        except UnknownNameError as error:
            return self.reading.refuse(path, error.what, error.way_out), resolved
        except RecipeError as error:
            self.reading.problems += error.problems
            return REFUSED, resolved
        self.reading.to_epochs = self._to_epochs
        return name, resolved

    def read_epochs(self, raw: Any, path: Path, _: Mapping[str, Any], *, global_: Any) -> tuple[Any, Any]:
        if isinstance(raw, str) and raw.endswith("up") and global_ is not None:
            # The ramp says how many samples so many updates are; its own problems are told where `batch` is read.
            problems = list(self.reading.problems)
            self.ramp = self._read_ramp(global_, ("batch", "global"))[0]
            self.reading.problems[:] = problems
            if self.ramp is REFUSED:
                return REFUSED, raw
        epochs, resolved = self.reading.position(raw, path)
        if epochs is REFUSED:
            return REFUSED, resolved
        if epochs <= 0:
            return self.reading.refuse(path, f"is {raw}", "a run is longer than 0 epochs"), resolved
        self.epochs = epochs
        return epochs, resolved

    def _to_epochs(self, raw: object) -> float:
        steps = self.ramp and partial(self._samples_after, self.ramp.boundaries, self.ramp.sizes)
        return parse_position(
            raw, num_train=self.dataset.num_train, epochs=self.epochs, updates_to_samples=steps or None
        )

    def _samples_after(self, boundaries: tuple[float, ...], sizes: tuple[int, ...], updates: int) -> int:
        """Samples consumed by the first `updates` updates: each stage ends with a whole update."""
        samples = 0
        for boundary, size in zip(boundaries[1:], sizes, strict=False):
            whole = -(-max(0, first_sample_at(boundary, self.dataset.num_train) - samples) // size)
            samples += min(updates, whole) * size
            updates -= min(updates, whole)
        return samples + updates * sizes[-1]

    def read_batch(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        given = raw
        self.ramp = None
        if isinstance(raw, dict):
            # Before the rest: `500up` inside norm_span counts by it, and so does everything after it.
            ramp, tree = self._read_ramp(raw["global"], (*path, "global")) if "global" in raw else (None, None)
            self.ramp = None if ramp is REFUSED else ramp
            if "norm_span" not in raw and self.ramp is not None:
                given = {**raw, "norm_span": _default_span(self.ramp)}
                note = f"rule: the largest number up to {_LARGEST_DEFAULT_SPAN} that divides every batch"
                self.reading.notes[(*path, "norm_span")] = note
            elif "norm_span" not in raw:
                given = {**raw, "norm_span": 1}
        using = {"global": lambda *_: (ramp, tree), "norm_span": self._read_span}
        return self.reading.record(Batch, given, path, using=using)

    def _read_ramp(self, raw: Any, path: Path) -> tuple[Any, Any]:
        """A number, or steps `{from, size}`."""
        if not isinstance(raw, list):
            size, resolved = self.reading.value(int, raw, path)
            if size is not REFUSED and size < 1:
                size = self.reading.refuse(path, f"is {size}", "must be at least 1")
            return (REFUSED if size is REFUSED else BatchRamp(boundaries=(0.0,), sizes=(size,))), resolved
        boundaries: list[float] = []
        sizes: list[int] = []
        trees = []
        outer = self.ramp
        for place, item in enumerate(raw):
            if outer is None and boundaries and len(boundaries) == len(sizes):
                self.ramp = BatchRamp(boundaries=tuple(boundaries), sizes=tuple(sizes))
            step, tree = self.reading.record(RampStep, item, (*path, place))
            trees.append(tree)
            if step is REFUSED or self._refuse_step(step.from_, boundaries, (*path, place, "from")):
                continue
            boundaries.append(step.from_)
            sizes.append(step.size)
        self.ramp = outer
        if not raw:
            self.reading.refuse(path, "is an empty list", "write `[{from: 0, size: 256}]`, or one number")
        if not raw or len(sizes) < len(raw):
            return REFUSED, trees
        return BatchRamp(boundaries=tuple(boundaries), sizes=tuple(sizes)), trees

    def _refuse_step(self, start: float, before: list[float], path: Path) -> bool:
        if not before and path[-2] == 0 and start != 0:
            return self.reading.refuse(path, f"the ramp begins at {start:g}", "its first step begins at 0") is REFUSED
        if before and start <= before[-1]:
            what = f"{start:g} does not come after {before[-1]:g}"
            return self.reading.refuse(path, what, "put the steps in the order of time") is REFUSED
        if self.epochs is not None and start >= self.epochs:
            what = f"{start:g} lies at or after the end of the run, {self.epochs:g}"
            return self.reading.refuse(path, what, "remove this step, or lengthen `epochs`") is REFUSED
        return False

    def _read_span(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        span, resolved = self._read_ramp(raw, path)
        if span is REFUSED or self.ramp is None:
            return span, resolved
        for start in span.boundaries:
            if start not in self.ramp.boundaries:
                what = f"changes at {start:g}, where `batch.global` does not"
                return self.reading.refuse(path, what, f"steps of the batch: {_list(self.ramp.boundaries)}"), resolved
        for start in self.ramp.boundaries:
            size, group = self.ramp(start), span(start)
            if size % group:
                fits = _largest_divisor(min(group, size), (size,))
                what = f"the batch of {size} from {start:g} on is no multiple of {group}"
                return self.reading.refuse(path, what, f"{fits} would do, or change the batch"), resolved
        return span, resolved

    def read_learning_rate(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        given = raw
        self.reading.rest_of_run = self.epochs
        if isinstance(raw, dict) and raw.get("rule") == "none" and "per" not in raw and self.ramp:
            given = {**raw, "per": self.ramp.sizes[0]}
            self.reading.notes[(*path, "per")] = "rule: without effect, the first batch"
        value, resolved = self.reading.record(LearningRate, given, path, using={"warmup": self._read_warmup})
        self.reading.rest_of_run = None
        return value, resolved

    def _read_warmup(self, raw: Any, path: Path, before: Mapping[str, Any]) -> tuple[Any, Any]:
        if raw is None:
            return None, None
        if not isinstance(raw, dict) or self.ramp is None or self.epochs is None:
            using = {"start": lambda tree, *_: (REFUSED, tree)}
            return REFUSED, self.reading.component(Component("warmups"), raw, path, beside=_BESIDE, using=using)[1]
        options = {"shape": {key: value for key, value in raw.items() if key not in _BESIDE}}
        options |= {key: raw[key] for key in _BESIDE if key in raw}
        if "target_batch" not in raw:
            options["target_batch"] = self.ramp.sizes[0]
            self.reading.notes[(*path, "target_batch")] = "rule: the first batch"

        def read_shape(tree: Any, _: Path, so_far: Mapping[str, Any]) -> tuple[Any, Any]:
            start = partial(self._read_start, learning_rate=before, target_batch=so_far["target_batch"])
            return self.reading.component(Component("warmups"), tree, path, using={"start": start})

        warmup, resolved = self.reading.record(Warmup, options, path, using={"shape": read_shape})
        resolved = {**resolved.pop("shape"), **resolved}
        if warmup is not REFUSED:
            warmup = self._fitting(warmup, path, aimed="target_batch" in raw)
        return warmup, resolved

    def _fitting(self, warmup: Warmup, path: Path, *, aimed: bool) -> Any:
        end = warmup.shape.epochs
        if end > self.epochs:
            what = f"{end:g} is longer than the run, {self.epochs:g}"
            return self.reading.refuse((*path, "epochs"), what, "shorten the warmup, or lengthen `epochs`")
        inside = [start for start in self.ramp.boundaries if 0 < start < end]
        if inside and not aimed:
            what = f"the batch moves at {_list(inside)}, inside the warmup of {end:g}"
            return self.reading.refuse(path, what, f"say which it aims at: `target_batch: {self.ramp(end)}`")
        if warmup.joins == "before":
            self.reading.rest_of_run = self.epochs - end
        return warmup

    def _read_start(
        self, raw: Any, path: Path, _: Mapping[str, Any], *, learning_rate: Mapping[str, Any], target_batch: Any
    ) -> tuple[Any, Any]:
        """The factor that a warmup's `start` means."""
        reference, per, rule = (learning_rate[name] for name in ("reference", "per", "rule"))
        if REFUSED in (reference, per, rule, target_batch) or reference <= 0 or per < 1 or target_batch < 1:
            return REFUSED, raw
        target = full_rate(reference, target_batch, rule=rule, per=per)
        if raw == "reference":
            rate = reference
        elif isinstance(raw, dict) and list(raw) in (["rate"], ["factor"]):
            name = next(iter(raw))
            rate, _ = self.reading.value(float, raw[name], (*path, name))
            rate = rate if rate is REFUSED or name == "rate" else rate * target
        elif isinstance(raw, int | float) and raw == 0 and raw is not False:
            rate = 0.0
        elif isinstance(raw, int | float) and not isinstance(raw, bool):
            way_out = f"write {{rate: {raw}}} or {{factor: {raw}}}"
            return self.reading.refuse(path, f"{raw} may be a rate or a factor", way_out), raw
        else:
            way_out = "write reference, 0, {rate: 0.1} or {factor: 0.1}"
            return self.reading.refuse(path, "is not where a warmup can start", way_out), raw
        if rate is REFUSED:
            return REFUSED, raw
        if not 0 <= rate <= target:
            what = f"a rate of {rate:g} does not lie between 0 and {target:g}, which the warmup aims at"
            return self.reading.refuse(path, what, "start lower, or remove the warmup"), raw
        return rate / target, raw


_BESIDE = ("joins", "target_batch")


def _default_span(ramp: BatchRamp) -> int:
    return _largest_divisor(_LARGEST_DEFAULT_SPAN, ramp.sizes)


def _largest_divisor(limit: int, sizes: tuple[int, ...]) -> int:
    """The largest number up to `limit` (and a million, which bounds the search) that divides all sizes."""
    return next(number for number in range(min(limit, 10**6), 0, -1) if not any(size % number for size in sizes))


def _list(positions: Any) -> str:
    return ", ".join(f"{position:g}" for position in positions)


def _check(reading: Reading, recipe: Recipe, resolved: Mapping[str, Any]) -> None:
    """What is possible key by key and not together."""
    if not _NAME.fullmatch(recipe.name) or not recipe.name.strip("."):
        way_out = "use letters, digits, `_`, `.` and `-`"
        reading.refuse(("name",), f"{recipe.name!r} cannot name a run's folder", way_out)
    if recipe.seed < 0:
        reading.refuse(("seed",), f"is {recipe.seed}", "must be 0 or more")
    if recipe.updater.double_buffering and _DOUBLE_BUFFERING not in recipe.lacks:
        way_out = f"name it: `lacks: [{_DOUBLE_BUFFERING}]`, or set it to false"
        reading.refuse(("updater", "double_buffering"), "is not built", way_out)
    for place, name in enumerate(recipe.lacks):
        if _is_built(name, reading.vocabulary):
            reading.refuse(("lacks", place), f"{name} is built", "remove it from `lacks`")
    for place, path in enumerate(recipe.assumed):
        if not _exists(resolved, path.split(".")):
            reading.refuse(("assumed", place), f"there is no value at {path}", "name a path that `show` prints")


def _is_built(name: str, vocabulary: Vocabulary) -> bool:
    return any(name in getattr(vocabulary, field.name) for field in dataclasses.fields(vocabulary))


def _exists(tree: Any, keys: list[str]) -> bool:
    for key in keys:
        if isinstance(tree, list) and key.isdigit() and int(key) < len(tree):
            tree = tree[int(key)]
        elif isinstance(tree, dict) and key in tree:
            tree = tree[key]
        else:
            return False
    return True
