"""Reads the learning rate of a recipe: start and target of its warmup, length of its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from recipes.rates import full_rate
from recipes.reading import REFUSED, Path, Reading
from recipes.reading_time import TimeReading, listed
from recipes.schema import LearningRate, Warmup
from recipes.vocabulary import Component

__all__ = ["RateReading"]

# Keys of a warmup that stand beside those of its kind.
_BESIDE = ("joins", "target_batch")


@dataclass(kw_only=True)
class RateReading:
    """Reads `learning_rate`, after `epochs` and `batch`.

    Args:
        reading: of the recipe.
        time: which has been read.
    """

    reading: Reading
    time: TimeReading

    def read(self, raw: Any, path: Path, _: Mapping[str, Any]) -> tuple[Any, Any]:
        given = raw
        # If the run's length was refused any length will do: nothing is built, and no second problem is noted.
        self.reading.rest_of_run = self.time.epochs or 1.0
        if isinstance(raw, dict) and raw.get("rule") == "none" and "per" not in raw and self.time.ramp:
            given = {**raw, "per": self.time.ramp.sizes[0]}
            self.reading.notes[(*path, "per")] = "rule: without effect, the first batch"
        value, resolved = self.reading.record(LearningRate, given, path, using={"warmup": self._read_warmup})
        self.reading.rest_of_run = None
        return value, resolved

    def _read_warmup(self, raw: Any, path: Path, before: Mapping[str, Any]) -> tuple[Any, Any]:
        if raw is None:
            return None, None
        if not isinstance(raw, dict) or self.time.ramp is None or self.time.epochs is None:
            using = {"start": lambda tree, *_: (REFUSED, tree)}
            return REFUSED, self.reading.component(Component("warmups"), raw, path, beside=_BESIDE, using=using)[1]
        options = {"shape": {key: value for key, value in raw.items() if key not in _BESIDE}}
        options |= {key: raw[key] for key in _BESIDE if key in raw}
        if "target_batch" not in raw:
            options["target_batch"] = self.time.ramp.sizes[0]
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
        if end > self.time.epochs:
            what = f"{end:g} is longer than the run, {self.time.epochs:g}"
            return self.reading.refuse((*path, "epochs"), what, "shorten the warmup, or lengthen `epochs`")
        inside = [start for start in self.time.ramp.boundaries if 0 < start < end]
        if inside and not aimed:
            what = f"the batch moves at {listed(inside)}, inside the warmup of {end:g}"
            return self.reading.refuse(path, what, f"say which it aims at: `target_batch: {self.time.ramp(end)}`")
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
        if reference <= 0 or per < 1 or target_batch < 1:
            return 1.0, raw  # any value will do: the dataclasses of these refuse them later
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
            what = f"a rate of {rate:g} does not lie between 0 and the full rate of batch {target_batch}, {target:g}"
            return self.reading.refuse(path, what, "start lower, or remove the warmup"), raw
        return rate / target, raw
