"""Mixes: what they do to images and shares, by hand and against transcriptions of their sources."""

import math

import numpy as np
import pytest

from recipes.planning.random_bits import draws
from trainers.augmentations import mixing
from trainers.augmentations.mixing import CutMix, Mixup

MIXES = (Mixup(alpha=0.4), CutMix(alpha=1.0))


def images(size=(3, 9, 7), seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((4, *size)).astype(np.float32) for _ in range(2)]


def test_no_mix_is_missing_here():
    assert sorted(type(mix).__name__ for mix in MIXES) == mixing.__all__


@pytest.mark.parametrize("mix", MIXES)
def test_the_share_is_the_weight_of_the_own_image_and_nothing_given_changes(mix):
    own, partners = np.ones((2, 3, 32, 32), np.float32), np.zeros((2, 3, 32, 32), np.float32)
    shares = []
    for place in range(200):
        mixed, share = mix(own, partners, draws(0, "mix", place))
        assert mixed.dtype == np.float32
        assert mixed.shape == own.shape
        np.testing.assert_allclose(mixed.mean(axis=(1, 2, 3)), share, atol=1e-6)
        shares.append(share)
    assert (own == 1).all()
    assert (partners == 0).all()
    assert min(shares) < 0.3
    assert max(shares) > 0.7


@pytest.mark.parametrize("mix", MIXES)
def test_a_part_of_a_group_is_mixed_as_the_whole_group_is(mix):
    own, partners = images()
    for place in range(20):
        whole, share = mix(own, partners, draws(0, "mix", place))
        for part in (slice(0, 1), slice(1, 4)):
            found, same = mix(own[part], partners[part], draws(0, "mix", place))
            assert (found == whole[part]).all()
            assert same == share


def test_mixup_is_its_equation():
    own, partners = images()
    mixed, share = Mixup(alpha=0.2)(own, partners, draws(3, "mix", 5))
    keyed = draws(3, "mix", 5)
    keyed.uniform()  # whether to mix
    assert share == keyed.symmetric_beta(0.2)
    expected = share * own.astype(np.float64) + (1 - share) * partners
    np.testing.assert_allclose(mixed, expected, rtol=1e-6, atol=1e-6)


def test_cutmix_is_the_rectangle_of_its_authors():
    """Their `rand_bbox` for the same draws, on indices of its own."""
    own, partners = images()
    height, width = own.shape[2:]
    for place in range(100):
        mixed, share = CutMix(alpha=1.0)(own, partners, draws(0, "mix", place))
        keyed = draws(0, "mix", place)
        keyed.uniform()  # whether to mix
        side = math.sqrt(1 - keyed.symmetric_beta(1.0))
        cut_height, cut_width = math.floor(height * side), math.floor(width * side)
        row, column = keyed.integers(height), keyed.integers(width)
        expected, pasted = own.copy(), 0
        for y in range(row - cut_height // 2, row + cut_height // 2):
            for x in range(column - cut_width // 2, column + cut_width // 2):
                if 0 <= y < height and 0 <= x < width:
                    expected[:, :, y, x] = partners[:, :, y, x]
                    pasted += 1
        assert (mixed == expected).all()
        assert share == pytest.approx(1 - pasted / (height * width), abs=1e-15)


def test_the_share_of_cutmix_is_larger_than_what_was_drawn_where_the_edge_clips():
    own, partners = images(size=(1, 64, 64))
    drawn, kept = [], []
    for place in range(500):
        keyed = draws(0, "mix", place)
        keyed.uniform()
        drawn.append(keyed.symmetric_beta(1.0))
        kept.append(CutMix(alpha=1.0)(own, partners, draws(0, "mix", place))[1])
    assert (np.array(kept) >= np.array(drawn) - 1e-12).all()
    # Mean of r over U(0, 1) is 1/2. A side s < 1 around a uniform centre keeps s - s^2/4 of itself within the unit
    # interval, so the pasted area is the mean of (s - s^2/4)^2 with s^2 uniform: 1/2 - 1/5 + 1/48.
    assert np.mean(kept) == pytest.approx(1 - (1 / 2 - 1 / 5 + 1 / 48), abs=0.05)


@pytest.mark.parametrize("mix", MIXES)
def test_probability_is_how_many_groups_are_mixed(mix):
    own, partners = images()
    for probability, expected in ((0.0, 0), (0.3, 300), (1.0, 1000)):
        some = type(mix)(alpha=mix.alpha, probability=probability)
        mixed = [some(own, partners, draws(0, "mix", place)) for place in range(1000)]
        untouched = sum(image is own and share == 1.0 for image, share in mixed)
        assert abs(1000 - untouched - expected) <= 5 * math.sqrt(1000 * probability * (1 - probability))


@pytest.mark.parametrize("mix", [Mixup, CutMix])
@pytest.mark.parametrize("fields", [{"alpha": 0}, {"alpha": -1.0}, {"alpha": 1.0, "probability": 1.1}])
def test_what_is_out_of_range_is_refused(mix, fields):
    with pytest.raises(ValueError, match=rf"{mix.__name__}\.(alpha|probability) must be"):
        mix(**fields)
