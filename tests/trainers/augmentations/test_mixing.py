"""Mixes by hand and against their sources; mixing by norm groups gives the same for any division over workers."""

import math
import tracemalloc

import numpy as np
import pytest

from recipes.planning.division import MicroBatch, divide
from recipes.planning.random_bits import draws
from recipes.planning.stream import Stream
from trainers.augmentations.mixing import CutMix, GroupMixing, Mixup

MIXES = (Mixup(alpha=0.4), CutMix(alpha=1.0))


def images(size=(3, 9, 7), seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((4, *size)).astype(np.float32) for _ in range(2)]


@pytest.mark.parametrize("mix", MIXES)
def test_the_share_is_the_weight_of_the_own_image_and_nothing_given_changes(mix):
    own, partners = np.ones((2, 3, 32, 32), np.float32), np.zeros((2, 3, 32, 32), np.float32)
    shares = []
    for position in range(200):
        mixed, share = mix(own, partners, draws(0, "mix", position))
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
    for position in range(20):
        whole, share = mix(own, partners, draws(0, "mix", position))
        for part in (slice(0, 1), slice(1, 4)):
            actual, same = mix(own[part], partners[part], draws(0, "mix", position))
            assert (actual == whole[part]).all()
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
    for position in range(100):
        mixed, share = CutMix(alpha=1.0)(own, partners, draws(0, "mix", position))
        keyed = draws(0, "mix", position)
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
    for position in range(500):
        keyed = draws(0, "mix", position)
        keyed.uniform()
        drawn.append(keyed.symmetric_beta(1.0))
        kept.append(CutMix(alpha=1.0)(own, partners, draws(0, "mix", position))[1])
    assert (np.array(kept) >= np.array(drawn) - 1e-12).all()
    # Mean of r over U(0, 1) is 1/2. A side s < 1 around a uniform centre keeps s - s^2/4 of itself within the unit
    # interval, so the pasted area is the mean of (s - s^2/4)^2 with s^2 uniform: 1/2 - 1/5 + 1/48.
    assert np.mean(kept) == pytest.approx(1 - (1 / 2 - 1 / 5 + 1 / 48), abs=0.05)


@pytest.mark.parametrize("mix", MIXES)
def test_probability_is_how_many_groups_are_mixed(mix):
    own, partners = images()
    for probability, expected in ((0.0, 0), (0.3, 300), (1.0, 1000)):
        some = type(mix)(alpha=mix.alpha, probability=probability)
        mixed = [some(own, partners, draws(0, "mix", position)) for position in range(1000)]
        untouched = sum(image is own and share == 1.0 for image, share in mixed)
        assert abs(1000 - untouched - expected) <= 5 * math.sqrt(1000 * probability * (1 - probability))


@pytest.mark.parametrize("mix", [Mixup, CutMix])
@pytest.mark.parametrize("fields", [{"alpha": 0}, {"alpha": -1.0}, {"alpha": 1.0, "probability": 1.1}])
def test_what_is_out_of_range_is_refused(mix, fields):
    with pytest.raises(ValueError, match=rf"{mix.__name__}\.(alpha|probability) must be"):
        mix(**fields)


CLASSES, SAMPLES, BATCH, SPAN, START = 7, 50, 96, 16, 1000  # the update straddles epochs, and copies of a sample
STREAM = Stream(seed=3, num_samples=SAMPLES, repeats=3)
MIXING = GroupMixing(mixes=(Mixup(alpha=0.4), CutMix(alpha=1.0)), seed=3, num_classes=CLASSES)
# Whole groups on a worker, alone or several in a micro-batch; groups on teams of 2 or 3, even and uneven parts.
DIVISIONS = [(1, 16), (1, 40), (1, 96), (2, 16), (3, 32), (5, 96), (2, 8), (3, 6), (3, 10), (4, 9), (7, 5), (8, 96)]


def load(positions, seen=None):
    """Images and labels that are a function of the sample and of its copy's draws."""
    keys, indices = STREAM.at(positions)
    if seen is not None:
        seen.extend(positions)
    images = [
        draws(0, "image", int(key), int(index)).uniforms(2 * 6 * 6).reshape(2, 6, 6)
        for key, index in zip(keys, indices, strict=True)
    ]
    return np.stack(images).astype(np.float32), (indices % CLASSES).astype(np.int32)


