"""Ranges of a search's space: the values that a trial may have at a path of the recipe.

A range may be conditional, with `when: {optimizer.kind: [Lars]}`; it then belongs to some trials only.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar

from recipes.reading.read import Reading
from recipes.schema.batch_and_rate import require

__all__ = ["Categorical", "Float", "Int"]  # the kinds of a range

# Path of the space -> values: a trial has a value of this range only if it has one of these at every such path.
Conditions = Mapping[str, tuple[Any, ...]]
Space = Mapping[str, Any]  # dotted path -> range, as in `Search.space`


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """What `Float` and `Int` share."""

    low: Any
    high: Any
    log: bool = False
    step: Any = None
    when: Conditions = field(default_factory=dict)

    def __post_init__(self) -> None:
        name, unstepped = type(self).__name__, self.unstepped
        require(self.low < self.high, f"{name}.high must be above low, got {self.high}")
        require(not self.log or self.low > 0, f"{name}.low must be above 0 where log is true, got {self.low}")
        stepped = self.step is None or 0 < self.step <= self.high - self.low < math.inf
        require(stepped, f"{name}.step must be above 0 and at most high - low, got {self.step}")
        possible = not self.log or self.step == unstepped
        require(possible, f"{name}.step must be {unstepped or 'null'} where log is true, got {self.step}")
        if self.step != unstepped:
            last = self.low + self.step * int((self.high - self.low) / self.step + 1e-9)
            reached = math.isclose(last, self.high, abs_tol=1e-12)
            require(reached, f"{name}.high must be low plus whole steps, such as {last:.10g}, got {self.high}")

    @property
    def ends(self) -> Mapping[tuple[str | int, ...], Any]:
        """Place in the search's file -> value: the values that the recipe must accept before a search starts."""
        return {("low",): self.low, ("high",): self.high}

    def holds(self, value: object) -> bool:
        """Whether a value lies in the range."""
        kind = int if isinstance(self, Int) else int | float
        number = isinstance(value, kind) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and math.isclose(value, self.nearest(value), abs_tol=1e-12)

    def nearest(self, value: float) -> float:
        """The value of the range that is nearest to a number."""
        inside = min(max(value, self.low), self.high)
        if self.step is None:
            return inside
        return min(self.low + self.step * round((inside - self.low) / self.step), self.high)

    def share_between(self, one: float, other: float) -> float:
        """Which part of the range lies between two numbers; negative if the second is the lower one.

        With `log` in the logarithm.

        >>> Float(low=0.01, high=10, log=True).share_between(0.1, 1)
        0.3333333333333333
        """
        low, high = self.low, self.high
        if self.log:
            low, high, one, other = map(math.log, (low, high, one, other))
        return (other - one) / (high - low)

    def moved(self, number: float, share: float) -> float:
        """A number, moved by a part of the range, and perhaps out of it: the inverse of `share_between`.

        With `log` in the logarithm, if the number is above 0.
        """
        if self.log and number > 0:
            return number * (self.high / self.low) ** share
        return number + (self.high - self.low) * share

    def suggest(self, trial: Any, name: str) -> Any:
        """A value from Optuna's trial."""
        drawn = trial.suggest_int if isinstance(self, Int) else trial.suggest_float
        return drawn(name, self.low, self.high, log=self.log, step=self.step)


@dataclass(frozen=True, kw_only=True)
class Float(_Numbers):
    """A number between two others.

    Args:
        low: the smallest value, included.
        high: the largest value, included.
        log: draw uniformly in the logarithm; needs a low above 0 and no step.
        step: only low, low + step, ...; null for any number.
        when: path of the space -> list of values: only trials with one of them search this range; all others have the
            recipe's own value, or that of `fixed`.
    """

    unstepped: ClassVar[None] = None  # the `step` with which all numbers between the ends are possible
    low: float
    high: float
    step: float | None = None


