"""Positions and durations of a run: 30, 30ep, 500up, 1.5Msp and 0.5run as epochs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import takewhile
from typing import Any

from lr_schedules.units import as_written

_DIGITS = "[0-9]{1,40}"  # no number of a run needs more, and Python's int() refuses thousands
_WORD = re.compile(
    rf"(?P<number>{_DIGITS}(\.[0-9]{{0,40}})?([eE][-+]?[0-9]{{1,2}})?|\.{_DIGITS})\s*(?P<unit>[A-Za-z]+)"
)
_TIMED_BY_BATCH = (
    "epochs",
    "image_size",
    "learning_rate",
    "schedules",
    "augmentation",
    "evaluation",
    "weight_average",
    "optimizer",
    "updater",
    "extensions",
)
_COUNTED = 2**53  # samples up to which a float is exact; beyond, searches by single samples would not terminate
_SAMPLES = {"sp": 1, "ksp": 10**3, "Msp": 10**6, "Gsp": 10**9}
UNITS = "30 or 30ep (epochs), 500up (updates), 1.5Msp (samples) or 0.5run"


class NoPosition(ValueError):
    """A value is no position.

    Args:
        units: how one is written, with the units that can be counted there.
    """

    def __init__(self, what: str, units: str) -> None:
        self.units = units
        super().__init__(what)


def parse_position(
    value: object,
    *,
    num_train: int,
    epochs: float | None = None,
    updates_to_samples: Callable[[int], int] | None = None,
) -> float:
    """A position or a duration in epochs.

    Args:
        value: a number of epochs, or a text with a unit: `ep` epochs, `up` updates, `sp ksp Msp Gsp` samples, `run`.
        num_train: samples of the training set.
        epochs: length of the run; None while it is not known, which refuses `run`.
        updates_to_samples: samples consumed by so many updates; None while it is not known, which refuses `up`.
    Raises:
        NoPosition: not a number or a text of these, negative, a fraction of an update or a sample, a unit that cannot
            be used here, or more than 2^53 samples.

    >>> parse_position("1.5Msp", num_train=1_000_000), parse_position("0.5run", num_train=10, epochs=90.0)
    (1.5, 45.0)
    """
    try:
        epochs_given = _in_epochs(value, num_train, epochs, updates_to_samples)
        if epochs_given * num_train > _COUNTED:
            raise ValueError(f"{value} is more than {_COUNTED:,} samples")
    except ValueError as error:
        raise NoPosition(str(error), _units(up=updates_to_samples is not None, run=epochs is not None)) from None
    return epochs_given


def _units(*, up: bool, run: bool) -> str:
    """`UNITS`, without those that cannot be counted.

    >>> _units(up=False, run=True)
    '30 or 30ep (epochs), 1.5Msp (samples) or 0.5run'
    >>> _units(up=True, run=True) == UNITS
    True
    """
    last = "1.5Msp (samples) or 0.5run" if run else "1.5Msp (samples)"
    between = ", 500up (updates)" if up else ""
    return f"30 or 30ep (epochs){between}{', ' if run else ' or '}{last}"


def typed_position(text: str, **how: Any) -> float:
    """A position or a duration of the command line in epochs: a bare number counts epochs there too.

    Args, Raises: as of `parse_position`.

    >>> typed_position("0.5", num_train=10), typed_position("5sp", num_train=10)
    (0.5, 0.5)
    """
    try:
        value: float | str = float(text)
    except ValueError:
        value = text
    return parse_position(value, **how)


def _in_epochs(
    value: object, num_train: int, epochs: float | None, updates_to_samples: Callable[[int], int] | None
) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a position")
        if value < 0:
            raise ValueError(f"{value} lies before the start of the run")
        return float(value)
    match = _WORD.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"{value!r:.60} is not a position")
    number, unit = Fraction(match["number"]), match["unit"]
    if unit == "ep":
        return float(number)
    if unit == "run":
        if epochs is None:
            raise ValueError(f"{value} needs the length of the run, which is not known here")
        return float(number * Fraction(repr(epochs)))
    if unit not in {"up", *_SAMPLES}:
        raise ValueError(f"{unit!r} is not a unit of time")
    count = number * _SAMPLES.get(unit, 1)
    if count.denominator != 1:
        raise ValueError(f"{value} is not a whole number of {'updates' if unit == 'up' else 'samples'}")
    if unit == "up":
        if updates_to_samples is None:
            raise ValueError(f"{value} needs the batch sizes, which are not known here")
        count = updates_to_samples(int(count))
    return float(Fraction(count, num_train))


def counted_by(text: str) -> tuple[str, ...] | None:
    """The path of the value that a position is counted by; None for epochs.

    >>> counted_by("0.5run"), counted_by("500up"), counted_by("1.5Msp"), counted_by("30ep")
    (('epochs',), ('batch', 'global'), ('dataset',), None)
    """
    match = _WORD.fullmatch(text)
    if match is None or match["unit"] == "ep":
        return None
    return {"run": ("epochs",), "up": ("batch", "global")}.get(match["unit"], ("dataset",))


def written_in_updates(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path and text of every position of a recipe, outside `batch`, that is written in updates.

    >>> list(written_in_updates({"epochs": "90up", "learning_rate": {"schedule": {"boundaries": [1, "30 up"]}}}))
    [('epochs', '90up'), ('learning_rate.schedule.boundaries.1', '30 up')]
    """
    match = _WORD.fullmatch(tree) if isinstance(tree, str) else None
    if match and match["unit"] == "up":
        yield path, str(tree)
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        if path or key in _TIMED_BY_BATCH:
            yield from written_in_updates(value, f"{path}.{key}".lstrip("."))


