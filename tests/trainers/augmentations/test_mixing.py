"""Mixing norm group by norm group: the same images and targets for any division of an update over workers."""

import numpy as np
import pytest

from recipes.planning.division import MicroBatch, divide
from recipes.planning.random_bits import draws
from recipes.planning.stream import Stream
from trainers.augmentations.mixing import CutMix, GroupMixing, Mixup

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
    for place in range(BATCH):
        first = place // SPAN * SPAN
        partner = first + SPAN - 1 - (place - first)
        keyed = draws(3, "mix", START + first)
        mix = MIXING.mixes[keyed.integers(2)]
        both = images[[place]], images[[partner]]
        mixed[[place]], share = mix(*both, keyed)
        targets[place, labels[place]] += share
        targets[place, labels[partner]] += 1 - share
    return mixed, targets.astype(np.float32)


@pytest.mark.parametrize(("workers", "micro_batch_size"), DIVISIONS)
def test_every_division_gives_the_images_and_targets_of_the_whole_update(workers, micro_batch_size):
    division = divide(global_batch_size=BATCH, norm_span=SPAN, workers=workers, micro_batch_size=micro_batch_size)
    images, targets = expected()
    seen = np.zeros(BATCH, dtype=int)
    for rank in range(workers):
        for part in division.micro_batches(rank):
            here = slice(part.offset, part.offset + part.size)
            found, shares = MIXING.load(part, samples=START, norm_span=SPAN, load=load)
            assert (found == images[here]).all(), (rank, part)
            assert found.dtype == shares.dtype == np.float32
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


def test_every_mix_of_a_list_is_as_likely():
    counts = np.bincount([draws(0, "mix", 32 * group).integers(3) for group in range(3000)])
    assert abs(counts - 1000).max() < 5 * np.sqrt(3000 * (1 / 3) * (2 / 3))


def test_a_whole_group_loads_nothing_twice_and_a_part_only_the_partners_it_lacks():
    loaded = []
    MIXING.load(MicroBatch(offset=16, size=32, num_groups=2), samples=0, norm_span=16, load=lambda p: load(p, loaded))
    assert loaded == list(range(16, 48))
    loaded.clear()
    middle = MicroBatch(offset=6, size=5, num_groups=1)  # 6 to 10 of 16: their mirror images are 9 to 5
    MIXING.load(middle, samples=0, norm_span=16, load=lambda p: load(p, loaded))
    assert loaded == [6, 7, 8, 9, 10, 5]


def test_the_middle_of_an_odd_group_keeps_its_label():
    part = MicroBatch(offset=0, size=5, num_groups=1)
    images, labels = load(range(5))
    mixed, targets = MIXING.load(part, samples=0, norm_span=5, load=load)
    assert targets[2, labels[2]] == 1
    np.testing.assert_allclose(mixed[2], images[2], rtol=1e-6)


def test_another_seed_or_another_place_in_the_stream_mixes_otherwise():
    part = MicroBatch(offset=0, size=16, num_groups=1)
    shares = [
        GroupMixing(mixes=(Mixup(alpha=1.0),), seed=seed, num_classes=CLASSES)
        .load(part, samples=samples, norm_span=16, load=lambda positions: load([p % 16 for p in positions]))[1]
        .tolist()
        for seed, samples in ((0, 0), (1, 0), (0, 16))
    ]
    assert shares[0] != shares[1]
    assert shares[0] != shares[2]
