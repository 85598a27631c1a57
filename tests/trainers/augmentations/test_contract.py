"""Every augmentation keeps the promises the pipeline relies on: pure, shaped, drawn from its keys alone."""

import numpy as np
import pytest

from recipes.planning.draws import draws
from trainers import augmentations
from trainers.augmentations import CenterCrop, HorizontalFlip, Normalize, RandomCrop, RandomResizedCrop, Resize

HEIGHT, WIDTH = 24, 20
CASES = {
    "CenterCrop": (CenterCrop(size=12), (12, 12)),
    "HorizontalFlip": (HorizontalFlip(), (HEIGHT, WIDTH)),
    "Normalize": (None, (HEIGHT, WIDTH)),
    "RandomCrop": (RandomCrop(size=16, padding=2), (16, 16)),
    "RandomResizedCrop": (RandomResizedCrop(size=10), (10, 10)),
    "Resize": (Resize(shorter=10), (12, 10)),
}
RANDOM = {"HorizontalFlip", "RandomCrop", "RandomResizedCrop"}


def case(name, channels):
    augmentation, size = CASES[name]
    if name == "Normalize":
        augmentation = Normalize(mean=(0.5,) * channels, std=(0.25,) * channels)
    return augmentation, size


def image(dtype, channels):
    return np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, channels)).astype(dtype)


def test_no_augmentation_is_missing_here():
    assert sorted(CASES) == augmentations.__all__


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3])
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
    assert (len(results) > 1) == (name in RANDOM)


@pytest.mark.parametrize("name", sorted(CASES))
def test_views_in_any_memory_order_are_served(name):
    augmentation, _ = case(name, 3)
    given = image(np.uint8, 3)
    views = [given, np.asfortranarray(given), given[:, ::-1][:, ::-1]]
    results = {augmentation(view, draws(0, "augmentation", 0, 1, 0)).tobytes() for view in views}
    assert len(results) == 1
