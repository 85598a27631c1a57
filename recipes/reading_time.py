"""Reads what a recipe's positions are counted by: data set, length of the run and batch ramp."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lr_schedules import BatchRamp
from recipes.divisors import largest_divisor
from recipes.errors import RecipeError
from recipes.image_size import LONGEST_SIDE
from recipes.positions import first_sample_at, parse_position
from recipes.reading import REFUSED, Path, Reading
from recipes.registry import UnknownNameError
from recipes.schema import Batch, Dataset, RampStep

__all__ = ["TimeReading", "listed"]

_LARGEST_DEFAULT_SPAN = 32


@dataclass(kw_only=True)
class TimeReading:
    """Reads data set, length of the run and batch ramp, in the order of the schema.

    Args:
        reading: of the recipe; gets the conversion of positions to epochs.
        open_dataset: name -> facts.
        dataset: REFUSED until it is read.
        epochs: length of the run; None until it is read, or if it was refused.
        ramp: the global batch; likewise.
    """

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
            # The ramp converts updates to samples; its own problems are noted when `batch` is read.
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
        self.ramp = None
        if not isinstance(raw, dict) or "global" not in raw:
            # The span can only be read beside a batch, which `record` refuses here.
            return self.reading.record(Batch, raw, path, using={"norm_span": lambda tree, *_: (REFUSED, tree)})
        # Before the rest: `500up` inside norm_span counts by it, and so does everything after it.
        ramp, tree = self._read_ramp(raw["global"], (*path, "global"))
        self.ramp = None if ramp is REFUSED else ramp
        given = raw
        if "norm_span" not in raw:
            given = {**raw, "norm_span": _default_span(self.ramp) if self.ramp else 1}
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
        outer = self.ramp
        for place, item in enumerate(raw):
            if outer is None and boundaries:
                self.ramp = BatchRamp(boundaries=tuple(boundaries), sizes=tuple(sizes))
            step, tree = self.reading.record(RampStep, item, (*path, place))
            trees.append(tree)
            fault = None if step is REFUSED else self._fault_of_step(step.from_, place, boundaries)
            if fault:
                self.reading.refuse((*path, place, "from"), *fault)
            if step is REFUSED or fault:
                continue
            boundaries.append(step.from_)
            sizes.append(step.size)
        self.ramp = outer
        if not raw:
            self.reading.refuse(path, "is an empty list", "write `[{from: 0, size: 256}]`, or one number")
        if not raw or len(sizes) < len(raw):
            return REFUSED, trees
        return BatchRamp(boundaries=tuple(boundaries), sizes=tuple(sizes)), trees

    def _fault_of_step(self, start: float, place: int, before: list[float]) -> tuple[str, str] | None:
        """What is wrong with the start of a step, and a way out; None if nothing is."""
        if place == 0 and start != 0:
            return f"the ramp begins at {start:g}", "its first step begins at 0"
        if before and start <= before[-1]:
            return f"{start:g} does not come after {before[-1]:g}", "put the steps in the order of time"
        if self.epochs is not None and start >= self.epochs:
            what = f"{start:g} lies at or after the end of the run, {self.epochs:g}"
            return what, "remove this step, or lengthen `epochs`"
        return None

    def _read_span(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        span, resolved = self._read_ramp(raw, path)
        if span is REFUSED or self.ramp is None:
            return span, resolved
        for start in span.boundaries:
            if start not in self.ramp.boundaries:
                what = f"changes at {start:g}, where `batch.global` does not"
                return self.reading.refuse(path, what, f"steps of the batch: {listed(self.ramp.boundaries)}"), resolved
        for start in self.ramp.boundaries:
            size, group = self.ramp(start), span(start)
            if size % group:
                step = bisect_right(span.boundaries, start)
                there = [self.ramp(at) for at in self.ramp.boundaries if bisect_right(span.boundaries, at) == step]
                fits = largest_divisor(min(group, *there), there)
                what = f"the batch of {size} from {start:g} on is no multiple of {group}"
                return self.reading.refuse(path, what, f"{fits} would do, or change the batch"), resolved
        return span, resolved


def _default_span(ramp: BatchRamp) -> int:
    return largest_divisor(_LARGEST_DEFAULT_SPAN, ramp.sizes)


def listed(positions: Iterable[float]) -> str:
    """Positions in a message."""
    return ", ".join(f"{position:g}" for position in positions)
