"""Gradients one update late: against a loop written by hand, on any ranks, after a resume."""

import json

import chainer
import numpy as np
import pytest
from mpi4py import MPI
from safetensors.numpy import load_file

from recipes.planning.cluster import GradientExchange
from recipes.planning.rates import learning_rate_at
from recipes.planning.stream import Stream
from trainers.datasets.loader import StreamIterator
from trainers.launch.request import TrainRequest, prepare
from trainers.models.batch_norm import NormGroups
from trainers.training.build import build, build_exchange
from trainers.training.updater import RecipeUpdater

DOUBLED = ("--set", "updater={double_buffering: true}")
# One norm group an update, so that Chainer's own batch normalisation is the same; 5 updates of 500 samples.
ALONE = (
    "batch={global: 300, norm_span: 300}",
    "epochs=1",
    "learning_rate.warmup=null",
    "optimizer={kind: CorrectedMomentumSGD, momentum: 0.5}",
    "updater={double_buffering: true}",
)


@pytest.fixture
def prepared():
    request = TrainRequest(recipe="digits/ramp", overrides=ALONE, micro_batch_size=300)
    return prepare(request, workers=1)


def parts_of(prepared):
    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    parts = build(recipe, dataset)
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train)
    return parts, StreamIterator(plan=prepared.plan, rank=0, stream=stream, load=parts.load_train)


def weights(model):
    return {path: parameter.array.copy() for path, parameter in model.namedparams()}


def by_hand(prepared):
    """Weights after each update: w <- w - rate v, v <- 0.5 v + the gradient of the update before, at its weights."""
    parts, iterator = parts_of(prepared)
    model, recipe, timeline = parts.model, prepared.opened.recipe, prepared.plan.timeline
    velocity = {path: np.zeros_like(array) for path, array in weights(model).items()}
    actual, waiting = [], []
    for update in range(timeline.num_updates):
        (micro_batch,) = iterator.next().micro_batches
        model.cleargrads()
        with chainer.using_config("train", True):
            parts.loss(model(micro_batch.images_NCHW), micro_batch.targets).backward()
        rate = learning_rate_at(recipe, timeline.epoch_at(update))
        waiting.append((rate, {path: parameter.grad.copy() for path, parameter in model.namedparams()}))
        due = 1 if update + 1 < timeline.num_updates else 0
        while len(waiting) > due:
            rate, gradients = waiting.pop(0)
            for path, parameter in model.namedparams():
                velocity[path] = 0.5 * velocity[path] + gradients[path]
                parameter.array -= rate * velocity[path]
        actual.append(weights(model))
    return actual


def test_weights_are_those_of_a_loop_that_applies_gradients_one_update_late(prepared):
    with chainer.using_config("dtype", np.dtype(np.float64)):
        expected = by_hand(prepared)
        parts, iterator = parts_of(prepared)
        before = weights(parts.model)
        groups = NormGroups(prepared.opened.recipe.evaluation)
        groups.install(parts.model)
        mpi = MPI.COMM_SELF
        updater = RecipeUpdater(
            iterator,
            parts.optimizer,
            loss=parts.loss,
            plan=prepared.plan,
            exchange=build_exchange(GradientExchange(), parts, mpi, recipe=prepared.opened.recipe),
            mpi=mpi,
            norm_groups=groups,
        )
        assert len(expected) == 5
        for update, those in enumerate(expected):
            updater.update()
            for path, array in weights(parts.model).items():
                np.testing.assert_allclose(array, those[path], rtol=0, atol=1e-12, err_msg=f"{update} {path}")
                if update == 0:
                    np.testing.assert_array_equal(array, before[path])
    assert updater.pending is None, "the last gradient is applied too"


@pytest.fixture(scope="module")
def alone(tmp_path_factory, train):
    return train(tmp_path_factory.mktemp("alone") / "run", 1, *DOUBLED, dtype="float64")


def pending(run):
    (file,) = (run.folder / "checkpoints").glob("update-*24/pending.safetensors")
    return load_file(file)


def assert_same_pending(run, other):
    for path, array in pending(run).items():
        np.testing.assert_allclose(array, pending(other)[path], rtol=0, atol=1e-12, err_msg=path)


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "micro_batch_size"), [(3, 32), pytest.param(5, 96, marks=pytest.mark.slow)])
def test_any_ranks_apply_the_same_gradients_one_update_late(
    alone, tmp_path, train, assert_same_run, ranks, micro_batch_size
):
    actual = train(tmp_path / "run", ranks, *DOUBLED, "--micro-batch-size", micro_batch_size, dtype="float64")
    assert_same_run(actual, alone, loss=1e-12, weights=1e-12)
    assert_same_pending(actual, alone)


@pytest.mark.mpi
def test_the_gradient_on_its_way_is_part_of_a_checkpoint(alone, tmp_path, train, assert_same_run):
    options = (*DOUBLED, "--noise-scale", "--set", "gradient.clip_norm=0.2", "--micro-batch-size", "32")
    whole = train(tmp_path / "whole", 2, *options, dtype="float64")
    train(tmp_path / "run", 2, *options, stop_after=13, dtype="float64")
    actual = train(tmp_path / "run", 3, *options, "--resume", dtype="float64")
    assert_same_run(actual, whole, loss=1e-12, weights=1e-12)
    assert_same_pending(actual, whole)
    for line, other in zip(measured(actual), measured(whole), strict=True):
        assert line == pytest.approx(other, rel=1e-9)
    assert "gradient_norm" not in measured(whole)[0], "update 0 applies nothing"


@pytest.mark.mpi
def test_a_checkpoint_of_before_the_first_step_is_gone_on_with(tmp_path, train, assert_same_run):
    """Update 0 moves nothing, so that the optimizer has no state yet."""
    whole = train(tmp_path / "whole", 1, *DOUBLED, stop_after=3, dtype="float64")
    first = train(tmp_path / "run", 1, *DOUBLED, stop_after=1, dtype="float64")
    assert not load_file(first.folder / "checkpoints" / "update-000001" / "optimizer.safetensors")
    actual = train(tmp_path / "run", 2, *DOUBLED, "--resume", stop_after=3, dtype="float64")
    assert_same_run(actual, whole, loss=1e-12, weights=1e-12)


def measured(run):
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    keys = ("gradient_norm", "gradient_noise", "gradient_signal")
    return [{key: line[key] for key in keys if key in line} for line in lines if line["key"] == "train_loss"]


@pytest.mark.mpi
def test_mixed_precision_looks_for_overflows_before_a_gradient_is_on_its_way(tmp_path, train):
    settings = (
        "precision={compute: mixed16, loss_scale: 1073741824, double_after: 1}",
        "model={kind: SmallCNN, width: 4}",
        "batch.global=64",
        "learning_rate.warmup=null",
    )
    options = (*DOUBLED, *(word for one in settings for word in ("--set", one)), "--micro-batch-size", "32")
    one, two = (
        train(tmp_path / str(ranks), ranks, *options, stop_after=6, recipe="digits/large_batch") for ranks in (1, 2)
    )
    assert one.trace == two.trace, "two groups have but one order of summation"
    assert "overflowed on rank" in one.log
