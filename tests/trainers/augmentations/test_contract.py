"""Every augmentation keeps the promises the pipeline relies on: pure, shaped, drawn from its keys alone."""

import re

import numpy as np
import pytest

from recipes.planning.random_bits import draws
from trainers import augmentations
from trainers.augmentations import (
    CenterCrop,
    ColorJitter,
    Cutout,
    HorizontalFlip,
    Normalize,
    PcaLighting,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    TrivialAugment,
)

HEIGHT, WIDTH = 24, 20
CASES = {
    "CenterCrop": (CenterCrop(size=12), (12, 12)),
    "ColorJitter": (None, (HEIGHT, WIDTH)),
    "Cutout": (Cutout(size=9), (HEIGHT, WIDTH)),
    "HorizontalFlip": (HorizontalFlip(), (HEIGHT, WIDTH)),
    "Normalize": (None, (HEIGHT, WIDTH)),
    "PcaLighting": (PcaLighting(std=0.5), (HEIGHT, WIDTH)),
    "RandAugment": (RandAugment(), (HEIGHT, WIDTH)),
    "RandomCrop": (RandomCrop(size=16, padding=2), (16, 16)),
    "RandomErasing": (RandomErasing(), (HEIGHT, WIDTH)),
    "RandomResizedCrop": (RandomResizedCrop(size=10), (10, 10)),
    "Resize": (Resize(shorter=10), (12, 10)),
    "TrivialAugment": (TrivialAugment(), (HEIGHT, WIDTH)),
}
CASES |= {name: (getattr(augmentations, name)(), (HEIGHT, WIDTH)) for name in {*augmentations.__all__} - {*CASES}}
CONSTANT = {"CenterCrop", "Normalize", "Resize"}
NEEDS_PIXELS = {name for name in CASES if getattr(getattr(augmentations, name), "needs_pixels", False)}
SERVED = [(name, channels) for name in sorted(CASES) for channels in (1, 3) if channels == 3 or name != "PcaLighting"]


def case(name, channels):
    augmentation, size = CASES[name]
    if name == "Normalize":
        augmentation = Normalize(mean=(0.5,) * channels, std=(0.25,) * channels)
    if name == "ColorJitter":
        colour = {"saturation": 0.4, "hue": 0.1} if channels == 3 else {}
        augmentation = ColorJitter(brightness=0.4, contrast=0.4, **colour)
    return augmentation, size


def image(dtype, channels):
    return np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, channels)).astype(dtype)


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("name", "channels"), SERVED)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_shape_and_type(name, dtype, channels):
    augmentation, size = case(name, channels)
    result = augmentation(image(dtype, channels), draws(0, "augmentation", 0, 0, 0))
    assert result.shape == (*size, channels)
    assert result.dtype == (np.float32 if name == "Normalize" else dtype)


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_same_draws_give_the_same_image_and_leave_the_given_one_alone(name, dtype):
    augmentation, _ = case(name, 3)
    given = image(dtype, 3)
    given.flags.writeable = False
    first, again = (augmentation(given, draws(0, "augmentation", 5, 11, 2)) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    np.testing.assert_array_equal(given, image(dtype, 3))


@pytest.mark.parametrize("name", sorted(CASES))
def test_other_draws_give_another_image_where_there_is_chance(name):
    augmentation, _ = case(name, 3)
    given = image(np.uint8, 3)
    results = {augmentation(given, draws(0, "augmentation", 0, index, 0)).tobytes() for index in range(20)}
    assert (len(results) > 1) == (name not in CONSTANT)


@pytest.mark.parametrize("name", sorted(CASES))
def test_views_in_any_memory_order_are_served(name):
    augmentation, _ = case(name, 3)
    given = image(np.uint8, 3)
    views = [given, np.asfortranarray(given), given[:, ::-1][:, ::-1]]
    results = {augmentation(view, draws(0, "augmentation", 0, 1, 0)).tobytes() for view in views}
    assert len(results) == 1


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_of_other_channels_are_refused_before_the_run_with_the_words_of_the_refusal_in_it(name, channels):
    augmentation, _ = case(name, channels)
    in_the_run = refusal(lambda: augmentation(image(np.uint8, channels), draws(0, "augmentation", 0, 0, 0)))
    before_it = refusal(lambda: getattr(augmentation, "require_channels", lambda _: None)(channels))
    assert before_it == in_the_run
    assert (before_it is not None) <= (channels != 3)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"Normalize"}))
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("extreme", [0, 255])
def test_pixels_stay_in_0_to_255(name, dtype, extreme):
    augmentation, _ = case(name, 3)
    given = np.full((HEIGHT, WIDTH, 3), extreme, dtype)
    given[::2, :, 0] = 255 - extreme
    for index in range(10):
        result = augmentation(given, draws(0, "augmentation", 0, index, 0))
        assert result.min() >= 0
        assert result.max() <= 255


