"""A recipe from its merged tree, in three steps.

`TimeReading` reads the data set, the length of the run and the batch ramp, because positions count by them.
`RateReading` reads the learning rate, whose warmup and schedule depend on these. `read_recipe` reads all keys with the
help of both, and checks the values against each other.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lr_schedules import BatchRamp
from recipes.arguments import LONGEST_SIDE
from recipes.errors import RecipeError, listed
from recipes.planning.division import largest_divisor
from recipes.planning.rates import full_rate, target_inside
from recipes.reading.augmentation_checks import check_augmentation
from recipes.reading.checks import (
    check_extensions,
    check_image_size,
    check_loss,
    check_metrics,
    check_schedules,
    check_updater,
)
from recipes.reading.load import VERSION
from recipes.reading.read import REFUSED, Path, Reading, dotted, names_in, value_at
from recipes.reading.read_init import read_init
from recipes.reading.registry import UnknownNameError, can_name_folder
from recipes.schema import Batch, Dataset, LearningRate, RampStep, Recipe, Schedules, Warmup
from recipes.schema.positions import counted_by, first_sample_at, parse_position
from recipes.schema.vocabulary import Component

# Keys of a warmup that stand beside those of its kind.
_BESIDE = ("joins", "target_batch")

_LARGEST_DEFAULT_SPAN = 32
_MOST_NAMED = 8  # positions in a message: a straight line has up to 256


@dataclass(kw_only=True)
class TimeReading:
    """Reads data set, length of the run and batch ramp, in the order of the schema.

    Args:
        reading: of the recipe; gets the conversion of positions to epochs.
        open_dataset: name -> facts.
        held_out: share of its training samples that the recipe holds out, as it was written.
        dataset: REFUSED until it is read.
        epochs: length of the run; None until it is read, or if it was refused.
        ramp: the global batch; likewise.
        refused: which of both were, with a problem noted: positions that are counted by them have none of their own.
    """

    reading: Reading
    open_dataset: Callable[[str], Dataset]
    held_out: Any = None
    dataset: Any = REFUSED
    epochs: float | None = None
    ramp: BatchRamp | None = None
    refused: set[tuple[str, ...]] = field(default_factory=set)

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
        self._hold_out()
        self.reading.to_epochs = self._to_epochs
        return name, resolved

    def _hold_out(self) -> None:
        """An epoch is then of the other samples; a share that is none is refused where `evaluation` is read."""
        path = ("evaluation", "held_out")
        alone = dataclasses.replace(self.reading, problems=[], notes={})
        share, _ = alone.value(float | None, self.held_out, path)
        if share is REFUSED or share is None or not 0 < share < 1:
            return
        if (own := self.dataset.validation) is not None:
            what = f"what {self.dataset.name} scores is held out already: its file has `validation`, {own.fraction}"
            self.reading.refuse(path, what, "remove one of both")
            return
        try:
            self.dataset = self.dataset.holding_out(share)
        except ValueError:
            what = f"is less than one of the {self.dataset.num_train:,} training samples of {self.dataset.name}"
            self.reading.refuse(path, what, "hold out more")

    def read_epochs(self, raw: Any, path: Path, _: Mapping[str, Any], *, global_: Any) -> tuple[Any, Any]:
        if isinstance(raw, str) and raw.endswith(("up", "run")) and global_ is not None:
            # The ramp converts updates to samples; its own problems are noted when `batch` is read.
            problems = list(self.reading.problems)
            ramp = self._read_ramp(global_, ("batch", "global"))[0]
            self.reading.problems[:] = problems
            if ramp is REFUSED and raw.endswith("up"):
                return REFUSED, raw
            self.ramp = None if ramp is REFUSED else ramp
        epochs, resolved = self.reading.position(raw, path)
        if epochs is REFUSED or epochs <= 0:
            self.refused.add(path)
        if epochs is REFUSED:
            return REFUSED, resolved
        if epochs <= 0:
            return self.reading.refuse(path, f"is {raw}", "a run is longer than 0 epochs"), resolved
        self.epochs = epochs
        return epochs, resolved

    def _to_epochs(self, raw: object) -> Any:
        if isinstance(raw, str) and counted_by(raw) in self.refused:
            return REFUSED
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
        self.ramp = None
        if not isinstance(raw, dict) or "global" not in raw:
            self.refused |= {("epochs",), (*path, "global")}
            # The span can only be read beside a batch, which `record` refuses here.
            return self.reading.record(Batch, raw, path, using={"norm_span": lambda tree, *_: (REFUSED, tree)})
        # Before the rest: `500up` inside norm_span counts by it, and so does everything after it.
        ramp, tree = self._read_ramp(raw["global"], (*path, "global"))
        self.ramp = None if ramp is REFUSED else ramp
        if ramp is REFUSED:
            self.refused.add((*path, "global"))
        if self.epochs is None:
            self.refused.add(("epochs",))
        given = raw
        if "norm_span" not in raw:
            span = largest_divisor(_LARGEST_DEFAULT_SPAN, self.ramp.sizes) if self.ramp else 1
            given = {**raw, "norm_span": span}
            note = f"rule: the largest number up to {_LARGEST_DEFAULT_SPAN} that divides every batch"
            self.reading.notes[(*path, "norm_span")] = note
        using = {"global": lambda *_: (ramp, tree), "norm_span": self._read_span}
        return self.reading.record(Batch, given, path, using=using)

    def read_image_size(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        if raw is None:
            return None, None
        ramp, tree = self._read_ramp(raw, path)
        if ramp is not REFUSED and max(ramp.sizes) > LONGEST_SIDE:
            return self.reading.refuse(path, f"is {max(ramp.sizes)}", f"must be at most {LONGEST_SIDE} pixels"), tree
        return ramp, tree

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
        origins: list[tuple[int, bool]] = []  # of each step: where it is written, and whether as a straight line
        refused = False
        outer = self.ramp
        for index, item in enumerate(raw):
            if outer is None and boundaries and not refused:
                self.ramp = BatchRamp(boundaries=tuple(boundaries), sizes=tuple(sizes))
            step, tree = self.reading.record(RampStep, item, (*path, index))
            fault = None if step is REFUSED else self._fault_of_step(step, index, boundaries)
            if fault:
                self.reading.refuse((*path, index, fault[0]), *fault[1:])
            if step is REFUSED or fault:
                trees.append(tree)
                refused = True
                continue
            is_line = step.grow_to is not None
            for start, size in step.steps:
                if is_line and start == self.epochs:
                    break  # the end of a line that takes the whole run
                boundaries.append(start)
                sizes.append(size)
                trees.append({"from": start, "size": size} if is_line else tree)
                origins.append((index, is_line))
        if len(origins) > len(raw):
            self._note_origins(path, origins)
        self.ramp = outer
        if not raw:
            self.reading.refuse(path, "is an empty list", "write `[{from: 0, size: 256}]`, or one number")
        if not raw or refused:
            return REFUSED, trees
        return BatchRamp(boundaries=tuple(boundaries), sizes=tuple(sizes)), trees

    def _note_origins(self, path: Path, origins: list[tuple[int, bool]]) -> None:
        """The origins of steps whose place is not that of the file, because a straight line stands for several."""
        for number, (index, is_line) in enumerate(origins):
            for key in ("from", "size"):
                written = self.reading.origins.get((*path, index, key))
                text = f"rule: the straight line of {dotted((*path, index))}" if is_line else str(written)
                self.reading.notes[(*path, number, key)] = text

    def _fault_of_step(self, step: RampStep, index: int, before: list[float]) -> tuple[str, str, str] | None:
        """The key of a position of a step that is wrong, what is wrong, and a way out; None if nothing is."""
        start, until = step.from_, step.until
        if index == 0 and start != 0:
            return "from", f"the ramp begins at {start:g}", "its first step begins at 0"
        if before and start <= before[-1]:
            return "from", f"{start:g} does not come after {before[-1]:g}", "put the steps in the order of time"
        if self.epochs is not None and start >= self.epochs:
            what = f"{start:g} lies at or after the end of the run, {self.epochs:g}"
            return "from", what, "remove this step, or lengthen `epochs`"
        if self.epochs is not None and until is not None and until > self.epochs:
            what = f"{until:g} lies after the end of the run, {self.epochs:g}"
            return "until", what, "end the line earlier, or lengthen `epochs`"
        return None

    def _read_span(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        span, resolved = self._read_ramp(raw, path)
        if span is REFUSED or self.ramp is None:
            return span, resolved
        for start in span.boundaries:
            if start not in self.ramp.boundaries:
                what = f"changes at {start:g}, where `batch.global` does not"
                return self.reading.refuse(path, what, f"steps of the batch: {_places(self.ramp.boundaries)}"), resolved
        for start in self.ramp.boundaries:
            size, group = self.ramp(start), span(start)
            if size % group:
                step = bisect_right(span.boundaries, start)
                there = [self.ramp(at) for at in self.ramp.boundaries if bisect_right(span.boundaries, at) == step]
                fits = largest_divisor(min(group, *there), there)
                what = f"the batch of {size} from {start:g} on is no multiple of {group}"
                way_out = f"a `norm_span` of {fits} would do, or change the batch"
                return self.reading.refuse_pair(path, (*path[:-1], "global"), what, way_out), resolved
        return span, resolved


def _places(positions: Iterable[float]) -> str:
    """Positions in a message."""
    return listed((f"{position:g}" for position in positions), most=_MOST_NAMED)


@dataclass(kw_only=True)
class RateReading:
    """Reads `learning_rate`, after `time` has read `epochs` and `batch`."""

    reading: Reading
    time: TimeReading

    def read(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        given = raw
        # If the run's length was refused any length will do: nothing is built, and no second problem is noted.
        self.reading.rest_of_run = self.time.epochs or 1.0
        if isinstance(raw, dict) and raw.get("rule") == "none" and "per" not in raw and self.time.ramp:
            given = {**raw, "per": self.time.ramp.sizes[0]}
            self.reading.notes[(*path, "per")] = "rule: the first batch; only AdaScale uses it"
        value, resolved = self.reading.record(LearningRate, given, path, using={"warmup": self._read_warmup})
        self.reading.rest_of_run = None
        return value, resolved

    def read_schedules(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        """Schedules of the optimizer, on the clock of the run."""
        self.reading.rest_of_run = self.time.epochs or 1.0
        value, resolved = self.reading.record(Schedules, raw, path)
        self.reading.rest_of_run = None
        return value, resolved

    def _read_warmup(self, raw: Any, path: Path, before: Mapping[str, Any]) -> tuple[Any, Any]:
        if raw is None:
            return None, None
        if not isinstance(raw, dict) or self.time.ramp is None or self.time.epochs is None:
            using = {"start": lambda tree, *_: (REFUSED, tree)}
            return REFUSED, self.reading.component(
                Component("warmups"), raw, path, beside=_BESIDE, using=using, optional=True
            )[1]
        options = {"shape": {key: value for key, value in raw.items() if key not in _BESIDE}}
        options |= {key: raw[key] for key in _BESIDE if key in raw}
        if "target_batch" not in raw:
            options["target_batch"] = self.time.ramp.sizes[0]
            self.reading.notes[(*path, "target_batch")] = "rule: the first batch"

        def read_shape(tree: Any, _: Path, so_far: Mapping[str, Any]) -> tuple[Any, Any]:
            start = partial(self._read_start, learning_rate=before, target_batch=so_far["target_batch"])
            shape, resolved = self.reading.component(Component("warmups"), tree, path, using={"start": start})
            if "start" not in tree and resolved.get("start"):  # the default of an own class
                resolved = {**resolved, "start": {"factor": resolved["start"]}}
            return shape, resolved

        warmup, resolved = self.reading.record(Warmup, options, path, using={"shape": read_shape})
        resolved = {**resolved.pop("shape"), **resolved}
        if warmup is not REFUSED:
            warmup = self._fitting(warmup, path, before, aimed="target_batch" in raw)
        return warmup, resolved

    def _fitting(self, warmup: Warmup, path: Path, before: Mapping[str, Any], *, aimed: bool) -> Any:
        end = getattr(warmup.shape, "epochs", None)
        if end is None:
            what = f"{type(warmup.shape).__name__} has no `epochs`"
            return self.reading.refuse((*path, "kind"), what, "add that field to its class: the length of the warmup")
        if end > self.time.epochs:
            what = f"{end:g} is longer than the run, {self.time.epochs:g}"
            way_out = "shorten the warmup, or lengthen `epochs`"
            return self.reading.refuse_pair((*path, "epochs"), ("epochs",), what, way_out)
        rule, scale_with = before["rule"], before["scale_with"]
        target = target_inside(self.time.ramp, epochs=end, rule=rule, scale_with=scale_with)
        if target is not None and not aimed and REFUSED not in (rule, scale_with):
            inside = [start for start, _ in self.time.ramp.changes if 0 < start < end]
            what = f"the batch moves at {_places(inside)}, inside the warmup of {end:g}"
            return self.reading.refuse(path, what, f"say which it aims at: `target_batch: {target}`")
        if warmup.joins == "before":
            self.reading.rest_of_run = self.time.epochs - end
        return warmup

    def _read_start(
        self, raw: Any, path: Path, _: Mapping[str, Any], *, learning_rate: Mapping[str, Any], target_batch: Any
    ) -> tuple[Any, Any]:
        """The factor that a warmup's `start` means."""
        reference, per, rule = (learning_rate[name] for name in ("reference", "per", "rule"))
        if REFUSED in (reference, per, rule, target_batch):
            return REFUSED, raw
        in_range = isinstance(rule, str) or 0 <= rule <= 2
        if reference <= 0 or per < 1 or target_batch < 1 or not in_range:
            return 1.0, raw  # any value will do: the dataclasses of these refuse them later
        target = full_rate(reference, target_batch, rule=rule, per=per)
        if not 0 < target < math.inf:
            return 1.0, raw  # likewise: `check_schedules` refuses the rate
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
            what = f"a rate of {rate:g} does not lie between 0 and the full rate of batch {target_batch}, {target:g}"
            return self.reading.refuse(path, what, "start lower, or remove the warmup"), raw
        return rate / target, raw


