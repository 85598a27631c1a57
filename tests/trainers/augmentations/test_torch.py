"""Colour changes, automatic augmentation and mixes against torchvision's and timm's; run where they are installed."""

import random
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from PIL import Image

from recipes.planning.division import MicroBatch
from recipes.planning.random_bits import draws
from trainers.augmentations import auto_augment, colour
from trainers.augmentations.auto_augment import Sampling, operated
from trainers.augmentations.mixing import CutMix, GroupMixing, Mixup
from trainers.losses import soft_targets

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
timm_augment = pytest.importorskip("timm.data.auto_augment")
timm_mixup = pytest.importorskip("timm.data.mixup")

GREY = 128
ENHANCEMENTS = ("Brightness", "Color", "Contrast", "Sharpness")
NAMES_OF_TIMM = ["AutoContrast", "Equalize", "Invert", "PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"]
NAMES_OF_TIMM += [f"{name}Increasing" for name in ENHANCEMENTS]
NAMES_OF_TIMM += ["Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"]
NAMES_OF_TORCHVISION = ["Identity", "AutoContrast", "Equalize", "Posterize", "Solarize", *ENHANCEMENTS]
NAMES_OF_TORCHVISION += ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"]


def photo(height=40, width=30):
    """Smooth colours with edges: moves and sharpness change it in earnest."""
    rows, columns = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(rows / (3 + k) + columns / (5 - k)) for k in range(3)]
    image_HWC = np.stack(waves, axis=2)
    image_HWC[10:20, 5:25, 1] = 250
    return image_HWC.astype(np.uint8)


@pytest.mark.parametrize(
    ("ours", "theirs", "amounts"),
    [
        (colour._brightened, "adjust_brightness", (0.6, 1.0, 1.4)),
        (colour._contrasted, "adjust_contrast", (0.6, 1.0, 1.4)),
        (colour._saturated, "adjust_saturation", (0.6, 1.0, 1.4)),
        (colour._turned, "adjust_hue", (-0.5, -0.1, 0.2)),
    ],
)
def test_colour_changes_are_torchvisions(ours, theirs, amounts):
    from torchvision.transforms import functional

    image_CHW = torch.from_numpy(photo().transpose(2, 0, 1) / np.float32(255))
    for amount in amounts:
        expected = getattr(functional, theirs)(image_CHW, amount).numpy().transpose(1, 2, 0) * 255
        actual = np.clip(ours(photo().astype(np.float32), amount), 0, 255)
        # torchvision's grey is 0.2989 R + 0.587 G + 0.114 B
        np.testing.assert_allclose(actual, expected, atol=0.02)


def test_the_operations_of_rand_augment_are_the_increasing_ones_of_timm():
    assert sorted(NAMES_OF_TIMM) == sorted(timm_augment._RAND_INCREASING_TRANSFORMS)
    assert timm_augment.rand_augment_ops(magnitude=9)[0].prob == auto_augment.PROBABILITY
    assert timm_augment._LEVEL_DENOM == auto_augment.LARGEST_MAGNITUDE


def of_timm(name, magnitude, resample):
    """The results of one of timm's operations with either sign."""
    image, actual = Image.fromarray(photo()), {}
    for seed in range(8):
        random.seed(seed)
        level = timm_augment.LEVEL_TO_ARG[name]
        values = level(magnitude, {"translate_pct": 0.45}) if level else ()
        made = timm_augment.NAME_TO_OP[name](image, *values, fillcolor=(GREY,) * 3, resample=resample)
        actual[np.asarray(made).tobytes()] = values
    return actual


@pytest.mark.parametrize("place", range(15), ids=NAMES_OF_TIMM)
@pytest.mark.parametrize("magnitude", [0, 3, 6.5, 9])
@pytest.mark.parametrize("filter_", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
def test_rand_augment_gives_timms_pixels(place, magnitude, filter_):
    sampling = Sampling(filter_=filter_, fill=GREY)
    both = [auto_augment.rand_augment_operations(magnitude / 10, sign, sampling, 40, 30) for sign in (-1, 1)]
    ours = {operated(photo(), [operations[place]]).tobytes() for operations in both}
    assert ours == set(of_timm(NAMES_OF_TIMM[place], magnitude, filter_))


@pytest.mark.parametrize("place", range(14), ids=NAMES_OF_TORCHVISION)
@pytest.mark.parametrize("number", [0, 7, 14, 30])
def test_trivial_augment_gives_torchvisions_pixels(place, number):
    from torchvision.transforms import InterpolationMode, TrivialAugmentWide, autoaugment

    space = TrivialAugmentWide()._augmentation_space(31)
    assert sorted(space) == sorted(NAMES_OF_TORCHVISION)
    name = NAMES_OF_TORCHVISION[place]
    magnitudes, signed = space[name]
    magnitude = float(magnitudes[number]) if magnitudes.ndim else 0.0
    apply = partial(autoaugment._apply_op, interpolation=InterpolationMode.BILINEAR, fill=None)
    signs = (-1, 1) if signed else (1,)
    theirs = [np.asarray(apply(Image.fromarray(photo()), name, sign * magnitude)).astype(int) for sign in signs]
    for sign in (-1, 1):
        ours = operated(photo(), [auto_augment.trivial_augment_operations(number / 30, sign)[place]]).astype(int)
        # Its magnitudes are float32, and its shears go through an angle: one level at the most.
        assert min(np.abs(ours - other).max() for other in theirs) <= 1


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
        mixed, actual = CutMix(alpha=1.0)(own, partners, Given(share=share, centre=centre))
        pasted = np.zeros(size)
        pasted[top:bottom, left:right] = 1
        assert (mixed[0, 0] == pasted).all()
        assert actual == pytest.approx(expected, abs=1e-15)


def test_partners_images_and_smoothed_targets_of_a_group_are_timms():
    generator = np.random.default_rng(0)
    images, labels = generator.standard_normal((16, 3, 8, 8)).astype(np.float32), generator.integers(10, size=16)
    mixing = GroupMixing(mixes=(Mixup(alpha=0.4),), seed=0, num_classes=10)
    part = MicroBatch(offset=0, size=16, num_groups=1, first_group=0)
    mixed, targets = mixing.load(part, samples=0, norm_span=16, load=lambda at: (images[at], labels[at]))

    keyed = draws(0, "mix", 0)
    keyed.integers(1)  # which mix
    _, share = Mixup(alpha=0.4)(images, images, keyed)
    x = torch.tensor(images)
    expected = x * share + x.flip(0) * (1 - share)
    np.testing.assert_allclose(mixed, expected.numpy(), rtol=0, atol=1e-6)
    smoothed = timm_mixup.mixup_target(torch.tensor(labels), 10, lam=share, smoothing=0.1).numpy()
    actual = soft_targets(targets, like=np.zeros((16, 10), np.float32), label_smoothing=0.1)
    np.testing.assert_allclose(actual, smoothed, rtol=0, atol=1e-6)
