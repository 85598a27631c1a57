"""Batch normalisation by groups equals batch normalisation of each group alone."""

from types import SimpleNamespace

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import links as L

from recipes.planning.division import divide
from recipes.schema import Evaluation, NormMomentum
from trainers.models.batch_norm import NormGroups


def evaluation(norm_statistics="moving_average", keep=0.9, per="update"):
    return Evaluation(norm_statistics=norm_statistics, norm_momentum=NormMomentum(keep=keep, per=per))


def installed(norm_statistics="moving_average", link=None, **momentum):
    chain = chainer.Chain()
    with chain.init_scope():
        chain.bn = link or L.BatchNormalization(3)
    chain.bn.gamma.array[...] = [0.5, 1.0, 2.0]
    chain.bn.beta.array[...] = [-1.0, 0.0, 1.0]
    groups = NormGroups(evaluation(norm_statistics, **momentum))
    groups.install(chain)
    return chain, groups


def images(count, seed=0):
    return np.random.RandomState(seed).normal(2.0, 3.0, (count, 3, 4, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def world():
    from mpi4py import MPI

    return MPI.COMM_SELF


def test_forward_and_gradients_are_those_of_each_group_alone():
    x, weights = images(24), images(24, seed=1)
    chain, groups = installed()
    groups.num_groups = 3
    with chainer.using_config("train", True):
        whole = chainer.Variable(x)
        y = chain.bn(whole)
        chainer.functions.sum(y * weights).backward()

    expected_y, expected_gx, ggamma, gbeta = [], [], 0, 0
    for part, weight in zip(np.split(x, 3), np.split(weights, 3), strict=True):
        alone = L.BatchNormalization(3)
        alone.gamma.array[...], alone.beta.array[...] = chain.bn.gamma.array, chain.bn.beta.array
        variable = chainer.Variable(part)
        with chainer.using_config("train", True):
            out = alone(variable)
        chainer.functions.sum(out * weight).backward()
        expected_y.append(out.array)
        expected_gx.append(variable.grad)
        ggamma, gbeta = ggamma + alone.gamma.grad, gbeta + alone.beta.grad
    np.testing.assert_allclose(y.array, np.concatenate(expected_y), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(whole.grad, np.concatenate(expected_gx), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(chain.bn.gamma.grad, ggamma, rtol=1e-4)
    np.testing.assert_allclose(chain.bn.beta.grad, gbeta, rtol=1e-4)


def test_one_group_moves_the_running_statistics_as_chainer_does(world):
    x = images(16)
    plain = L.BatchNormalization(3, decay=0.9)
    chain, groups = installed()
    with chainer.using_config("train", True):
        plain(x)
        chain.bn(x)
    assert (chain.bn.avg_mean == 0).all(), "running statistics move once an update, not in the forward"
    groups.update_running_statistics(world, 16)
    np.testing.assert_allclose(chain.bn.avg_mean, plain.avg_mean, rtol=1e-6)
    np.testing.assert_allclose(chain.bn.avg_var, plain.avg_var, rtol=1e-6)


@pytest.mark.parametrize("split", [(24,), (16, 8), (8, 8, 8)])
def test_statistics_do_not_depend_on_the_split_into_micro_batches(world, split):
    x, groups_of = images(24), 8
    chain, groups = installed()
    start = 0
    for size in split:
        groups.num_groups = size // groups_of
        with chainer.using_config("train", True):
            chain.bn(x[start : start + size])
        start += size
    groups.update_running_statistics(world, 24)
    parts = np.split(x.astype(np.float64), 3)
    means = np.mean([p.mean(axis=(0, 2, 3)) for p in parts], axis=0)
    variances = np.mean([p.var(axis=(0, 2, 3), ddof=1) for p in parts], axis=0)
    np.testing.assert_allclose(chain.bn.avg_mean, 0.1 * means, rtol=1e-5)
    np.testing.assert_allclose(chain.bn.avg_var, 0.9 + 0.1 * variances, rtol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_pooled_statistics_are_those_of_the_whole_update(world, offset):
    x = images(24) + np.float32(offset)
    chain, groups = installed("pooled", keep=0.0)
    groups.num_groups = 3
    with chainer.using_config("train", True):
        chain.bn(x)
    groups.update_running_statistics(world, 24)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(chain.bn.avg_mean, wide.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(chain.bn.avg_var, wide.var(axis=(0, 2, 3)), rtol=1e-4)


def test_last_batch_keeps_nothing_of_the_past(world):
    chain, groups = installed("last_batch", keep=0.9)
    for seed in (0, 1):
        with chainer.using_config("train", True):
            chain.bn(images(16, seed))
        groups.update_running_statistics(world, 16)
    np.testing.assert_allclose(chain.bn.avg_mean, images(16, 1).mean(axis=(0, 2, 3), dtype=np.float64), rtol=1e-5)


def test_momentum_by_samples_forgets_as_much_however_large_the_batch(world):
    chain, groups = installed(keep=0.5, per=64)
    with chainer.using_config("train", True):
        chain.bn(np.zeros((2, 3, 4, 5), dtype=np.float32))
    groups.update_running_statistics(world, 128)  # variance 1 -> 0, kept by 0.5 ** (128 / 64)
    np.testing.assert_allclose(chain.bn.avg_var, 0.25)


def test_a_layer_that_was_not_used_keeps_its_statistics(world):
    chain, groups = installed()
    groups.update_running_statistics(world, 16)
    assert (chain.bn.avg_mean == 0).all()
    assert (chain.bn.avg_var == 1).all()


def several_layers():
    chain = chainer.Chain()
    with chain.init_scope():
        chain.wide, chain.unused, chain.narrow = (L.BatchNormalization(size) for size in (5, 2, 3))
    chain.unused.avg_mean[...] = 7.0
    groups = NormGroups(evaluation(keep=0.5))
    groups.install(chain)
    return chain, groups


def test_each_of_several_layers_moves_its_own_statistics(world):
    chain, groups = several_layers()
    groups.begin_update(divide(global_batch_size=4, norm_span=4, workers=1, micro_batch_size=4))
    random, given = np.random.RandomState(0), {}
    for link in (chain.wide, chain.narrow):
        given[link] = random.normal(2.0, 3.0, (4, link.avg_mean.size, 6)).astype(np.float32)
        with chainer.using_config("train", True):
            link(given[link])
    groups.update_running_statistics(world, 4)
    for link, x in given.items():
        np.testing.assert_allclose(link.avg_mean, 0.5 * x.mean(axis=(0, 2)), rtol=1e-6)
        np.testing.assert_allclose(link.avg_var, 0.5 + 0.5 * x.var(axis=(0, 2), ddof=1), rtol=1e-6)
    assert (chain.unused.avg_mean == 7.0).all()
    assert (chain.unused.avg_var == 1.0).all()


def test_statistics_put_in_place_of_others_are_the_ones_that_move(world):
    chain, groups = several_layers()
    for link in chain.children():  # what a move to another device does
        link.avg_mean, link.avg_var = link.avg_mean + 2.0, link.avg_var + 3.0
    groups.begin_update(divide(global_batch_size=4, norm_span=4, workers=1, micro_batch_size=4))
    with chainer.using_config("train", True):
        chain.wide(np.zeros((4, 5), np.float32))
    groups.update_running_statistics(world, 4)
    for link, expected in ((chain.wide, (1.0, 2.0)), (chain.unused, (9.0, 4.0)), (chain.narrow, (2.0, 4.0))):
        assert (link.avg_mean == expected[0]).all()
        assert (link.avg_var == expected[1]).all()


def test_test_mode_uses_the_running_statistics():
    chain, _ = installed()
    chain.bn.avg_mean[...], chain.bn.avg_var[...] = 2.0, 4.0
    x = images(4)
    with chainer.using_config("train", False):
        y = chain.bn(x).array
    gamma, beta = (p.array[:, None, None] for p in (chain.bn.gamma, chain.bn.beta))
    np.testing.assert_allclose(y, (x - 2.0) / np.sqrt(4.0 + 2e-5) * gamma + beta, rtol=1e-5, atol=1e-5)


def test_rows_without_images_are_normalised_too():
    chain, groups = installed()
    groups.num_groups = 2
    x = images(8)[:, :, 0, 0]
    with chainer.using_config("train", True):
        y = chain.bn(x).array
    for part, out in zip(np.split(x, 2), np.split(y, 2), strict=True):
        expected = (part - part.mean(axis=0)) / np.sqrt(part.var(axis=0) + 2e-5)
        np.testing.assert_allclose(out, expected * chain.bn.gamma.array + chain.bn.beta.array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("link", [L.BatchRenormalization(3), L.DecorrelatedBatchNormalization(3, groups=1)])
def test_other_normalisation_over_the_batch_is_refused(link):
    with pytest.raises(TypeError, match=f"/bn is a {type(link).__name__}"):
        NormGroups(evaluation()).install(chainer.Chain(bn=link))


def test_a_hook_that_each_forward_moves_is_refused_and_one_without_a_state_is_not():
    layer = L.Convolution2D(3, 3, 1).add_hook(chainer.link_hooks.WeightStandardization())
    NormGroups(evaluation()).install(chainer.Sequential(layer))
    layer.add_hook(chainer.link_hooks.SpectralNormalization())
    with pytest.raises(TypeError, match=r"/0 has the hook SpectralNormalization: .*; use chainer\.link_hooks\.Weight"):
        NormGroups(evaluation()).install(chainer.Sequential(layer))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_scored_it_is_normalised_by_the_running_statistics_with_or_without_a_graph(last, adds, relu, dtype):
    adds = adds and relu
    random, chain = np.random.RandomState(0), installed()[0]
    x, plus = (random.normal(2.0, 3.0, (8, 4, 5, 3)).astype(dtype).transpose(0, 3, 1, 2) for _ in range(2))
    if not last:
        x, plus = np.ascontiguousarray(x), np.ascontiguousarray(plus)
    for parameter in chain.params():
        parameter.array = parameter.array.astype(dtype)
    chain.bn.avg_mean, chain.bn.avg_var = (np.array(values, dtype) for values in ([0.5, -1.0, 2.0], [4.0, 1.0, 0.25]))
    given = x.copy()

    def score():
        h = chain.bn(x)
        h = h + chainer.Variable(plus) if adds else h
        return F.relu(h) if relu else h

    with chainer.using_config("train", False):
        graph = score()
        with chainer.no_backprop_mode():
            alone = score()
    assert alone.dtype == dtype
    assert alone.creator_node is None
    mean, var, gamma, beta = (
        part[:, None, None] for part in (chain.bn.avg_mean, chain.bn.avg_var, chain.bn.gamma.array, chain.bn.beta.array)
    )
    expected = (x - mean) / np.sqrt(var + chain.bn.eps) * gamma + beta + (plus if adds else 0)
    expected = np.maximum(expected, 0) if relu else expected
    bound = 1e-5 if dtype == np.float32 else 1e-12
    for actual in (graph, alone):
        np.testing.assert_allclose(actual.array, expected, rtol=bound, atol=bound)
    np.testing.assert_array_equal(x, given)


@pytest.mark.parametrize("norm_statistics", ["pooled", "last_batch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("last", [False, True])
def test_a_frozen_layer_trains_by_its_running_statistics_and_keeps_them(world, last, dtype, norm_statistics):
    chain, groups = installed(norm_statistics)
    for parameter in chain.params():
        parameter.array = parameter.array.astype(dtype)
    chain.bn.avg_mean, chain.bn.avg_var = (np.array(values, dtype) for values in ([0.5, -1.0, 2.0], [4.0, 1.0, 0.25]))
    chain.bn.is_frozen = True
    x, weights = images(24).astype(dtype), images(24, seed=1).astype(dtype)
    if last:
        x, weights = (part.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) for part in (x, weights))
    before = chain.bn.avg_mean.copy(), chain.bn.avg_var.copy()

    def trained(samples):
        groups.begin_update(divide(global_batch_size=24, norm_span=8, workers=1, micro_batch_size=24))
        groups.num_groups = (samples.stop - samples.start) // 8
        variable = chainer.Variable(x[samples])
        chain.cleargrads()
        with chainer.using_config("train", True):
            out = F.relu(chain.bn(variable))
            F.sum(out * weights[samples]).backward()
        groups.update_running_statistics(world, 24)
        return out.array, variable.grad, chain.bn.gamma.grad, chain.bn.beta.grad

    ours, fixed, given = trained(slice(0, 24)), L.BatchNormalization(3, dtype=dtype), chainer.Variable(x)
    fixed.copyparams(chain.bn)
    fixed.cleargrads()
    with chainer.using_config("train", False):
        out = F.relu(fixed(given))
        F.sum(out * weights).backward()
    bound = 1e-4 if dtype == np.float32 else 1e-9
    for own, theirs in zip(ours, (out.array, given.grad, fixed.gamma.grad, fixed.beta.grad), strict=True):
        np.testing.assert_allclose(own, theirs, rtol=bound, atol=bound)
    for whole, *parts in zip(ours[:2], *(trained(slice(start, start + 8))[:2] for start in (0, 8, 16)), strict=True):
        np.testing.assert_array_equal(whole, np.concatenate(parts))
    np.testing.assert_array_equal((chain.bn.avg_mean, chain.bn.avg_var), before)


def test_scored_without_parameters_of_its_own():
    chain = chainer.Chain()
    with chain.init_scope():
        chain.bn = L.BatchNormalization(3, use_gamma=False, use_beta=False)
    NormGroups(evaluation()).install(chain)
    x = images(8).transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        y = chain.bn(x).array
    np.testing.assert_allclose(y, x / np.sqrt(1 + chain.bn.eps), rtol=1e-5)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("channels", [2, 6])
def test_other_channels_than_its_own_are_refused_in_chainers_words(channels, train):
    chain, groups = installed()
    before = chain.bn.avg_mean.copy()
    x = np.ones((4, 5, 5, channels), np.float32).transpose(0, 3, 1, 2)
    with (
        chainer.using_config("train", train),
        chainer.no_backprop_mode(),
        pytest.raises(Exception, match="Expect|broadcast"),
    ):
        F.relu(chain.bn(x))
    np.testing.assert_array_equal(chain.bn.avg_mean, before)
    assert not groups.take_statistics().any()


def test_sums_that_a_gpu_launches_are_those_over_the_workers(world):
    def seen(*parts):
        chain, groups = installed()
        for part in parts:
            with chainer.using_config("train", True):
                chain.bn(part)
        return chain, groups

    first, second = np.split(images(32), 2)
    (whole, of_both), (part, of_first), (_, of_second) = seen(first, second), seen(first), seen(second)

    def launch_sum(sums):
        sums += of_second.seen[0]
        return True

    of_both.update_running_statistics(world, 32)
    of_first.update_running_statistics(SimpleNamespace(size=2), 32, launch_sum=launch_sum)
    np.testing.assert_array_equal(part.bn.avg_mean, whole.bn.avg_mean)
    np.testing.assert_array_equal(part.bn.avg_var, whole.bn.avg_var)