@dataclass(frozen=True, kw_only=True)
class Int(_Numbers):
    """A whole number between two others.

    Args:
        low: the smallest value, included.
        high: the largest value, included.
        log: draw uniformly in the logarithm; needs a low above 0 and a step of 1.
        step: only low, low + step, ...
        when: as for `Float`.
    """

    unstepped: ClassVar[int] = 1
    low: int
    high: int
    step: int = 1


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
        require(bool(self.choices), "Categorical.choices must hold at least one value")
        plain = all(choice is None or isinstance(choice, bool | int | float | str) for choice in self.choices)
        require(plain, "Categorical.choices must be numbers, texts, true, false or null")
        require(len(set(self.choices)) == len(self.choices), "Categorical.choices must differ from each other")

    @property
    def ends(self) -> Mapping[tuple[str | int, ...], Any]:
        """See `Float`: here all choices."""
        return {("choices", index): choice for index, choice in enumerate(self.choices)}

    def holds(self, value: object) -> bool:
        """Whether a value is one of the choices."""
        return value in self.choices

    def suggest(self, trial: Any, name: str) -> Any:
        """A value from Optuna's trial."""
        return trial.suggest_categorical(name, self.choices)


def suggested(space: Space, trial: Any) -> dict[str, Any]:
    """A value from Optuna's trial for each active path, those that others depend on first."""
    return active_values(space, lambda path: space[path].suggest(trial, path))


def is_active(space: Space, path: str, values: Mapping[str, Any]) -> bool:
    """Whether a trial has a value at a path, by its values of the paths before this one in the order of `suggested`."""
    return all(other in values and values[other] in wanted for other, wanted in space[path].when.items())


def active_values(space: Space, value_of: Callable[[str], Any]) -> dict[str, Any]:
    """The values of all paths that are active with those before them; not where `value_of` raises LookupError."""
    values: dict[str, Any] = {}
    for path in in_order(space):
        if is_active(space, path, values):
            with suppress(LookupError):
                values[path] = value_of(path)
    return values


def condition_values(space: Space, path: str) -> list[dict[str, Any]]:
    """Every combination of the other paths' values, as named by `when`, that makes a path active."""
    conditions, others = space[path].when, {}
    for other in conditions:
        others |= condition_values(space, other)[0]
    return [others | dict(zip(conditions, chosen, strict=True)) for chosen in itertools.product(*conditions.values())]


def values_text(values: Mapping[str, Any]) -> str:
    """Values in a line.

    >>> values_text({"optimizer.kind": "Lars", "learning_rate.reference": 0.123456, "seed": None})
    'optimizer.kind Lars, learning_rate.reference 0.1235, seed null'
    """
    return ", ".join(f"{path} {short(value)}" for path, value in values.items())


def short(value: Any) -> str:
    """A value of a recipe in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def refuse_conditions(reading: Reading, space: Space) -> None:
    """Notes every condition that names no path of the space, or impossible values, or depends on itself."""
    for path, range_ in space.items():
        for other, wanted in range_.when.items():
            at = ("space", path, "when", other)
            if other not in space:
                reading.refuse(at, f"{other} is not in the space", "name another path of `space`", at_key=True)
            elif isinstance(space[other], Float):
                reading.refuse(at, f"{other} can be any number", "name a Categorical or an Int", at_key=True)
            elif not wanted:  # else the range would never be searched, without a word
                reading.refuse(at, "holds no values", "name those with which this range is searched")
            else:
                for index, value in enumerate(wanted):
                    if not space[other].holds(value):
                        way_out = "name a value that it can have"
                        reading.refuse((*at, index), f"{json.dumps(value)} is never the value of {other}", way_out)
    try:
        in_order(space)
    except CycleError as error:
        at = ("space", error.args[1][0], "when")
        reading.refuse(at, "depends on itself", "remove one of these conditions", at_key=True)


def in_order(space: Space) -> list[str]:
    """The paths of a space, each after those that it depends on; CycleError where there is no such order."""
    return [*TopologicalSorter({path: range_.when for path, range_ in space.items()}).static_order()]
