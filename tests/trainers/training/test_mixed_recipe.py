"""A recipe that mixes, from its file to what the loss gets: training alone is mixed."""

import math

import numpy as np
import pytest

from recipes.planning.planner import plan
from recipes.planning.stream import Stream
from recipes.reading.open import open_cluster, open_recipe
from trainers.datasets.loader import StreamIterator
from trainers.launch.vocabulary import vocabulary
from trainers.training.build import build
from trainers.training.extensions.evaluation import score

MIX = "augmentation.mix=[{kind: Mixup, alpha: 1}]"


def opened(*overrides):
    return open_recipe("digits/ramp", vocabulary=vocabulary(), overrides=overrides)


def first_update(actual, *, workers=1):
    """The micro-batches of the first update, of all workers."""
    parts = build(actual.recipe, actual.dataset)
    made = plan(
        recipe=actual.recipe,
        dataset=actual.dataset,
        cluster=open_cluster("laptop", vocabulary=vocabulary()),
        workers=workers,
        micro_batch_size=32,
    )
    stream = Stream(seed=0, num_samples=actual.dataset.num_train, repeats=actual.recipe.stream.repeats)
    for rank in range(workers):
        iterator = StreamIterator(plan=made, rank=rank, stream=stream, load=parts.load_train, mixing=parts.mixing)
        yield from next(iterator).micro_batches


@pytest.mark.parametrize("workers", [1, 2])
def test_targets_are_labels_without_a_mix_and_shares_with_one(workers):
    plain = list(first_update(opened(), workers=workers))
    mixed = list(first_update(opened(MIX), workers=workers))
    assert [batch.targets.dtype for batch in plain] == [np.int32] * 3
    for before, after in zip(plain, mixed, strict=True):
        images, labels = before.images_NCHW, before.targets
        rows = np.eye(10, dtype=np.float32)[labels]
        different = np.flatnonzero(labels != labels[::-1])[0]
        share = after.targets[different, labels[different]]
        np.testing.assert_allclose(after.targets, share * rows + (1 - share) * rows[::-1], atol=1e-6)
        np.testing.assert_allclose(after.images_NCHW, share * images + (1 - share) * images[::-1], atol=1e-5)
        assert (after.indices == before.indices).all()


def test_without_probability_a_group_goes_as_it_came():
    plain = list(first_update(opened()))
    never = list(first_update(opened("augmentation.mix=[{kind: CutMix, alpha: 1, probability: 0}]")))
    for before, after in zip(plain, never, strict=True):
        assert (before.images_NCHW == after.images_NCHW).all()
        assert (np.eye(10)[before.targets] == after.targets).all()


def test_copies_of_a_sample_are_augmented_each_in_its_own_way():
    images = np.concatenate([batch.images_NCHW for batch in first_update(opened("stream.repeats=4"))])
    plain = np.concatenate([batch.images_NCHW for batch in first_update(opened())])
    copies = images.reshape(-1, 4, images[0].size)
    kinds = [len({copy.tobytes() for copy in sample}) for sample in copies]
    assert np.mean(kinds) > 3, "a shift by one pixel has nine outcomes"
    assert (images[::4] == plain[: len(images) // 4]).all(), "a first copy is the sample as it would be alone"


def test_evaluation_is_never_mixed_nor_repeated():
    from mpi4py import MPI

    scores = []
    for overrides in ((), (MIX, "stream.repeats=3")):
        actual = opened(*overrides)
        parts = build(actual.recipe, actual.dataset)
        kept = {"load": parts.load_eval, "num_samples": 100, "loss": parts.loss, "mpi": MPI.COMM_SELF}
        scores.append(score(parts.model, **kept))
    assert scores[0] == scores[1]


def test_the_head_bias_is_set_over_the_initial_weights():
    actual = opened(f"loss={{kind: BinaryCrossEntropy, head_bias: {-math.log(10)}}}")
    model, other = build(actual.recipe, actual.dataset).model, build(opened().recipe, actual.dataset).model
    np.testing.assert_allclose(model.fc.b.array, -math.log(10), rtol=1e-6)
    assert (model.fc.W.array == other.fc.W.array).all()
