"""The request to scale a recipe, and the change of a key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.rates import full_rate
from recipes.reading.load import load_tree
from recipes.reading.open import OpenedRecipe
from recipes.reading.read import value_at
from recipes.schema import Recipe

_BATCH = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<k>[kK]?)")
_K = 1024


def parse_batch(text: str, *, option: str = "--batch") -> int:
    """A global batch: `8192`, or `8k` for 8 * 1,024, as the literature writes it; `ksp` in positions is 1,000.

    Args:
        option: where it was written, for the error.
    Raises:
        InputRefused: not a number, or not a whole number of samples above 0.

    >>> parse_batch("32k"), parse_batch("1.5k"), parse_batch("3264")
    (32768, 1536, 3264)
    """
    match = _BATCH.fullmatch(text.strip())
    size = Fraction(match["number"]) * (_K if match["k"] else 1) if match else Fraction(0)
    if size.denominator != 1 or size < 1:
        raise InputRefused(f"{option} {text} is no batch; write 8192, or 8k for 8 * 1,024 samples")
    return int(size)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A key of the recipe, with its values before and after.

    Args:
        key: dotted path.
        before, after: its values as in YAML; None for a key that is missing. Equal if the key stays.
        reason, source: for the change, or for none, and its publication.
        written: whether the recipe gives the key; else it follows from others, and only writing it keeps its value.
    """

    key: str
    before: Any
    after: Any
    reason: str
    source: str = ""
    written: bool = True

    @property
    def moves(self) -> bool:
        """Whether the new recipe gives the key: its value changes, or would with the keys that it follows from."""
        return self.before != self.after or not self.written


@dataclass(frozen=True, kw_only=True)
class Request:
    """A recipe and the batch to derive it for.

    Args:
        opened: the recipe.
        batch: the new first global batch; every step of a ramp changes by the same factor.
        beyond: allow batches above those for which linear scaling is published.
    """

    opened: OpenedRecipe
    batch: int
    beyond: bool = False

    @cached_property
    def written(self) -> Mapping[str, Any]:
        """The recipe's merged tree as it was written, positions with their units."""
        return load_tree(self.opened.path)[0]

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.opened.recipe

    @property
    def kappa(self) -> Fraction:
        """The new batch over the old one."""
        return Fraction(self.batch, self.recipe.batch.global_.sizes[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The new global batches, one for each step of the ramp."""
        sizes = [size * self.kappa for size in self.recipe.batch.global_.sizes]
        if any(size.denominator != 1 for size in sizes):
            raise InputRefused(f"--batch {self.batch}: a step of the ramp would be no whole number of samples")
        return tuple(map(int, sizes))

    @property
    def rate(self) -> float:
        """The full rate at the old first batch."""
        formula = self.recipe.learning_rate
        first = self.recipe.batch.global_.sizes[0]
        return full_rate(formula.reference, first, rule=formula.rule, per=formula.per)

    @property
    def has_one_full_rate(self) -> bool:
        """Whether the full rate is that of the first batch all the time, also within the warmup."""
        formula, sizes = self.recipe.learning_rate, self.recipe.batch.global_.sizes
        if formula.rule == "none":
            return True
        follows = formula.scale_with == "current" and len(sizes) > 1
        return not follows and (formula.warmup is None or formula.warmup.target_batch == sizes[0])

    def value(self, key: str) -> Any:
        """The resolved value at a dotted key, None if there is none."""
        try:
            return value_at(self.opened.tree, key)
        except LookupError:
            return None

    def kept(self, key: str, reason: str, source: str = "") -> Change:
        """A `Change` of a key that stays."""
        return self.moved(key, self.value(key), reason, source)

    def moved(self, key: str, after: Any, reason: str, source: str = "") -> Change:
        """A change of a key to another value."""
        written = not self.opened.origins.get(key, "").startswith("rule: ")
        return Change(key=key, before=self.value(key), after=after, reason=reason, source=source, written=written)


def by_hand(kind: str) -> str:
    """The way out where no rule says how the rate of an optimizer follows the batch.

    >>> by_hand("Muon")
    'write batch.global and learning_rate by hand, or measure the rate with a search or a frontier'
    """
    own = "give its class a `rate_rule` (docs/own-components.md), " if "." in kind else ""
    return f"{own}write batch.global and learning_rate by hand, or measure the rate with a search or a frontier"


def rounded(value: float) -> float:
    """A value rounded to six significant digits, to be short in a file and free of a quotient's rounding error."""
    return float(f"{value:.6g}")
