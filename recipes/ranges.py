"""Ranges of a search's space: the values that a trial may have at a path of the recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Categorical", "Float", "Int"]

# Path of the space -> values: a trial has a value of this range only if it has one of these at every such path.
Conditions = Mapping[str, tuple[Any, ...]]


def _require_ends(name: str, low: float, high: float, *, log: bool, step: float | None, least: float) -> None:
    """Refuse ends, `log` and `step` that do not make a range of numbers."""
    for end, value in (("low", low), ("high", high)):
        if not math.isfinite(value):
            raise ValueError(f"{name}.{end} must be finite, got {value}")
    if not low < high:
        raise ValueError(f"{name}.high must be above low, got {high}")
    if log and low < least:
        raise ValueError(f"{name}.low must be {'at least 1' if least == 1 else 'above 0'} where log is true, got {low}")
    if step is not None and not 0 < step <= high - low:
        raise ValueError(f"{name}.step must be above 0 and at most high - low, got {step}")


@dataclass(frozen=True, kw_only=True)
class Float:
    """A number between two others.

    Args:
        low, high: its ends, both included.
        log: draw uniformly in the logarithm; needs a low above 0 and no step.
        step: only low, low + step, ...; null for any number.
        when: path of the space -> list of values: only trials with one of them search this range; all others have the
            recipe's own value, or that of `fixed`.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    when: Conditions = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_ends("Float", self.low, self.high, log=self.log, step=self.step, least=math.ulp(0.0))
        if self.log and self.step is not None:
            raise ValueError(f"Float.step must be null where log is true, got {self.step}")

    @property
    def ends(self) -> Mapping[tuple[str | int, ...], Any]:
        """Place in the search's file -> value: the values that the recipe must accept before a search starts."""
        return {("low",): self.low, ("high",): self.high}

    def holds(self, value: object) -> bool:
        """Whether a value lies in the range."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and _on_step(value, self.low, self.step)

    def suggest(self, trial: Any, name: str) -> float:
        """A value from Optuna's trial."""
        return trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)

    def spread(self, points: int) -> list[float]:
        """`points` evenly spaced values from low to high; with `step`, at most as many as there are."""
        count = points if self.step is None else min(points, int((self.high - self.low) / self.step + 1e-9) + 1)
        values = _spaced(self.low, self.high, count, log=self.log)
        if self.step is not None:
            values = [self.low + self.step * round((value - self.low) / self.step) for value in values]
            values = [value for value in values if value <= self.high] or [self.low]
        return list(dict.fromkeys(values))


@dataclass(frozen=True, kw_only=True)
class Int:
    """A whole number between two others.

    Args:
        low, high: its ends, both included.
        log: draw uniformly in the logarithm; needs a low of at least 1 and a step of 1.
        step: only low, low + step, ...
        when: as for `Float`.
    """

    low: int
    high: int
    log: bool = False
    step: int = 1
    when: Conditions = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_ends("Int", self.low, self.high, log=self.log, step=self.step, least=1)
        if self.log and self.step != 1:
            raise ValueError(f"Int.step must be 1 where log is true, got {self.step}")

    @property
    def ends(self) -> Mapping[tuple[str | int, ...], Any]:
        """See `Float`."""
        return {("low",): self.low, ("high",): self.high}

    def holds(self, value: object) -> bool:
        """Whether a value lies in the range."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and self.low <= value <= self.high and (value - self.low) % self.step == 0

    def suggest(self, trial: Any, name: str) -> int:
        """A value from Optuna's trial."""
        return trial.suggest_int(name, self.low, self.high, log=self.log, step=self.step)

    def spread(self, points: int) -> list[int]:
        """At most `points` evenly spaced values from low to high."""
        steps = (self.high - self.low) // self.step
        values = _spaced(self.low, self.low + steps * self.step, min(points, steps + 1), log=self.log)
        return list(dict.fromkeys(self.low + self.step * round((value - self.low) / self.step) for value in values))


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """One of several values.

    Args:
        choices: numbers, texts, true, false or null; at least one, each once.
        when: as for `Float`.
    """

    choices: tuple[Any, ...]
    when: Conditions = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("Categorical.choices must hold at least one value")
        if not all(choice is None or isinstance(choice, bool | int | float | str) for choice in self.choices):
            raise ValueError("Categorical.choices must be numbers, texts, true, false or null")
        if len({(type(choice), choice) for choice in self.choices}) < len(self.choices):
            raise ValueError("Categorical.choices must differ from each other")

    @property
    def ends(self) -> Mapping[tuple[str | int, ...], Any]:
        """See `Float`: here all choices."""
        return {("choices", place): choice for place, choice in enumerate(self.choices)}

    def holds(self, value: object) -> bool:
        """Whether a value is one of the choices; true is not 1."""
        return any(type(choice) is type(value) and choice == value for choice in self.choices)

    def suggest(self, trial: Any, name: str) -> Any:
        """A value from Optuna's trial."""
        return trial.suggest_categorical(name, self.choices)

    def spread(self, points: int) -> list[Any]:
        """All choices."""
        return list(self.choices)


def _on_step(value: float, low: float, step: float | None) -> bool:
    steps = 0.0 if step is None else (value - low) / step
    return abs(steps - round(steps)) < 1e-6


def _spaced(low: float, high: float, count: int, *, log: bool) -> list[float]:
    """`count` numbers from low to high, ends included exactly; only low if `count` is 1."""
    if count == 1:
        return [low]
    shares = [place / (count - 1) for place in range(count)]
    if log:
        between = [low * (high / low) ** share for share in shares]
    else:
        between = [low + (high - low) * share for share in shares]
    return [low, *between[1:-1], high]
