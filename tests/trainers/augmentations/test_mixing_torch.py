"""Mixes against timm's on the same draws; run where it is installed."""

from dataclasses import dataclass

import numpy as np
import pytest

from recipes.planning.division import MicroBatch
from trainers.augmentations.mixing import CutMix, GroupMixing, Mixup
from trainers.losses import soft_targets

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
timm_mixup = pytest.importorskip("timm.data.mixup")


@dataclass
class Given:
    """Draws that are given: whether to mix, the share, and row and column of a centre."""

    share: float
    centre: tuple[int, ...] = ()

    def uniform(self):
        return 0.0

    def symmetric_beta(self, alpha):
        return self.share

    def integers(self, bound):
        first, *self.centre = self.centre
        return first


@pytest.mark.parametrize(
    ("size", "share", "sides"),
    [((8, 8), 0.75, (4, 4)), ((8, 8), 0.4375, (6, 6)), ((12, 20), 0.48, (8, 14)), ((12, 20), 0.9559, (2, 4))],
)
def test_rectangle_and_corrected_share_of_cutmix_are_timms_where_sides_are_even(size, share, sides):
    # timm 1.0.31 gives an odd side the pixel that the authors' code drops.
    assert tuple(int(length * np.sqrt(1 - share)) for length in size) == sides
    own, partners = np.zeros((1, 1, *size), np.float32), np.ones((1, 1, *size), np.float32)
    for seed in range(20):
        np.random.seed(seed)
        centre = tuple(int(np.random.randint(0, length)) for length in size)
        np.random.seed(seed)
        (top, bottom, left, right), expected = timm_mixup.cutmix_bbox_and_lam((1, *size), share)
        mixed, found = CutMix(alpha=1.0)(own, partners, Given(share=share, centre=centre))
        pasted = np.zeros(size)
        pasted[top:bottom, left:right] = 1
        assert (mixed[0, 0] == pasted).all()
        assert found == pytest.approx(expected, abs=1e-15)


def test_partners_images_and_smoothed_targets_of_a_group_are_timms():
    draws = np.random.default_rng(0)
    images, labels = draws.standard_normal((16, 3, 8, 8)).astype(np.float32), draws.integers(10, size=16)
    mixing = GroupMixing(mixes=(Mixup(alpha=0.4),), seed=0, num_classes=10)
    part = MicroBatch(offset=0, size=16, num_groups=1)
    mixed, targets = mixing.load(part, samples=0, norm_span=16, load=lambda at: (images[at], labels[at]))

    _, share = Mixup(alpha=0.4)(images, images, _draws_of_the_group())
    x = torch.tensor(images)
    expected = x * share + x.flip(0) * (1 - share)
    np.testing.assert_allclose(mixed, expected.numpy(), rtol=0, atol=1e-6)
    smoothed = timm_mixup.mixup_target(torch.tensor(labels), 10, lam=share, smoothing=0.1).numpy()
    found = soft_targets(targets, like=np.zeros((16, 10), np.float32), label_smoothing=0.1)
    np.testing.assert_allclose(found, smoothed, rtol=0, atol=1e-6)


def _draws_of_the_group():
    from recipes.planning.random_bits import draws

    keyed = draws(0, "mix", 0)
    keyed.integers(1)  # which mix
    return keyed