def settable(path: str) -> str:
    """The key that an override replaces for a path: a list is replaced as a whole.

    >>> settable("learning_rate.schedule.boundaries.1")
    'learning_rate.schedule.boundaries'
    """
    return ".".join(takewhile(lambda part: not part.isdecimal(), path.split(".")))


def first_sample_at(position: float, num_train: int) -> int:
    """The smallest number of samples s with `s / num_train >= position`, compared as floats.

    A decimal position that is a whole number of samples gives exactly that number: decimal and quotient round alike.

    >>> first_sample_at(0.3, 10), first_sample_at(0.31, 10), first_sample_at(30.0, 1281167)
    (3, 4, 38435010)
    """
    samples = math.ceil(Fraction(position) * num_train)
    while samples > 0 and (samples - 1) / num_train >= position:
        samples -= 1
    return samples


def multiple(every: float, times: int, offset: float = 0.0) -> float:
    """`offset + times * every` as if neither had ever been rounded to a float.

    >>> 3 * 0.1, multiple(0.1, 3), multiple(0.1, 2, offset=0.1)
    (0.30000000000000004, 0.3, 0.3)
    """
    return float((as_written(offset) if offset else 0) + times * as_written(every))


def last_multiple(epoch: float, every: float) -> float:
    """The largest multiple of `every` that is not after `epoch`.

    >>> last_multiple(0.3, 0.1), last_multiple(2.9, 1.0)
    (0.3, 2.0)
    """
    if float(every).is_integer() and epoch < _COUNTED:  # exact, and fifty times as fast
        return float(epoch // every * every)
    return multiple(every, _times(epoch, every))


def next_multiple(epoch: float, every: float, offset: float = 0.0) -> float:
    """The smallest multiple of `every`, counted from `offset`, that is after `epoch`.

    >>> next_multiple(0.3, 0.1), next_multiple(2.9, 1.0), next_multiple(2.9, 1.0, offset=0.5)
    (0.4, 3.0, 3.5)
    """
    return multiple(every, _times(epoch, every, offset) + 1, offset)


def _times(epoch: float, every: float, offset: float = 0.0) -> int:
    """How often `every` fits between `offset` and `epoch`."""
    times = int((Fraction(epoch) - (as_written(offset) if offset else 0)) / as_written(every)) + 1
    while multiple(every, times, offset) > epoch:
        times -= 1
    return times
