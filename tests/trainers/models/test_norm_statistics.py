"""Statistics of norm groups, put together from whatever parts, are those of all their samples at once."""

import contextlib

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from mpi4py import MPI

from recipes.planning.division import divide
from recipes.schema import Evaluation, NormMomentum
from trainers.models.batch_norm import NormGroups, moved_statistics
from trainers.models.keyed_random import draw_initial_weights

CHANNELS = 3


def images(random, count, *, deviations_from_zero=0.0, size=(5, 4), channels_last=False):
    """float32 NCHW whose channels differ in scale; their memory is as a convolution of Chainer leaves it, or not."""
    drift = np.linspace(-0.5, 0.5, count).reshape(-1, 1, 1, 1)  # groups differ
    scale = np.array([0.1, 1.0, 30.0]).reshape(-1, 1, 1)
    x = (scale * (random.normal(deviations_from_zero, 1.0, (count, CHANNELS, *size)) + drift)).astype(np.float32)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if channels_last else x


def workers(how, count, *, keep=0.0, per="update"):
    """A layer and its norm groups for each of so many workers."""
    made = []
    for _ in range(count):
        chain = chainer.Chain()
        with chain.init_scope():
            chain.bn = L.BatchNormalization(CHANNELS)
        groups = NormGroups(Evaluation(norm_statistics=how, norm_momentum=NormMomentum(keep=keep, per=per)))
        groups.install(chain)
        made.append((chain.bn, groups))
    return made


def see(x, division, made):
    """The forwards of one update of every worker, none of them sharing a group; the sum of what they saw."""
    for rank, (layer, groups) in enumerate(made):
        groups.begin_update(division)
        for part in division.micro_batches(rank):
            groups.begin_micro_batch(part)
            with chainer.using_config("train", True):
                layer(x[part.offset : part.offset + part.size])
    return sum(groups.take_statistics() for _, groups in made)


def random_division(random):
    span, num_groups, ranks = (int(random.randint(low, high)) for low, high in ((2, 20), (1, 9), (1, 6)))
    ranks = min(ranks, num_groups)
    micro_batch_size = span * int(random.randint(1, 4))
    return divide(global_batch_size=span * num_groups, norm_span=span, workers=ranks, micro_batch_size=micro_batch_size)


def of_channels(sums):
    """What one layer has seen, as `moved_statistics` is given it."""
    return np.stack([np.full(CHANNELS, sums[0]), *np.split(sums[1:], 3)])


@pytest.mark.parametrize("deviations_from_zero", [0.0, 100.0])
def test_pooled_statistics_are_those_of_the_whole_update_however_it_is_split(deviations_from_zero):
    for seed in range(60):
        random = np.random.RandomState(seed)
        division = random_division(random)
        count = division.num_groups * division.norm_span
        x = images(random, count, deviations_from_zero=deviations_from_zero, channels_last=bool(seed % 2))
        made = workers("pooled", division.workers)
        sums = see(x, division, made)
        wide = x.astype(np.float64)
        mean, var = wide.mean(axis=(0, 2, 3)), wide.var(axis=(0, 2, 3))
        np.testing.assert_array_less(np.abs(sums[1:4] / sums[0] - mean), 1e-6 * np.sqrt(var), err_msg=str(seed))
        pooled = moved_statistics(of_channels(sums), np.zeros((2, CHANNELS), np.float32), 0.0, "pooled")
        np.testing.assert_allclose(pooled[1], var, rtol=1e-6, err_msg=str(seed))
        np.testing.assert_array_equal(pooled[0], sums[1:4] / sums[0])


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_large_group_far_from_zero_loses_nothing(channels_last):
    # 100,352 values a channel: added up one after the other in float32 the variance would be 1e-5 off.
    random = np.random.RandomState(0)
    x = images(random, 32, deviations_from_zero=100.0, size=(56, 56), channels_last=channels_last)
    division = divide(global_batch_size=32, norm_span=32, workers=1, micro_batch_size=32)
    ((layer, groups),) = made = workers("pooled", 1)
    sums = see(x, division, made)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(sums[4:7], wide.var(axis=(0, 2, 3)), rtol=1e-7)
    groups.begin_update(division)
    with chainer.using_config("train", True):
        y = layer(x).array.astype(np.float64)
    # What is left is the rounding of the mean to float32, half of 7.6e-6 at a hundred deviations.
    np.testing.assert_allclose(y.mean(axis=(0, 2, 3)), 0, atol=8e-6)
    np.testing.assert_allclose(y.var(axis=(0, 2, 3)), 1, rtol=3e-3)  # epsilon 2e-5 beside a variance of 0.01


