"""What the iterator makes of samples."""

import numpy as np
import pytest

import trainers.compat  # noqa: F401
from trainers.faults import FailedAlone
from trainers.stream_iterator import stacked


def test_images_of_different_sizes_are_refused_with_a_way_out():
    images = [np.zeros((1, side, 8), np.float32) for side in (8, 8, 9)]
    assert stacked(images[:2], "augmentation.eval").shape == (2, 1, 8, 8)
    told = r"images of \(1, 8, 8\) and \(1, 9, 8\), .*; bring all to one size in augmentation.eval: RandomResizedCrop"
    with pytest.raises(FailedAlone, match=told):
        stacked(images, "augmentation.eval")
