"""Colour changes, RandAugment and TrivialAugment against torchvision's and timm's; run where they are installed."""

import random
from functools import partial

import numpy as np
import pytest
from PIL import Image

from trainers.augmentations import auto_augment, colour
from trainers.augmentations.auto_augment import Sampling, operated

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
timm_augment = pytest.importorskip("timm.data.auto_augment")

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
        found = np.clip(ours(photo().astype(np.float32), amount), 0, 255)
        # torchvision's grey is 0.2989 R + 0.587 G + 0.114 B
        np.testing.assert_allclose(found, expected, atol=0.02)


def test_the_operations_of_rand_augment_are_the_increasing_ones_of_timm():
    assert sorted(NAMES_OF_TIMM) == sorted(timm_augment._RAND_INCREASING_TRANSFORMS)
    assert timm_augment.rand_augment_ops(magnitude=9)[0].prob == auto_augment.PROBABILITY
    assert timm_augment._LEVEL_DENOM == auto_augment.LARGEST_MAGNITUDE


def of_timm(name, magnitude, resample):
    """The results of one of timm's operations with either sign."""
    image, found = Image.fromarray(photo()), {}
    for seed in range(8):
        random.seed(seed)
        level = timm_augment.LEVEL_TO_ARG[name]
        values = level(magnitude, {"translate_pct": 0.45}) if level else ()
        made = timm_augment.NAME_TO_OP[name](image, *values, fillcolor=(GREY,) * 3, resample=resample)
        found[np.asarray(made).tobytes()] = values
    return found


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
