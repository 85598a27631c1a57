"""Draws: fixed for ever, independent of each other and of the order in which they are made."""

import hashlib

import numpy as np
import pytest
from scipy.special import betainc

from recipes.planning.random_bits import ManyDraws, draws


def test_raw_bits_are_those_of_philox_for_a_key_and_counter_worked_out_here():
    def philox(counter, key):
        """Philox4x64-10 of Salmon et al. 2011 on Python integers."""
        mask = (1 << 64) - 1
        multipliers, weyl = (0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
        for _ in range(10):
            first, second = counter[0] * multipliers[0], counter[2] * multipliers[1]
            counter = [
                (second >> 64) ^ counter[1] ^ key[0],
                second & mask,
                (first >> 64) ^ counter[3] ^ key[1],
                first & mask,
            ]
            key = [(k + w) & mask for k, w in zip(key, weyl, strict=True)]
        return counter

    purpose = int.from_bytes(hashlib.blake2b(b"permutation", digest_size=8).digest(), "little")
    expected = philox([1, 5, 6, 7], [42, purpose])  # NumPy counts before it draws
    assert [int(bits) for bits in draws(42, "permutation", 5, 6, 7).bits(4)] == expected


@pytest.mark.parametrize("seed", [0, -5, 3 + 2**70])
def test_draws_of_many_streams_are_those_of_each(seed):
    epochs, indices = np.array([0, 3, 7, -1, 2**40]), np.array([5, -2, 123456789012, 2**62, 0])
    many = ManyDraws(seed, "augmentation", epochs, indices, 2)
    together = [many.integers(9), many.uniform(), many.integers(2**32), many.uniform(), many.integers(7)]
    for epoch, index, *got in zip(epochs, indices, *together, strict=True):
        one = draws(seed, "augmentation", int(epoch), int(index), 2)
        assert got == [one.integers(9), one.uniform(), one.integers(2**32), one.uniform(), one.integers(7)]


def test_streams_differ_by_seed_purpose_and_every_word():
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 0, 1), (0, "a", 0, 0, 1)]
    assert len({int(draws(*key).bits(1)[0]) for key in keys}) == len(keys)


def test_a_negative_or_huge_seed_is_taken_modulo_two_to_the_64():
    assert draws(-1, "a").uniform() == draws(2**64 - 1, "a").uniform()


def test_a_fourth_word_is_refused():
    with pytest.raises(ValueError, match="at most 3 words"):
        draws(0, "a", 1, 2, 3, 4)


def test_numbers_are_made_of_the_upper_bits_of_words():
    words = [int(bits) for bits in draws(3, "u").bits(6)]
    shares = [(bits >> 11) / 2**53 for bits in words]
    assert draws(3, "u").uniforms(6).tolist() == shares
    assert draws(3, "u").uniform() == shares[0]
    assert draws(3, "u").integers(1000) == words[0] * 1000 >> 64
    radius, angle = np.sqrt(-2 * np.log1p(np.negative(shares[:3]))), 2 * np.pi * np.array(shares[3:])
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    np.testing.assert_allclose(draws(3, "u").normals(5), expected[:5], rtol=1e-12)


def betas(alpha, count=20_000):
    keyed = draws(0, "beta")
    return np.array([keyed.symmetric_beta(alpha) for _ in range(count)])


def distance(result, cdf):
    """The largest difference between the distribution of `result` and `cdf`."""
    expected, steps = cdf(np.sort(result)), np.arange(len(result) + 1) / len(result)
    return max(abs(expected - steps[1:]).max(), abs(expected - steps[:-1]).max())


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.4, 1.0, 2.0, 30.0])
def test_symmetric_betas_have_their_moments_and_their_distribution(alpha):
    result = betas(alpha)
    assert result.min() >= 0
    assert result.max() <= 1
    count, variance = len(result), 1 / (4 * (2 * alpha + 1))
    fourth = 3 * variance**2 * (2 * alpha + 1) / (2 * alpha + 3)
    assert abs(result.mean() - 0.5) < 5 * np.sqrt(variance / count)
    assert abs(((result - 0.5) ** 2).mean() - variance) < 5 * np.sqrt((fourth - variance**2) / count)
    lower = result[result < 0.5]  # near 1 a double cannot tell shares apart that near 0 it can
    assert abs(len(lower) - count / 2) < 5 * np.sqrt(count) / 2
    # Kolmogorov and Smirnov: above 1.63 / sqrt(n) one time in a hundred; the key is fixed.
    assert distance(lower, lambda x: 2 * betainc(alpha, alpha, x)) < 1.63 / np.sqrt(len(lower))
    if alpha > 0.1:
        assert distance(result, lambda x: betainc(alpha, alpha, x)) < 1.63 / np.sqrt(count)


def test_a_symmetric_beta_is_its_formula_on_two_words():
    for alpha in (0.3, 1.0, 4.0):
        u, v = draws(5, "beta").uniforms(2)
        t = np.sqrt(u ** (-1 / alpha) - 1) * np.cos(2 * np.pi * v)
        assert draws(5, "beta").symmetric_beta(alpha) == pytest.approx(0.5 + t / (2 * np.sqrt(1 + t * t)), rel=1e-12)


def test_small_shares_keep_their_digits_and_no_alpha_overflows():
    result = betas(0.02, 2_000)
    tiny = result[(result > 0) & (result < 1e-20)]
    assert len(tiny) > 200
    assert len(np.unique(tiny)) == len(tiny)
    extreme = betas(1e-4, 200)
    assert ((extreme < 1e-9) | (extreme == 1)).all()
    assert 60 < extreme.sum() < 140
    assert betas(1e9, 50) == pytest.approx(0.5, abs=1e-4)
