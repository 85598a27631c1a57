"""An update is what a loop written by hand does: clipping, decay, momentum, running statistics, averaged weights."""

from dataclasses import dataclass, replace

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from mpi4py import MPI

from recipes.planning.cluster import GradientExchange
from recipes.planning.rates import full_rate_at, learning_rate_at
from recipes.planning.stream import Stream
from trainers.communicators.tree_sum import TreeSum
from trainers.datasets.loader import StreamIterator
from trainers.launch.request import TrainRequest, prepare
from trainers.models.batch_norm import NormGroups
from trainers.optimizers.weight_average import AveragedWeights
from trainers.runs.errors import NotFinite
from trainers.training.build import build, build_exchange
from trainers.training.updater import RecipeUpdater

CLIP, DECAY, START = 0.3, 0.01, 0.1
# One norm group an update, so that Chainer's own batch normalisation is the same; 4 updates of 1/15 epoch.
ALONE = (
    "batch={global: 100, norm_span: 100}",
    "epochs=0.25",
    "learning_rate.warmup=null",
    "learning_rate.schedule={kind: Polynomial}",
    "optimizer={kind: CorrectedMomentumSGD, momentum: 0.5, decay: times_relative_rate, no_decay: [], "
    f"weight_decay: {DECAY}}}",
    f"gradient={{clip_norm: {CLIP}}}",
    f"weight_average={{keep: 0.25, per: 200, start: {START}}}",
    "evaluation.norm_statistics=moving_average",
    "evaluation.norm_momentum={keep: 0.81, per: 200}",
)


@pytest.fixture
def prepared():
    return prepare(TrainRequest(recipe="digits/ramp", overrides=ALONE, micro_batch_size=100), workers=1)


def parts_of(prepared):
    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    parts = build(recipe, dataset)
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train)
    return parts, StreamIterator(plan=prepared.plan, rank=0, stream=stream, load=parts.load_train)


def arrays_of(model):
    norms = {path: link for path, link in model.namedlinks() if isinstance(link, L.BatchNormalization)}
    running = {
        f"{path}/{name}": getattr(link, name) for path, link in norms.items() for name in ("avg_mean", "avg_var")
    }
    return {**{path: parameter.array for path, parameter in model.namedparams()}, **running}


def by_hand(prepared):
    """Norm of the gradient, weights, and their averages after each update."""
    parts, iterator = parts_of(prepared)
    model, recipe, timeline = parts.model, prepared.opened.recipe, prepared.plan.timeline
    for link in model.links():
        if isinstance(link, L.BatchNormalization):
            link.decay = 0.9  # 0.81 of 200 samples
    velocity = {path: np.zeros_like(parameter.array) for path, parameter in model.namedparams()}
    averages = {}
    for update in range(timeline.num_updates):
        (micro_batch,) = iterator.next().micro_batches
        model.cleargrads()
        with chainer.using_config("train", True):
            parts.loss(model(micro_batch.images_NCHW), micro_batch.targets).backward()
        epoch = timeline.epoch_at(update)
        rate = learning_rate_at(recipe, epoch)
        norm = np.sqrt(sum((parameter.grad**2).sum() for parameter in model.params()))
        for path, parameter in model.namedparams():
            velocity[path] = 0.5 * velocity[path] + parameter.grad * min(1, CLIP / norm)
            parameter.array -= rate * velocity[path] + rate / full_rate_at(recipe, epoch) * DECAY * parameter.array
        keep = 0.5 if epoch >= START else 0.0  # 0.25 of 200 samples
        now = {path: array.copy() for path, array in arrays_of(model).items()}
        averages = {path: keep * averages.get(path, 0) + (1 - keep) * array for path, array in now.items()}
        yield norm, now, averages


def updater_of(prepared, *, loss=None):
    parts, iterator = parts_of(prepared)
    recipe, exact = prepared.opened.recipe, prepared.plan.exact
    groups = NormGroups(recipe.evaluation, TreeSum(MPI.COMM_SELF) if exact else None)
    groups.install(parts.model)
    updater = RecipeUpdater(
        iterator,
        parts.optimizer,
        loss=loss or parts.loss,
        plan=prepared.plan,
        exchange=build_exchange(GradientExchange(), parts, MPI.COMM_SELF, exact=exact),
        mpi=MPI.COMM_SELF,
        norm_groups=groups,
        averaged=AveragedWeights(parts.model, recipe.weight_average),
    )
    return updater, parts.model


