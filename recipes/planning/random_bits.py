"""Random numbers as a function of what they are for: raw bits of a counter-based generator.

No generator state is kept, so no earlier draw, on this worker or another, changes a draw. Only NumPy's raw Philox
output is used: the algorithm fixes its bits, while NumPy does not promise to keep the streams of its distributions.
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".)
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

_WORD = (1 << 64) - 1
_HALF = np.uint64(32)
_LOWER = np.uint64((1 << 32) - 1)
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157  # of Philox4x64, and what is added to its key each round
_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10


def word(text: str) -> int:
    """A string as a 64-bit word of a key: the first 8 bytes of its BLAKE2b digest, little endian.

    >>> word("permutation") == word("permutation"), word("a") == word("b")
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass
class Draws:
    """A sequence of draws from one Philox stream; every method consumes whole 64-bit words."""

    _seed: int
    _purpose: str
    _words: tuple[int, ...]
    _generator: np.random.Philox | None = field(default=None, repr=False)

    def _made(self) -> np.random.Philox:
        """The generator, made by the first draw: making it takes longer than loading a small image."""
        if self._generator is None:
            # Philox increments the first word of its counter; the others hold `words`.
            counter = np.array([0, *(w & _WORD for w in self._words), 0, 0, 0][:4], dtype=np.uint64)
            self._generator = np.random.Philox(_key(self._seed & _WORD, self._purpose), counter=counter)
        return self._generator

    def bits(self, count: int) -> np.ndarray:
        """`count` raw words, uint64 of shape (count,)."""
        return self._made().random_raw(count)

    def uniforms(self, count: int) -> np.ndarray:
        """`count` numbers in [0, 1), float64: the upper 53 bits of a word over 2**53."""
        return (self.bits(count) >> np.uint64(11)) * 2.0**-53

    def uniform(self) -> float:
        """One number in [0, 1)."""
        return (int(self._made().random_raw()) >> 11) * 2.0**-53

    def integers(self, bound: int) -> int:
        """One integer in [0, bound): the upper word of word * bound (bias below bound / 2**64)."""
        return (int(self._made().random_raw()) * bound) >> 64

    def normals(self, count: int) -> np.ndarray:
        """`count` standard normal numbers, float64, by Box and Muller from pairs of uniforms."""
        pairs = (count + 1) // 2
        u = self.uniforms(2 * pairs).reshape(2, pairs)
        radius = np.sqrt(-2.0 * np.log(1.0 - u[0]))
        angle = 2.0 * np.pi * u[1]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def symmetric_beta(self, alpha: float) -> float:
        """One number in [0, 1] from Beta(alpha, alpha), in closed form from two words.

            1/2 + t / (2 sqrt(1 + t^2)),   t = sqrt(u^(-1/alpha) - 1) cos(2 pi v)

        t sqrt(2 alpha) has Student's distribution with 2 alpha degrees of freedom (Bailey 1994, "Polar generation of
        random variates with the t-distribution"; Devroye 1996 has the beta in one line; neither checked, a test is).
        Written so that nothing overflows for a small alpha and the smaller share keeps all its digits.

        Args:
            alpha: above 0; 1 is uniform, smaller ones favour the ends, larger ones the middle.
        """
        w = self.uniform() ** (1.0 / alpha)  # 1 / (1 + t^2 / c^2)
        c = math.cos(2.0 * math.pi * self.uniform())
        rest = (1.0 - w) * c * c
        smaller = 0.5 * w / (w + rest) / (1.0 + math.sqrt(rest / (w + rest))) if w + rest > 0 else 0.0
        return smaller if c < 0 else 1.0 - smaller


def draws(seed: int, purpose: str, *words: int) -> Draws:
    """The stream of draws for one purpose.

    Args:
        seed: the recipe's seed; any integer, taken modulo 2**64.
        purpose: what is drawn ("permutation", "augmentation", ...): keeps the streams of one seed apart.
        words: at most three integers that key the draws: epoch, index, place. Each is taken modulo 2**64.
    Raises:
        ValueError: more than three words.

    >>> a, b = draws(0, "permutation", 3), draws(0, "permutation", 3)
    >>> a.uniform() == b.uniform()
    True
    """
    if len(words) > 3:
        raise ValueError(f"draws takes at most 3 words beside the purpose, got {len(words)}")
    return Draws(seed, purpose, words)


class ManyDraws:
    """The draws of many streams, each number an array: element i is the number of `draws(seed, purpose, ...)` with the
    i-th of each words.

    Args:
        seed, purpose: see `draws`.
        words: as of `draws`: whole numbers, or int64 arrays of one length.
    """

    def __init__(self, seed: int, purpose: str, *words: Any) -> None:
        self._key = seed & _WORD, word(purpose)
        self._words = [np.asarray(each, np.int64).astype(np.uint64) for each in (*words, 0, 0, 0)[:3]]
        self._blocks, self._left = 0, deque[np.ndarray]()

    def uniform(self) -> np.ndarray:
        """See `Draws.uniform`."""
        return (self._bits() >> np.uint64(11)) * 2.0**-53

    def integers(self, bound: int) -> np.ndarray:
        """See `Draws.integers`; int64, of a bound up to 2**32."""
        return _upper(self._bits(), bound).astype(np.int64)

    def _bits(self) -> np.ndarray:
        if not self._left:
            self._blocks += 1
            self._left.extend(_philox(self._key, [np.uint64(self._blocks), *self._words]))
        return self._left.popleft()


def _philox(key: tuple[int, int], counter: Sequence[Any]) -> Sequence[np.ndarray]:
    """The four words of Philox4x64-10 at counters of which each word is a number or an array."""
    a, b, c, d = np.broadcast_arrays(*counter)
    of_a, of_c = _MULTIPLIERS
    for number in range(_ROUNDS):
        first, second = (np.uint64((k + number * step) & _WORD) for k, step in zip(key, _STEPS, strict=True))
        b, d = _upper(c, of_c) ^ b ^ first, _upper(a, of_a) ^ d ^ second
        a, b, c, d = b, c * np.uint64(of_c), d, a * np.uint64(of_a)
    return a, b, c, d


def _upper(words: np.ndarray, factor: int) -> np.ndarray:
    """The upper word of each product of 64-bit words."""
    low, high = np.uint64(factor) & _LOWER, np.uint64(factor) >> _HALF
    words_low, words_high = words & _LOWER, words >> _HALF
    middle = words_low * high + (words_low * low >> _HALF)
    return words_high * high + (middle >> _HALF) + ((words_high * low + (middle & _LOWER)) >> _HALF)


class _Key(ISeedSequence):
    """Gives Philox its key. With `key=`, NumPy would first read a seed from the system, for nothing."""

    def __init__(self, *words: int) -> None:
        self._words = np.array(words, dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        assert (n_words, np.dtype(dtype)) == (len(self._words), self._words.dtype)
        return self._words


@functools.lru_cache(maxsize=256)
def _key(seed: int, purpose: str) -> _Key:
    return _Key(seed, word(purpose))
