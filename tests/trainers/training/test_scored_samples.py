"""The pictures of the samples with the worst loss."""

import numpy as np
import pytest
from PIL import Image

from recipes.reading.open import open_recipe
from trainers.datasets.sheet import Shown
from trainers.launch.vocabulary import vocabulary
from trainers.training import scored_samples


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_images_of_any_number_of_channels_have_pictures(channels, tmp_path, monkeypatch):
    image_HWC = np.random.default_rng(0).integers(0, 256, (8, 8, channels), dtype=np.uint8)
    monkeypatch.setattr(scored_samples, "evaluated_samples", lambda *_: [Shown(image_HWC=image_HWC, caption="")])
    opened = open_recipe("digits/baseline", vocabulary=vocabulary())
    how = {"recipe": opened.recipe, "dataset": opened.dataset, "reached": {}}
    scored_samples.write_samples(tmp_path, np.array([[0.0, 1.0, 2.0]]), **how)
    with Image.open(tmp_path / "evaluation" / "worst-00.png") as image:
        np.testing.assert_array_equal(np.asarray(image), image_HWC if channels == 3 else image_HWC[:, :, 0])