@pytest.mark.parametrize("name", sorted(set(CASES) - NEEDS_PIXELS - {"Normalize"}))
def test_those_without_needs_pixels_take_any_values(name):
    augmentation, _ = case(name, 3)
    given = (image(np.float32, 3) - 128) / 64
    once, eightfold = (augmentation(factor * given, draws(0, "augmentation", 0, 3, 0)) for factor in (1, 8))
    np.testing.assert_allclose(eightfold, 8 * once, rtol=1e-5, atol=1e-5)


WRONG = [
    (ColorJitter, {"brightness": 1.5}, "brightness must be <= 1, got 1.5"),
    (ColorJitter, {"contrast": -0.1}, "contrast must be >= 0, got -0.1"),
    (ColorJitter, {"hue": 0.6}, "hue must be <= 0.5, got 0.6"),
    (PcaLighting, {"std": -1}, "std must be >= 0, got -1"),
    (RandomErasing, {"probability": 2}, "probability must be <= 1, got 2"),
    (RandomErasing, {"area": (0.0, 0.3)}, "area must be > 0, got 0.0"),
    (RandomErasing, {"area": (0.1, 1.1)}, "area must be <= 1, got 1.1"),
    (RandomErasing, {"ratio": (3.3, 0.3)}, "ratio must be (low, high) with low <= high"),
    (Cutout, {"size": 0}, "size must be a whole number >= 1, got 0"),
    (RandAugment, {"num_ops": 0}, "num_ops must be a whole number >= 1, got 0"),
    (RandAugment, {"magnitude": 11}, "magnitude must be <= 10, got 11"),
    (RandAugment, {"std": -0.5}, "std must be >= 0, got -0.5"),
    (RandomCrop, {"size": 0}, "size must be a whole number >= 1, got 0"),
    (RandomCrop, {"size": 8, "padding": -1}, "padding must be a whole number >= 0, got -1"),
    (HorizontalFlip, {"probability": 1.5}, "probability must be <= 1, got 1.5"),
    (HorizontalFlip, {"probability": -0.5}, "probability must be >= 0, got -0.5"),
    (Resize, {"shorter": 0}, "shorter must be a whole number >= 1, got 0"),
    (CenterCrop, {"size": True}, "size must be a whole number >= 1, got True"),
    (Normalize, {}, "with must be the name of a data set, or mean and std be given, got neither"),
    (Normalize, {"with_": 3}, "with must be the name of a data set, got 3"),
    (Normalize, {"mean": (0.5,)}, "std must be as long as mean, got () for (0.5,)"),
    (Normalize, {"mean": [0.5], "std": (0.5,)}, "mean must be a tuple of one number a channel, got"),
    (Normalize, {"mean": (0.5,), "std": (0.0,)}, "std must be > 0, got 0.0"),
    (Normalize, {"mean": (124.0,), "std": (0.5,)}, "mean must be <= 1, got 124.0"),
    (Normalize, {"mean": (-0.1,), "std": (0.5,)}, "mean must be >= 0, got -0.1"),
    (Normalize, {"mean": (0.5,), "std": (58.4,)}, "std must be <= 1, got 58.4"),
    (Normalize, {"mean": ("0.5",), "std": (0.5,)}, "mean must be a finite number, got '0.5'"),
    (Resize, {"shorter": 8, "interpolation": "cubic"}, "interpolation must be bilinear or bicubic, got 'cubic'"),
    (RandomResizedCrop, {"size": 8, "interpolation": None}, "interpolation must be bilinear or bicubic, got None"),
    (RandomResizedCrop, {"size": 8, "ratio_draw": "log"}, "ratio_draw must be uniform or log_uniform, got 'log'"),
    (RandomResizedCrop, {"size": 0}, "size must be a whole number >= 1, got 0"),
    (RandomResizedCrop, {"size": 8, "area": (0.0, 1.0)}, "area must be > 0, got 0.0"),
    (RandomResizedCrop, {"size": 8, "area": (0.5, 1.1)}, "area must be <= 1, got 1.1"),
    (RandomResizedCrop, {"size": 8, "area": (0.5, 0.4)}, "area must be (low, high) with low <= high"),
    (RandomResizedCrop, {"size": 8, "area": 0.5}, "area must be two numbers (low, high), got 0.5"),
    (RandomResizedCrop, {"size": 8, "ratio": [0.75, 1.3]}, "ratio must be two numbers (low, high), got [0.75"),
    (RandomResizedCrop, {"size": 8, "ratio": (0.75, float("inf"))}, "ratio must be a finite number, got inf"),
]


@pytest.mark.parametrize(("make", "fields", "message"), WRONG)
def test_wrong_fields_are_refused(make, fields, message):
    with pytest.raises(ValueError, match=re.escape(f"{make.__name__}.{message}")):
        make(**fields)
