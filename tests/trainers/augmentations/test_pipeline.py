"""Flips, normalisation, and the pipeline that ends with them."""

import hashlib
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from recipes.planning.random_bits import draws
from trainers.augmentations import HorizontalFlip, Normalize, RandomCrop, RandomErasing, RandomResizedCrop
from trainers.augmentations.pipeline import Pipeline

GREY = SimpleNamespace(name="grey", mean=(0.25,), std=(0.5,), subset_of="")
GOLDEN = "bbfbff23c9c451a1d009867333999b8803391a226595df0c071b384c6c2c74be"
COLOUR = SimpleNamespace(name="colour", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), subset_of="")


def photo(height=30, width=40, channels=3, dtype=np.uint8):
    return np.random.default_rng(1).integers(0, 256, (height, width, channels)).astype(dtype)


def keyed(index=0):
    return draws(0, "augmentation", 0, index, 0)


def pipeline(*parts, dataset=COLOUR, seed=0):
    return Pipeline(parts=parts, dataset=dataset, seed=seed)


def test_without_parts_pixels_are_divided_by_255():
    image_CHW = pipeline()(photo(), epoch=0, index=0)
    np.testing.assert_array_equal(image_CHW, photo().transpose(2, 0, 1).astype(np.float32) / np.float32(255))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("dataset", "channels"), [(GREY, 1), (COLOUR, 3)])
def test_normalize_by_name_takes_the_place_of_the_division(dtype, dataset, channels):
    given = photo(channels=channels, dtype=dtype)
    image_CHW = pipeline(Normalize(with_=dataset.name), dataset=dataset)(given, epoch=0, index=0)
    expected = (given.astype(np.float64) / 255 - dataset.mean) / dataset.std
    np.testing.assert_allclose(image_CHW, expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-5)


def test_a_normalisation_of_another_team_is_not_divided_again():
    class ToMinusOneToOne:
        scales_pixels = True

        def __call__(self, image_HWC, draws):
            return image_HWC / np.float32(127.5) - 1

    image_CHW = pipeline(ToMinusOneToOne())(np.full((2, 2, 3), 255, np.uint8), epoch=0, index=0)
    assert (image_CHW == 1).all()


@pytest.mark.parametrize("parts", [(), (HorizontalFlip(probability=1),), (Normalize(with_="colour"),)])
def test_the_result_is_float32_chw_in_c_order_and_an_array_of_its_own(parts):
    given = photo(dtype=np.float32)
    image_CHW = pipeline(*parts)(given, epoch=0, index=0)
    assert image_CHW.dtype == np.float32
    assert image_CHW.shape == (3, 30, 40)
    assert image_CHW.flags.c_contiguous
    assert not np.shares_memory(image_CHW, given)
    np.testing.assert_array_equal(given, photo(dtype=np.float32))


def test_every_part_draws_by_seed_epoch_index_and_place():
    crop, flip = RandomResizedCrop(size=8), HorizontalFlip()
    image_HWC = crop(photo(), draws(5, "augmentation", 3, 17, 0))
    image_HWC = flip(image_HWC, draws(5, "augmentation", 3, 17, 1))
    expected = image_HWC.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(pipeline(crop, flip, seed=5)(photo(), epoch=3, index=17), expected)


FLIP, NORMALIZE, CROP = HorizontalFlip(), Normalize(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)), RandomCrop(size=24)


@pytest.mark.parametrize(
    ("parts", "num_before"),
    [
        ((CROP, FLIP, NORMALIZE), 1),
        ((FLIP, CROP, NORMALIZE), 2),
        ((CROP, NORMALIZE, FLIP), 1),
        ((FLIP, NORMALIZE, FLIP, FLIP), 0),
        ((CROP, NORMALIZE, NORMALIZE), 2),
        ((CROP, NORMALIZE, RandomErasing(probability=1)), 3),
        ((FLIP, CROP), 2),
        ((CROP, FLIP), 1),
    ],
)
def test_mirroring_and_normalising_at_the_end_of_a_list_is_left_to_finish(parts, num_before):
    divisor, made = np.float32(1 if NORMALIZE in parts else 255), pipeline(*parts)
    for index in range(6):
        images = [photo()]
        for number, part in enumerate(parts):
            images.append(part(images[-1], draws(0, "augmentation", 1, index, number)))
        pixels = made.pixels(photo(), epoch=1, index=index)
        np.testing.assert_array_equal(pixels.pixels_HWC, images[num_before])
        assert pixels.pixels_HWC.dtype == images[num_before].dtype
        expected = images[-1].transpose(2, 0, 1).astype(np.float32) / divisor
        np.testing.assert_array_equal(made.finish.image(*pixels), expected)
        np.testing.assert_array_equal(made(photo(), epoch=1, index=index), expected)


