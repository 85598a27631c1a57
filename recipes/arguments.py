"""What the fields of all components share: refusals, beside `lr_schedules.units.require_number`, and late defaults.

`name` is class and field, for the message; `value` is what was given, of any type.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from lr_schedules.units import require_number

LONGEST_SIDE = 16_384  # pixels: such an image takes 0.8 GB, and a recipe may come from a stranger. Assumed.
# The side of an image: pixels, or the word for the recipe's `image_size`, which the pipeline replaces by pixels.
ImageSize = int | Literal["image_size"]

# Limits of a network, because a recipe may come from a stranger: each layer takes time to make, each weight memory.
# ResNet-152 has 60 million weights, the deepest network of arXiv 1512.03385 has 600 blocks. Assumed.
_MAX_WEIGHTS, _MAX_BLOCKS = 10**9, 2000


def younger(default: Any) -> Any:
    """The default of a key that was added after runs were made: left out of the resolved recipe where it has it."""
    return field(default=default, metadata={"younger": True})


def require_count(name: str, value: object, *, at_least: int = 1, at_most: int | None = None) -> None:
    """Refuse what is not a whole number from `at_least` to `at_most`; a bool is no count, nor is 16.0.

    Raises:
        ValueError: `value` is no int, too small or too large.

    >>> require_count("SmallCNN.width", 0)
    Traceback (most recent call last):
    ValueError: SmallCNN.width must be a whole number >= 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number >= {at_least}, got {value!r}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name} must be at most {at_most:,}, got {value!r}")


def require_buildable(name: str, *, weights: int, blocks: int = 0) -> None:
    """Refuse a network that nobody can mean: more than 10^9 weights of 3x3 convolutions, or 2,000 blocks of layers.

    Raises:
        ValueError: it has more.

    >>> require_buildable("SmallCNN.width", weights=90 * 10_000**2)
    Traceback (most recent call last):
    ValueError: SmallCNN.width must give at most 1,000,000,000 weights, not 9,000,000,000; make it smaller
    """
    for count, limit, unit in ((weights, _MAX_WEIGHTS, "weights"), (blocks, _MAX_BLOCKS, "blocks")):
        if count > limit:
            given = f"{count:,}" if count < 10**18 else "more than 10^18"
            raise ValueError(f"{name} must give at most {limit:,} {unit}, not {given}; make it smaller")


def require_size(name: str, value: object) -> None:
    """Refuse what is neither a whole number from 1 to 16,384 nor the word for the recipe's `image_size`.

    Raises:
        ValueError: neither.
    """
    if value != "image_size":
        require_count(name, value)
        if value > LONGEST_SIDE:
            raise ValueError(f"{name} must be at most {LONGEST_SIDE} pixels, got {value}")


def require_share(name: str, value: object) -> None:
    """Refuse what is not a number in [0, 1): a momentum, a probability to drop, a part that is given away.

    Raises:
        ValueError: `value` is no number or outside [0, 1).
    """
    require_number(name, value, at_least=0)
    if not value < 1:
        raise ValueError(f"{name} must be < 1, got {value!r}")


def require_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False; 0 and 1 are numbers.

    Raises:
        ValueError: `value` is no bool.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def require_range(name: str, value: object, *, at_most: float | None = None) -> None:
    """Refuse what is not a tuple of two numbers (low, high) with 0 < low <= high <= `at_most`.

    Raises:
        ValueError: no tuple of two numbers (a list is not hashable), not positive, backwards or too large.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"{name} must be two numbers (low, high), got {value!r}")
    for number in value:
        require_number(name, number, above=0, at_most=at_most)
    if value[0] > value[1]:
        raise ValueError(f"{name} must be (low, high) with low <= high, got {value!r}")