def read_recipe(
    reading: Reading, tree: Mapping[str, Any], *, stem: str, open_dataset: Callable[[str], Dataset]
) -> tuple[Recipe, Dataset, dict[str, Any]]:
    """A recipe from its merged tree.

    Args:
        reading: with the tree's origins; takes the problems.
        tree: as `load_tree` gives it.
        stem: name of the recipe's file, for a recipe that has no name.
        open_dataset: name -> facts; its RecipeError or UnknownNameError is noted at `dataset`.
    Returns:
        The recipe, its data set, and the tree with every default; the first two are REFUSED if they have problems.
    """
    given = {key: value for key, value in tree.items() if key != "kilobatch"}
    if "name" not in given:
        given["name"] = stem
        reading.notes[("name",)] = "rule: the name of the file"
    if "loss" not in given:
        given["loss"] = {"kind": "SoftmaxCrossEntropy"}
        reading.notes[("loss",)] = "default"
    reading.tree = given
    reading.lacks = names_in(given.get("lacks"))
    evaluation = given.get("evaluation")
    held_out = evaluation.get("held_out") if isinstance(evaluation, dict) else None
    time = TimeReading(reading=reading, open_dataset=open_dataset, held_out=held_out)
    rate = RateReading(reading=reading, time=time)
    batch = given.get("batch")
    using = {
        "dataset": time.read_dataset,
        "epochs": partial(time.read_epochs, global_=batch.get("global") if isinstance(batch, dict) else None),
        "batch": time.read_batch,
        "image_size": time.read_image_size,
        "learning_rate": rate.read,
        "schedules": rate.read_schedules,
        "init": partial(read_init, reading),
    }
    recipe, resolved = reading.record(Recipe, given, (), using=using)
    if recipe is not REFUSED:
        _check(reading, recipe, resolved)
        check_updater(reading, recipe)
        _check_batch(reading, recipe, time.dataset)
        _check_comparison(reading, recipe)
        check_schedules(reading, recipe, time.dataset)
        check_augmentation(reading, recipe, time.dataset)
        check_image_size(reading, recipe)
        check_extensions(reading, recipe)
        check_loss(reading, recipe, time.dataset)
        check_metrics(reading, recipe, time.dataset)
    return recipe, time.dataset, {"kilobatch": VERSION, **resolved}


