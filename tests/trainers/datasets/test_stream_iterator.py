"""What the iterator makes of samples."""

import numpy as np
import pytest

import trainers.compat  # noqa: F401
from recipes.planning.stream import Stream
from trainers.datasets.loader import StreamIterator, stacked
from trainers.launch.request import TrainRequest, prepare
from trainers.runs.errors import RankFailed


def test_images_of_different_sizes_are_refused_with_a_way_out():
    images = [np.zeros((1, side, 8), np.float32) for side in (8, 8, 9, 10)]
    assert stacked(images[:2], "augmentation.eval").shape == (2, 1, 8, 8)
    told = r"images of \(1, 8, 8\) and \(1, 9, 8\), .*; bring all to one size in augmentation.eval: RandomResizedCrop"
    with pytest.raises(RankFailed, match=told):
        stacked(images, "augmentation.eval")


def test_an_update_that_reaches_another_epoch_says_so():
    """Of 1,500 samples: 15 updates of 96 are too few and 16 enough; then come 8 of 192 an epoch."""
    plan = prepare(TrainRequest(recipe="digits/ramp"), workers=1).plan
    iterator = StreamIterator(plan=plan, rank=0, stream=Stream(seed=0, num_samples=1500), load=None)
    assert not iterator.is_new_epoch, "nothing was done yet"
    reached = [share.update for share in iterator if iterator.is_new_epoch]
    assert reached[:3] == [15, 23, 31]
    assert len(reached) == int(plan.timeline.num_samples / 1500)