def test_weights_and_averages_are_those_of_a_loop(prepared):
    recipe, timeline = prepared.opened.recipe, prepared.plan.timeline
    with chainer.using_config("dtype", np.dtype(np.float64)):
        expected = list(by_hand(prepared))
        updater, model = updater_of(prepared)
        assert len(expected) == 4
        assert min(norm for norm, *_ in expected) < CLIP < max(norm for norm, *_ in expected)
        for update, (norm, weights, averages) in enumerate(expected):
            updater.update()
            assert updater.record.gradient_norm == pytest.approx(norm, rel=1e-10)
            assert updater.record.learning_rate == learning_rate_at(recipe, timeline.epoch_at(update))
            for path, array in arrays_of(model).items():
                np.testing.assert_allclose(array, weights[path], rtol=1e-9, atol=1e-11, err_msg=f"{update} {path}")
                average = updater.averaged.arrays[path]
                np.testing.assert_allclose(average, averages[path], rtol=1e-9, atol=1e-11, err_msg=f"{update} {path}")


def test_a_running_statistic_that_is_not_finite_ends_the_run_though_all_weights_are(prepared):
    updater, model = updater_of(prepared)
    updater.update()
    arrays_of(model)["/bn1/avg_var"][3] = np.inf
    with pytest.raises(
        NotFinite, match=r"^the weight is not finite at update 1 on rank 0 \(one of the running statist"
    ):
        updater.update()


def test_a_weight_that_is_used_past_its_link_is_trained_where_nothing_is_sent_before_backward_ends(prepared):
    """A sum of weights on every logit changes no probability, and no gradient."""
    updater, model = updater_of(prepared)
    other, tied = updater_of(prepared)
    forward = tied.forward
    tied.forward = lambda images: (logits := forward(images)) + F.broadcast_to(F.sum(tied.conv1.W), logits.shape)
    for each in (updater, other):
        each.update()
    np.testing.assert_allclose(tied.conv1.W.array, model.conv1.W.array, rtol=1e-4, atol=1e-6)


def test_in_exact_mode_memory_that_runs_out_changes_no_bit():
    overrides = ("batch={global: 96, norm_span: 32}", *ALONE[1:])
    how = {"recipe": "digits/large_batch", "overrides": overrides, "exact": True}

    def trained(*, micro_batch_size, most=1000):
        prepared = prepare(TrainRequest(**how, micro_batch_size=micro_batch_size), workers=1)
        updater, model = updater_of(prepared)
        forward, sizes = model.forward, []

        def hungry(images):
            sizes.append(len(images))
            if len(images) > most:
                raise MemoryError
            return forward(images)

        model.forward = hungry
        updater.update()
        updater.update()
        return sizes, {path: array.tobytes() for path, array in arrays_of(model).items()}

    sizes, bits = trained(micro_batch_size=32)
    assert sizes == [32] * 6
    assert trained(micro_batch_size=96, most=32) == ([64, *sizes], bits)


@pytest.mark.parametrize("exact", [True, False])
def test_the_gradient_of_a_weight_that_an_update_does_not_use_is_0_there(exact):
    """Not that of the update before, whose memory it shares."""
    request = TrainRequest(recipe="digits/ramp", overrides=ALONE, micro_batch_size=100, exact=exact)
    prepared = prepare(request, workers=1)
    updater, model = updater_of(prepared)
    updater.update()
    assert model.conv1.W.grad.any()
    model.forward = lambda images: F.broadcast_to(model.fc.b, (len(images), 10))
    updater.update()
    assert not model.conv1.W.grad.any()
    assert model.fc.b.grad.any()


def test_the_mean_loss_is_that_of_an_exact_sum():
    """The order in which losses arrive depends on the workers; added up one by one, 1e16 + 1 - 1e16 is 0."""
    overrides, added = ("batch={global: 96, norm_span: 32}", *ALONE[1:]), [3e16, 3.0, -3e16]
    prepared = prepare(TrainRequest(recipe="digits/large_batch", overrides=overrides, micro_batch_size=32), workers=1)
    updater, _ = updater_of(prepared, loss=lambda logits, targets: 0 * F.sum(logits) + added.pop(0))
    updater.update()
    assert updater.record.loss == 1


@dataclass(frozen=True, kw_only=True)
class Dropped:
    def __call__(self, logits, targets):
        return F.softmax_cross_entropy(F.dropout(logits, 0.3), targets)


def test_dropout_in_a_loss_has_the_same_masks_in_one_forward_of_several_norm_groups():
    overrides = ("batch={global: 96, norm_span: 32}", *ALONE[1:])
    bits = []
    for size in (32, 96):
        request = TrainRequest(recipe="digits/large_batch", overrides=overrides, exact=True, micro_batch_size=size)
        prepared = prepare(request, workers=1)
        own = replace(prepared.opened.recipe, loss=Dropped())
        updater, model = updater_of(replace(prepared, opened=replace(prepared.opened, recipe=own)))
        updater.update()
        bits.append({path: array.tobytes() for path, array in arrays_of(model).items()})
    assert bits[0] == bits[1]