def _check(reading: Reading, recipe: Recipe, resolved: Mapping[str, Any]) -> None:
    """Checks of values that are valid one by one, but not together."""
    if not can_name_folder(recipe.name):
        by_file = ("name",) in reading.notes
        add = "add a `name:` of" if by_file else "use"
        way_out = f"{add} the letters a to z and A to Z, digits, `_`, `.` and `-`, at most 200"
        reading.refuse(("name",), f"{recipe.name!r} cannot name a run's folder", way_out)
    if recipe.seed < 0:
        reading.refuse(("seed",), f"is {recipe.seed}", "must be 0 or more")
    if recipe.evaluation.offset >= recipe.epochs:
        what = f"{recipe.evaluation.offset:g} lies at or after the end of the run, {recipe.epochs:g}"
        reading.refuse(("evaluation", "offset"), what, "begin earlier, or lengthen `epochs`")
    for index, name in enumerate(recipe.lacks):
        if any(name in getattr(reading.vocabulary, field.name) for field in dataclasses.fields(reading.vocabulary)):
            reading.refuse(("lacks", index), f"{name} is built", "remove it from `lacks`")
    for key in ("assumed", "open"):
        for index, path in enumerate(getattr(recipe, key)):
            try:
                value_at(resolved, path)
            except LookupError:
                if path not in map(dotted, reading.not_shown):
                    reading.refuse((key, index), f"there is no value at {path}", "name a path that `show` prints")


