"""The values that a point of a frontier tries first: its neighbours' optima by two rules, then an even spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recipes.frontiers.open_frontier import RATE
from recipes.planning.random_bits import draws, word
from recipes.search_space.ranges import Categorical, Float, Int, Space, active_values

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
_EDGE = 0.05  # of a range: an optimum in there lies on its edge. Assumed.
_WIDER = 1 / 3  # of a range, by which it grows beyond its edge. Assumed.


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best trial of a point.

    Args:
        batch: of the point.
        values: path of the space -> value.
        rate_factor: the full rate over `learning_rate.reference`, at this batch.
    """

    batch: int
    values: Mapping[str, Any]
    rate_factor: float


def scaled(space: Space, near: Sequence[Optimum], *, batch: int, rate_factor: float) -> list[dict[str, Any]]:
    """The optima of other batches at this one, each by the linear and by the square root rule.

        full rate * B / b,    full rate * sqrt(B / b)

    All other values stay, and a rate that is a choice. A value outside its range becomes the nearest inside.
    """
    made: list[dict[str, Any]] = []
    for optimum in near:
        for power in (1.0, 0.5):
            values = {path: value for path, value in optimum.values.items() if path in space}
            if RATE in values and not isinstance(space[RATE], Categorical):
                grown = values[RATE] * optimum.rate_factor / rate_factor * (batch / optimum.batch) ** power
                values[RATE] = space[RATE].nearest(float(f"{grown:.6g}"))
            values = active_values(space, values.__getitem__)
            if values not in made:
                made.append(values)
    return made


def quasi_random(space: Space, count: int, *, seed: int, point: str) -> list[dict[str, Any]]:
    """Values spread evenly over a space: a Halton sequence, shifted at random for every point.

    Source: Halton 1960; the shift: Cranley and Patterson 1976 (neither checked).
    """
    stream = draws(seed, "frontier", word(point))
    shifts = {path: stream.uniform() for path in space}
    made = []
    for index in range(1, count + 1):
        values = {}
        for place, (path, range_) in enumerate(space.items()):
            values[path] = value_of_share(range_, (_radical_inverse(index, _PRIMES[place % 10]) + shifts[path]) % 1.0)
        made.append(active_values(space, values.__getitem__))
    return made


def value_of_share(range_: Any, share: float) -> Any:
    """The value of a range at a share of it, in [0, 1).

    >>> from recipes.search_space.ranges import Float
    >>> value_of_share(Float(low=0.001, high=10, log=True), 0.25)
    0.01
    """
    if isinstance(range_, Categorical):
        return range_.choices[int(share * len(range_.choices))]
    if isinstance(range_, Int):
        wide = Float(low=range_.low - 0.5, high=range_.high + 0.5, log=range_.log)
        return range_.nearest(round(wide.moved(wide.low, share)))
    return range_.nearest(float(f"{range_.moved(range_.low, share):.6g}"))


def at_edge(range_: Any, value: Any) -> bool:
    """Whether a number lies within a twentieth of its range of one of its ends; a choice never does."""
    return not isinstance(range_, Categorical) and not _EDGE < range_.share_between(range_.low, value) < 1 - _EDGE


def beyond_edge(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """For each value on an edge of its range the range that goes on there: the outer part of it, and a third more.

    >>> from recipes.search_space.ranges import Float
    >>> wider = beyond_edge({"rate": Float(low=0.01, high=10, log=True)}, {"rate": 9.5})["rate"]
    >>> round(wider.low, 6), round(wider.high, 6)
    (7.079458, 100.0)
    """
    made = {}
    for path, value in values.items():
        range_ = space[path]
        if not at_edge(range_, value) or range_.step != range_.unstepped:
            continue
        at_low = range_.share_between(range_.low, value) <= _EDGE
        shares = (-_WIDER, _EDGE) if at_low else (1 - _EDGE, 1 + _WIDER)
        low, high = (range_.moved(range_.low, share) for share in shares)
        if isinstance(range_, Int):
            low, high = max(math.floor(low), 1) if range_.log else math.floor(low), math.ceil(high)
        if low < range_.low or high > range_.high:
            made[path] = replace(range_, low=low, high=high)
    return made


def _radical_inverse(index: int, base: int) -> float:
    """The digits of a number in a base, mirrored behind the point.

    >>> [_radical_inverse(index, 2) for index in (1, 2, 3, 4)]
    [0.5, 0.25, 0.75, 0.125]
    """
    value, scale = 0.0, 1.0 / base
    while index:
        index, digit = divmod(index, base)
        value += digit * scale
        scale /= base
    return value
