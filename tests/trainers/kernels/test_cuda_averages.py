"""Running statistics moved in one launch, on a GPU and compiled for the CPU, are those of the arrays' operations."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers.kernels.cuda import tensors
from trainers.models.batch_norm import NormGroups, moved_statistics

CHANNELS = 300  # more than a block has threads


def host(array):
    return array.get() if hasattr(array, "get") else array


@pytest.mark.parametrize("kind", ["f", "d"])
@pytest.mark.parametrize("keep", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("how", ["pooled", "moving_average"])
@pytest.mark.parametrize("bad", [1.0, np.nan, np.inf])
def test_averages_move_as_by_operations_on_arrays(cuda, kind, keep, how, bad):
    random = np.random.RandomState(0)
    sums, averages = random.uniform(1, 2, 5000), random.normal(size=(2, CHANNELS)).astype(kind)
    places = random.permutation(5000)[: 4 * CHANNELS].reshape(4, CHANNELS)
    sums[places[0, ::7]] = 0  # of layers that were not used
    sums[places[:, 1]] *= bad
    with np.errstate(invalid="ignore"):
        expected = moved_statistics(sums[places], averages, keep, how)
    found = cuda.xp.asarray(averages)
    tensors.move_averages(cuda.xp.asarray(sums), cuda.xp.asarray(places), found, keep, pooled=how == "pooled")
    np.testing.assert_allclose(host(found), expected, rtol=1e-6 if kind == "f" else 1e-13)
    np.testing.assert_array_equal(host(found)[:, ::7], averages[:, ::7])


class Net(chainer.Chain):
    """Two normalisations, of which one has its turn twice."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.wide, self.narrow, self.idle = (L.BatchNormalization(size) for size in (5, 3, 2))

    def forward(self, x):
        return self.narrow(self.narrow(self.wide(x)[:, :3]))


@pytest.mark.parametrize("how", ["pooled", "moving_average", "last_batch", "by_group"])
def test_a_models_running_statistics_are_moved_in_one_launch(cuda_on_cpu, how):
    def moved():
        model, groups = Net(), NormGroups(Evaluation(norm_statistics=how))
        groups.install(model)
        division = divide(global_batch_size=8, norm_span=4, workers=1, micro_batch_size=8)
        x = np.random.RandomState(0).normal(size=(8, 5)).astype("f")
        for _ in range(2):
            groups.begin_update(division)
            groups.begin_micro_batch(division.micro_batches(0)[0])
            with chainer.using_config("train", True):
                model(x)
            groups.update_running_statistics(MPI.COMM_SELF, 8)
        return [getattr(link, name).copy() for link in model.children() for name in ("avg_mean", "avg_var")]

    expected, launched = moved(), cuda_on_cpu()
    for found, other in zip(moved(), expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-6, atol=1e-7)
    assert launched.count("moved_averages") == 2