def expected():
    """The update, mixed here sample by sample from the mirror image of its group."""
    images, labels = load(range(START, START + BATCH))
    mixed, targets = np.empty_like(images), np.zeros((BATCH, CLASSES))
    for position in range(BATCH):
        first = position // SPAN * SPAN
        partner = first + SPAN - 1 - (position - first)
        keyed = draws(3, "mix", START + first)
        mix = MIXING.mixes[keyed.integers(2)]
        both = images[[position]], images[[partner]]
        mixed[[position]], share = mix(*both, keyed)
        targets[position, labels[position]] += share
        targets[position, labels[partner]] += 1 - share
    return mixed, targets.astype(np.float32)


@pytest.mark.parametrize(("workers", "micro_batch_size"), DIVISIONS)
def test_every_division_gives_the_images_and_targets_of_the_whole_update(workers, micro_batch_size):
    division = divide(global_batch_size=BATCH, norm_span=SPAN, workers=workers, micro_batch_size=micro_batch_size)
    images, targets = expected()
    seen = np.zeros(BATCH, dtype=int)
    for rank in range(workers):
        for part in division.micro_batches(rank):
            here = slice(part.offset, part.offset + part.size)
            actual, shares = MIXING.load(part, samples=START, norm_span=SPAN, load=load)
            assert (actual == images[here]).all(), (rank, part)
            assert actual.dtype == shares.dtype == np.float32
            np.testing.assert_allclose(shares, targets[here], rtol=0, atol=6e-8)
            seen[here] += 1
    assert (seen == 1).all()


def test_both_mixes_are_drawn_and_one_for_the_whole_group():
    _, targets = expected()
    smaller = np.sort(targets, axis=1)[:, -2].reshape(-1, SPAN)
    assert (targets.sum(axis=1) == 1).all()
    kinds = {MIXING.mixes[draws(3, "mix", START + first).integers(2)] for first in range(0, BATCH, SPAN)}
    assert kinds == set(MIXING.mixes)
    assert all(len(set(np.round(group[group > 0], 6))) <= 2 for group in smaller), "a share, or one minus it"


def test_a_whole_group_loads_nothing_twice_and_a_part_only_the_partners_it_lacks():
    loaded = []
    part = MicroBatch(offset=16, size=32, num_groups=2, first_group=1)
    MIXING.load(part, samples=0, norm_span=16, load=lambda p: load(p, loaded))
    assert loaded == list(range(16, 48))
    loaded.clear()
    middle = MicroBatch(offset=6, size=5, num_groups=1, first_group=0)  # 6 to 10 of 16: their mirror images are 9 to 5
    MIXING.load(middle, samples=0, norm_span=16, load=lambda p: load(p, loaded))
    assert loaded == [6, 7, 8, 9, 10, 5]


def test_the_middle_of_an_odd_group_keeps_its_label():
    part = MicroBatch(offset=0, size=5, num_groups=1, first_group=0)
    images, labels = load(range(5))
    mixed, targets = MIXING.load(part, samples=0, norm_span=5, load=load)
    assert targets[2, labels[2]] == 1
    np.testing.assert_allclose(mixed[2], images[2], rtol=1e-6)


def test_another_seed_or_another_place_in_the_stream_mixes_otherwise():
    part = MicroBatch(offset=0, size=16, num_groups=1, first_group=0)
    shares = [
        GroupMixing(mixes=(Mixup(alpha=1.0),), seed=seed, num_classes=CLASSES)
        .load(part, samples=samples, norm_span=16, load=lambda positions: load([p % 16 for p in positions]))[1]
        .tolist()
        for seed, samples in ((0, 0), (1, 0), (0, 16))
    ]
    assert shares[0] != shares[1]
    assert shares[0] != shares[2]


def test_targets_take_memory_for_the_samples_and_not_for_classes_squared():
    mixing = GroupMixing(mixes=(Mixup(alpha=1.0),), seed=0, num_classes=2000)
    division = divide(global_batch_size=4, norm_span=4, workers=1, micro_batch_size=4)
    tracemalloc.start()
    try:
        mixing.load(division.micro_batches(0)[0], samples=0, norm_span=4, load=load)
        assert tracemalloc.get_traced_memory()[1] < 2000 * 2000
    finally:
        tracemalloc.stop()