def test_images_differ_by_seed_epoch_and_index():
    crop = RandomResizedCrop(size=8)
    actual = {
        pipeline(crop, seed=seed)(photo(), epoch=epoch, index=index).tobytes()
        for seed, epoch, index in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    }
    assert len(actual) == 4


def test_what_was_drawn_before_does_not_matter():
    parts = (RandomCrop(size=24, padding=2), HorizontalFlip())
    fresh, used = pipeline(*parts), pipeline(*parts)
    for index in range(10):
        used(photo(), epoch=0, index=index)
    np.testing.assert_array_equal(fresh(photo(), epoch=1, index=4), used(photo(), epoch=1, index=4))


def test_the_same_key_gives_the_same_bits_on_every_machine():
    """Golden: a change here changes every trace, so it must be on purpose."""
    parts = (RandomCrop(size=24, padding=4), HorizontalFlip(), Normalize(with_="grey"))
    ramp_HWC = np.arange(28 * 28, dtype=np.uint8).reshape(28, 28, 1)
    image_CHW = pipeline(*parts, dataset=GREY)(ramp_HWC, epoch=2, index=9)
    assert hashlib.sha256(image_CHW.tobytes()).hexdigest() == GOLDEN


@pytest.mark.parametrize("image_HWC", [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 1)), np.zeros((8, 8, 1), np.uint16)])
def test_what_is_no_image_is_refused(image_HWC):
    with pytest.raises(ValueError, match="sample 4 must be an image height x width x channels of uint8 or float32"):
        pipeline()(image_HWC, epoch=0, index=4)


def test_normalize_by_the_name_of_another_data_set_is_refused_at_once():
    with pytest.raises(ValueError, match="Normalize.with must be 'grey'"):
        pipeline(Normalize(with_="colour"), dataset=GREY)


def test_flip_exchanges_left_and_right():
    assert HorizontalFlip(probability=1)(np.array([[[1], [2], [3]]], np.uint8), keyed()).ravel().tolist() == [3, 2, 1]


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
def test_flips_come_with_their_probability(probability):
    flip, image_HWC = HorizontalFlip(probability=probability), np.array([[[1], [2]]], np.uint8)
    share = np.mean([flip(image_HWC, keyed(index))[0, 0, 0] == 2 for index in range(4000)])
    assert share == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / 4000))


def test_normalize_by_hand():
    image_HWC = np.array([[[0, 51, 255]]], np.uint8)
    normalized = Normalize(mean=(0.5, 0.2, 0.5), std=(0.5, 0.1, 0.25))(image_HWC, keyed())
    np.testing.assert_allclose(normalized, [[[-1, 0, 2]]], atol=1e-6)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(
        Normalize(mean=(0.0,) * 3, std=(1.0,) * 3)(image_HWC, keyed()), image_HWC / 255, atol=1e-6
    )


def test_normalize_takes_its_numbers_from_the_data_set_it_names():
    numbers = {"name": "imagenet", "mean": (0.4,), "std": (0.2,)}
    assert Normalize(with_="imagenet").bound(**numbers) == Normalize(with_="imagenet", mean=(0.4,), std=(0.2,))
    own = Normalize(mean=(0.1,), std=(1.0,))
    assert own.bound(**numbers) is own
    with pytest.raises(ValueError, match=re.escape("Normalize.with must be 'imagenet', the data set of the recipe")):
        Normalize(with_="digits").bound(**numbers)
    with pytest.raises(ValueError, match="data set's file has no mean and std"):
        Normalize(with_="imagenet").bound(name="imagenet", mean=None, std=None)


def test_normalize_without_its_numbers_or_with_others_is_refused():
    with pytest.raises(ValueError, match="Normalize has no numbers yet: bind it to the data set 'digits' first"):
        Normalize(with_="digits")(photo(2, 2, 1), keyed())
    with pytest.raises(ValueError, match=re.escape("Normalize.mean has 1 channels, the image 3")):
        Normalize(mean=(0.5,), std=(0.5,))(photo(2, 2), keyed())