def groups_in_turn(x, span, *, keep, mean, var):
    """Hoffer et al. 2017: one group after the other moves the averages."""
    for group in np.split(x.astype(np.float64), len(x) // span):
        mean = keep * mean + (1 - keep) * group.mean(axis=(0, 2, 3))
        var = keep * var + (1 - keep) * group.var(axis=(0, 2, 3), ddof=1)
    return mean, var


@pytest.mark.parametrize("keep", [0.9, 0.0])
def test_by_group_the_averages_move_in_the_order_of_the_update_whoever_saw_what(keep):
    for seed in range(20):
        random = np.random.RandomState(seed)
        division = random_division(random)
        made = workers("by_group", division.workers, keep=keep)
        mean, var = np.zeros(CHANNELS), np.ones(CHANNELS)
        for _ in range(2):
            x = images(random, division.num_groups * division.norm_span)
            sums = see(x, division, made)
            mean, var = groups_in_turn(x, division.norm_span, keep=keep, mean=mean, var=var)
            for layer, _ in made:
                averages = np.stack([layer.avg_mean, layer.avg_var])
                moved = moved_statistics(of_channels(sums), averages, keep**division.num_groups, "by_group")
                layer.avg_mean[...], layer.avg_var[...] = moved
        for layer, _ in made:
            np.testing.assert_allclose(layer.avg_mean, mean, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(layer.avg_var, var, rtol=1e-5)


@pytest.mark.parametrize(("keep", "per", "each"), [(0.5, "update", 0.5), (0.5, 64, 0.5**0.25)])
def test_by_group_momentum_is_of_each_group_or_by_samples(keep, per, each):
    random = np.random.RandomState(0)
    x = images(random, 48)
    division = divide(global_batch_size=48, norm_span=16, workers=1, micro_batch_size=32)
    ((layer, groups),) = made = workers("by_group", 1, keep=keep, per=per)
    layer._seen += see(x, division, made)
    groups.update_running_statistics(MPI.COMM_SELF, 48)
    mean, var = groups_in_turn(x, 16, keep=each, mean=np.zeros(CHANNELS), var=np.ones(CHANNELS))
    np.testing.assert_allclose(layer.avg_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(layer.avg_var, var, rtol=1e-5)


@pytest.mark.parametrize(("keep", "per"), [(0.1, "update"), (0.1**0.25, 1)])
def test_by_group_counts_by_group_where_nothing_is_left_of_the_average_before_the_update(keep, per):
    """0.1 ** 400 is 0 as a float; the last group but one still counts a tenth of the last one."""
    random = np.random.RandomState(0)
    x = images(random, 1600)
    division = divide(global_batch_size=1600, norm_span=4, workers=1, micro_batch_size=1600)
    ((layer, groups),) = made = workers("by_group", 1, keep=keep, per=per)
    layer._seen += see(x, division, made)
    groups.update_running_statistics(MPI.COMM_SELF, 1600)
    mean, var = groups_in_turn(x, 4, keep=0.1, mean=np.zeros(CHANNELS), var=np.ones(CHANNELS))
    np.testing.assert_allclose(layer.avg_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(layer.avg_var, var, rtol=1e-5)


def test_by_group_a_layer_used_twice_in_a_forward_counts_both_uses_alike():
    random = np.random.RandomState(0)
    x = images(random, 8)
    division = divide(global_batch_size=8, norm_span=8, workers=1, micro_batch_size=8)
    ((layer, groups),) = workers("by_group", 1, keep=0.5)
    groups.begin_update(division)
    for part in (x, x + np.float32(2.0)):
        with chainer.using_config("train", True):
            layer(part)
    groups.update_running_statistics(MPI.COMM_SELF, 8)
    np.testing.assert_allclose(layer.avg_mean, 0.5 * (x.mean(axis=(0, 2, 3)) + 1.0), rtol=1e-5)


def test_an_update_that_begins_again_forgets_what_it_saw():
    random = np.random.RandomState(0)
    division = divide(global_batch_size=8, norm_span=8, workers=1, micro_batch_size=8)
    ((layer, groups),) = workers("pooled", 1)
    for x in (images(random, 8, deviations_from_zero=5.0), last := images(random, 8)):
        groups.begin_update(division)
        with chainer.using_config("train", True):
            layer(x)
    groups.update_running_statistics(MPI.COMM_SELF, 8)
    np.testing.assert_allclose(layer.avg_mean, last.mean(axis=(0, 2, 3), dtype=np.float64), rtol=1e-6)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_on_real_ranks_statistics_and_gradients_do_not_depend_on_the_split(run_on_ranks, ranks):
    done = run_on_ranks(ranks, __file__)
    assert done.returncode == 0, done.stderr
    assert "14 splits, 7 of them with teams of several workers" in done.stdout


WORLD = MPI.COMM_WORLD
SEEDS = 14


def layer_and_groups(how, dtype=np.float64):
    chain = chainer.Chain()
    with chain.init_scope():
        chain.bn = L.BatchNormalization(CHANNELS, dtype=dtype)
    chain.bn.gamma.array[...] = [0.5, 1.0, 2.0]
    groups = NormGroups(Evaluation(norm_statistics=how, norm_momentum=NormMomentum(keep=0.5)))
    groups.install(chain)
    return chain.bn, groups


def one_update(layer, groups, division, team, x, weights, world, rank):
    """Gradient with respect to the samples of this rank (others 0), and to the scale; running statistics move."""
    groups.begin_update(division, team)
    gradient = np.zeros_like(x)
    layer.cleargrads()
    for part in division.micro_batches(rank):
        own = slice(part.offset, part.offset + part.size)
        groups.begin_micro_batch(part)
        images = chainer.Variable(x[own])
        with chainer.using_config("train", True):
            F.sum(layer(images) * weights[own]).backward()
        gradient[own] = images.grad
    groups.update_running_statistics(world, len(x))
    scale = np.zeros(CHANNELS) if layer.gamma.grad is None else layer.gamma.grad
    return world.allreduce(gradient), world.allreduce(scale)


def check(seed, *, with_teams):
    random = np.random.RandomState(seed)
    num_groups = int(random.randint(1, 6))
    span = int(random.randint(WORLD.size + 1, 20))
    micro_batch_size = -(-span // WORLD.size) if with_teams else span * int(random.randint(1, 3))
    sizes = {"global_batch_size": num_groups * span, "norm_span": span}
    division = divide(**sizes, workers=WORLD.size, micro_batch_size=micro_batch_size)
    own_team = division.team_of(WORLD.rank)
    team = WORLD.Split(division.num_teams if own_team is None else own_team, WORLD.rank)
    x = (
        random.normal(100.0, 1.0, (num_groups * span, CHANNELS, 2, 3))
        + np.arange(num_groups * span)[:, None, None, None]
    )
    if seed % 4 > 1:  # as convolutions leave it
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    weights = random.normal(size=x.shape)
    for how in ("moving_average", "pooled", "last_batch", "by_group"):
        split, alone = layer_and_groups(how), layer_and_groups(how)
        shared = team if division.team_size > 1 else None
        actual = one_update(*split, division, shared, x, weights, WORLD, WORLD.rank)
        whole = divide(**sizes, workers=1, micro_batch_size=len(x))
        expected = one_update(*alone, whole, None, x, weights, MPI.COMM_SELF, 0)
        for part, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed} {how}")
        for name in ("avg_mean", "avg_var"):
            np.testing.assert_allclose(getattr(split[0], name), getattr(alone[0], name), rtol=1e-12)
        if how == "pooled":
            mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
            np.testing.assert_allclose(split[0].avg_mean, 0.5 * mean, rtol=1e-12)
            np.testing.assert_allclose(split[0].avg_var, 0.5 + 0.5 * var, rtol=1e-9)
    narrow = layer_and_groups("pooled", np.float32)
    x, weights = (array.astype(np.float32) for array in (random.normal(100.0, 1.0, x.shape), weights))
    one_update(*narrow, division, shared, x, weights, WORLD, WORLD.rank)
    var = x.astype(np.float64).var(axis=(0, 2, 3))
    np.testing.assert_allclose(2.0 * narrow[0].avg_var.astype(np.float64) - 1.0, var, rtol=1e-6)
    team.Free()
    return division.team_size > 1


def check_float32(seed):
    """Of float32, whose passes may be compiled: a sum and ReLU after it are those of all samples in float64."""
    random, span = np.random.RandomState(seed), 3 * WORLD.size + 1 + seed
    sizes = {"global_batch_size": 2 * span, "norm_span": span}
    shape = (2 * span, 7, 5, CHANNELS)
    given = [random.normal(mean, 1.0, shape).astype("f").transpose(0, 3, 1, 2) for mean in (2.0, 0.0, 0.0)]
    adds, relu = bool(seed % 2), seed > 1
    results = []
    for world, dtype in ((WORLD, np.float32), (MPI.COMM_SELF, np.float64)):
        division = divide(**sizes, workers=world.size, micro_batch_size=-(-span // world.size))
        layer, groups = layer_and_groups("pooled", dtype)
        layer.cleargrads()
        groups.begin_update(division, WORLD if world.size > 1 else None)
        x, plus, weights = (each.astype(dtype) for each in given)
        outs = [np.zeros(shape).transpose(0, 3, 1, 2) for _ in range(3)]
        for part in division.micro_batches(world.rank):
            own = slice(part.offset, part.offset + part.size)
            groups.begin_micro_batch(part)
            images, more = chainer.Variable(x[own]), chainer.Variable(plus[own])
            with chainer.using_config("train", True):
                y = layer(images)
                y = y + more if adds else y
                y = F.relu(y) if relu else y
            F.sum(y * weights[own]).backward()
            for out, values in zip(outs, (y.array, images.grad, more.grad if adds else 0), strict=True):
                out[own] = values
        groups.update_running_statistics(world, 2 * span)
        sums = [layer.gamma.grad, layer.beta.grad]
        results.append([*(world.allreduce(each.astype("d")) for each in (*outs, *sums)), layer.avg_mean, layer.avg_var])
    for actual, expected in zip(*results, strict=True):
        away = np.linalg.norm(actual - expected)
        assert away <= 2e-6 * np.linalg.norm(expected), f"{seed}: {away}"


def check_convolved(seed, how):
    """A team's groups behind a convolution: one node has the bits of two."""
    span, random = 2 * WORLD.size + 1, np.random.RandomState(seed)
    sizes = {"global_batch_size": 2 * span, "norm_span": span, "micro_batch_size": -(-span // WORLD.size)}
    division = divide(**sizes, workers=WORLD.size)
    x = random.normal(2.0, 1.0, (2 * span, 3, 6, 5)).astype(np.float32)
    results = []
    for watch, kind in (
        (contextlib.nullcontext(), "ConvolutionNormalization"),
        (chainer.FunctionHook(), "Normalization"),
    ):
        chain = chainer.Chain()
        with chain.init_scope():
            chain.conv = L.Convolution2D(3, 4, 3, nobias=True)
            chain.bn = L.BatchNormalization(4)
        draw_initial_weights(chain, seed=seed)
        groups = NormGroups(Evaluation(norm_statistics=how))
        groups.install(chain)
        groups.begin_update(division, WORLD)
        actual = []
        for part in division.micro_batches(WORLD.rank):
            groups.begin_micro_batch(part)
            images = chainer.Variable(x[part.offset : part.offset + part.size])
            with chainer.using_config("train", True), watch:
                y = F.relu(chain.bn(chain.conv(images)) + images[:, :1, 1:-1, 1:-1] * np.ones((1, 4, 1, 1), "f"))
                F.sum(y**2).backward()
            assert type(y.creator_node).__name__ == kind
            actual += [y.array, images.grad]
        actual += [groups.take_statistics(), chain.conv.W.grad, chain.bn.gamma.grad, chain.bn.beta.grad]
        results.append(actual)
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


if __name__ == "__main__":  # on a rank: random splits, half of them with groups that a team shares unevenly
    for seed in range(4):
        check_float32(seed)
    for how in ("moving_average", "pooled"):
        check_convolved(0, how)
    shared = sum(check(seed, with_teams=seed % 2 == 0) for seed in range(SEEDS))
    if WORLD.rank == 0:
        print(f"{SEEDS} splits, {shared} of them with teams of several workers")


def test_a_pooled_variance_is_not_below_0_by_rounding():
    sums = np.array([3.0, 3 * 1e6, 0.0, np.nextafter(3 * 1e12, 0)]).reshape(4, 1)
    assert moved_statistics(sums, np.zeros((2, 1)), 0.0, "pooled")[1] == 0