def _check_batch(reading: Reading, recipe: Recipe, dataset: Dataset) -> None:
    """An update takes each sample at most once, and an epoch shows two or more."""
    if recipe.stream.repeats >= max(2, dataset.num_train):
        what = f"is {recipe.stream.repeats:,}, and {dataset.name} has {dataset.num_train:,} samples an epoch"
        reading.refuse(("stream", "repeats"), what, "write a few, such as 3")
    largest = max(recipe.batch.global_.sizes)
    if largest > dataset.num_train:
        what = f"an update of {largest:,} samples is more than the {dataset.num_train:,} of {dataset.name}"
        reading.refuse(("batch", "global"), what, f"write at most {dataset.num_train:,}, better a tenth of that")


def _check_comparison(reading: Reading, recipe: Recipe) -> None:
    """An optimizer that compares norm groups needs several in an update, unless its batch is the reference batch."""
    batch = recipe.batch
    if not getattr(recipe.optimizer, "needs_group_gradients", False):
        return
    for start, size in zip(batch.global_.boundaries, batch.global_.sizes, strict=True):
        if batch.norm_span(start) == size != recipe.learning_rate.per:
            compares = f"{type(recipe.optimizer).__name__} compares the gradients of norm groups"
            way_out = "choose a larger batch"
            if size > 1:
                way_out = f"{largest_divisor(size // 2, batch.global_.sizes)} would do"
            what = f"{compares}, and the batch of {size} from {start:g} on is one group"
            reading.refuse(("batch", "norm_span"), what, way_out)
            return
