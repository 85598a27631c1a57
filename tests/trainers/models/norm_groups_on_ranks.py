"""Run under mpiexec: one update of a normalisation layer in float64 on all ranks, against all its samples here at once.

Random splits: half of them with groups inside a micro-batch, half with groups that a team of workers shares unevenly.
"""

import trainers.compat  # noqa: F401  isort: skip

import contextlib

import chainer
import numpy as np
from chainer import functions as F
from chainer import links as L
from mpi4py import MPI

from recipes.planning.division import divide
from recipes.schema import Evaluation, NormMomentum
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import draw_initial_weights

WORLD = MPI.COMM_WORLD
CHANNELS = 3
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


if __name__ == "__main__":
    for seed in range(4):
        check_float32(seed)
    for how in ("moving_average", "pooled"):
        check_convolved(0, how)
    shared = sum(check(seed, with_teams=seed % 2 == 0) for seed in range(SEEDS))
    if WORLD.rank == 0:
        print(f"{SEEDS} splits, {shared} of them with teams of several workers")
