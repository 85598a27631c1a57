"""An augmentation of one's own whose pixels are scaled once more after it is named before the run."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from recipes.reading.open import open_recipe
from trainers.augmentations import Normalize
from trainers.datasets import Arrays
from trainers.launch.vocabulary import vocabulary
from trainers.training.trial_images import require_images


@pytest.fixture(scope="module")
def opened():
    return open_recipe("digits/baseline", vocabulary=vocabulary())


@dataclass(frozen=True, kw_only=True)
class Own:
    function: Any

    def __call__(self, image_HWC, draws):
        return self.function(image_HWC)


@dataclass(frozen=True, kw_only=True)
class Scaling(Own):
    scales_pixels: ClassVar[bool] = True


def standardise(x):
    return (x - x.mean()) / x.std()


def to_ones(x):
    return np.float32(x / 255)


NORMALIZE = Normalize(with_="digits")


def warnings_of(opened, parts):
    augmentation = replace(opened.recipe.augmentation, train=parts)
    return require_images(replace(opened.recipe, augmentation=augmentation), opened.dataset)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Own(function=standardise)], "train.0, Own, makes values from -"),
        ([Own(function=to_ones)], "the division by 255 at the end of the list makes the image nearly constant; add"),
        ([Own(function=to_ones), NORMALIZE], "`Normalize` after it, which takes pixels of 0..255, makes the image"),
        ([Scaling(function=standardise), NORMALIZE], "uint8 or float32, or remove that `Normalize`"),
        ([Own(function=np.copy), Own(function=to_ones), Own(function=np.copy)], "train.1, Own, makes values from 0 to"),
    ],
)
def test_pixels_that_are_scaled_twice_are_named(opened, parts, message):
    (warning,) = warnings_of(opened, parts)
    assert message in warning


@pytest.mark.parametrize(
    "parts",
    [
        [Scaling(function=standardise)],
        [Own(function=to_ones), Scaling(function=lambda x: (x - 0.3) / 0.4)],
        [Own(function=to_ones), Own(function=lambda x: 255 * x**0.5), NORMALIZE],
        [NORMALIZE, Own(function=lambda x: x / 100)],
        [Own(function=np.zeros_like), NORMALIZE],  # all is erased
        [Own(function=lambda x: 255 - x), NORMALIZE],
        [Own(function=lambda x: 110 + x / 25), NORMALIZE],  # a faint one
    ],
)
def test_other_pixels_are_not_named(opened, parts):
    assert [text for text in warnings_of(opened, parts) if "nearly constant" in text] == []


@pytest.mark.parametrize(("largest", "function"), [(4, lambda x: x // 2), (1, np.copy), (1, lambda x: x * 0.1)])
def test_nearly_black_images_are_not_named_for_it(opened, tmp_path, largest, function):
    for split in ("train", "val"):
        images = np.random.default_rng(0).integers(0, largest, (4, 8, 8), np.uint8, endpoint=True)
        np.savez(tmp_path / f"{split}.npz", images=images, labels=np.arange(4))
    dark = replace(opened.dataset, reader=Arrays(), root=tmp_path, num_train=4, num_eval=4)
    assert warnings_of(replace(opened, dataset=dark), [Own(function=function), NORMALIZE]) == []
