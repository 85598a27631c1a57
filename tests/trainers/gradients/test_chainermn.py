"""Our exchange behind ChainerMN's interface: settings here, and all its parts on two and three ranks beside `naive`."""

import re

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
import pytest
from chainer.training import extensions
from chainermn.links import MultiNodeBatchNormalization
from mpi4py import MPI

from trainers.communicators import Direct, MpiAllreduce, Ring, SharedWindow, Torus
from trainers.gradients.chainermn import create_communicator
from trainers.models import SmallCNN

WORLD = MPI.COMM_WORLD


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_chainermn_with_ours_as_with_naive(run_on_ranks, ranks):
    done = run_on_ranks(ranks, __file__)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wire": "float8"}, "wire must be one of float32, float16, bfloat16, got 'float8'"),
        ({"bucket_bytes": 7}, "bucket_bytes must be a whole number >= 8, got 7"),
        ({"bucket_bytes": 1e6}, "bucket_bytes must be a whole number >= 8"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        create_communicator(Ring(), MPI.COMM_SELF, **settings)


@pytest.mark.parametrize("communicator", ["naive", "Ring", Ring], ids=repr)
def test_what_is_no_component_is_refused_at_once(communicator):
    with pytest.raises(TypeError, match=re.escape(f"such as Ring(), got {communicator!r}")):
        create_communicator(communicator, MPI.COMM_SELF)


@pytest.mark.parametrize(
    ("communicator", "wire", "message"),
    [
        (Torus(row=2), "float32", "Torus: 1 workers do not divide into rows of 2"),
        (MpiAllreduce(), "float16", "MpiAllreduce has no sum of float16; take Direct, Ring or HalvingDoubling"),
    ],
)
def test_a_communicator_that_does_not_fit_is_refused_before_the_first_gradients(communicator, wire, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        create_communicator(communicator, MPI.COMM_SELF, wire=wire)


def test_chainermn_takes_it_for_one_of_its_own():
    communicator = create_communicator(Ring(), MPI.COMM_SELF)
    assert isinstance(communicator, chainermn.CommunicatorBase)
    assert (communicator.rank, communicator.size, communicator.get_config("batched_copy")) == (0, 1, False)
    communicator.finalize()


def test_gradients_that_are_no_floats_of_numpy_are_refused_by_path():
    class Whole(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.layer = L.Linear(1, 1)

    model = Whole()
    model.layer.W.array = np.zeros((1, 1), np.int32)
    model.layer.W.grad = np.zeros((1, 1), np.int32)
    with pytest.raises(TypeError, match="gradient of /layer/W is no float array of NumPy or CuPy$"):
        create_communicator(Ring(), MPI.COMM_SELF).multi_node_mean_grad(model)


def both(run):
    """What `run` gives with naive, and with each of ours."""
    expected = run(NAIVE)
    for name, communicator in OURS.items():
        yield name, expected, run(communicator)


def assert_same(actual, expected, name):
    assert sorted(actual) == sorted(expected)
    for path, array in expected.items():
        np.testing.assert_allclose(actual[path], array, rtol=2e-5, atol=1e-6, err_msg=f"{name} {path}")


def model_with_gradients(scale=1.0, types=(np.float32,)):
    random = np.random.RandomState(WORLD.rank)
    model = SmallCNN(width=4).build(num_classes=3, channels=1, image_size=8)
    for number, (_, parameter) in enumerate(sorted(model.namedparams())):
        type_ = types[number % len(types)]
        parameter.array = parameter.array.astype(type_)
        parameter.grad = (scale * random.normal(size=parameter.shape)).astype(type_)
    return model


def gradients(model):
    return {path: parameter.grad for path, parameter in model.namedparams()}


def check_mean_of_gradients():
    def run(communicator):
        model = model_with_gradients()
        communicator.multi_node_mean_grad(model)
        return gradients(model)

    for name, expected, actual in both(run):
        assert_same(actual, expected, name)
        if WORLD.size == 2:  # one sum of two: the same bits
            assert all(np.array_equal(actual[path], expected[path]) for path in expected), name


def check_mean_is_written_where_the_gradients_are():
    for communicator in OURS.values():
        model = model_with_gradients()
        arrays = gradients(model)
        communicator.multi_node_mean_grad(model)
        communicator.multi_node_mean_grad(model_with_gradients(scale=2.0))  # the buffer is used again
        assert all(array is arrays[path] for path, array in gradients(model).items())
        mean = {path: sum(WORLD.allgather(array)) / WORLD.size for path, array in arrays.items()}
        assert_same(arrays, mean, "means are equal on all ranks")


def check_gradients_of_every_float_type():
    def run(communicator):
        model = model_with_gradients(types=(np.float16, np.float64, np.float32))
        communicator.multi_node_mean_grad(model)
        return gradients(model)

    for name, expected, actual in both(run):
        for path, array in expected.items():
            assert actual[path].dtype == array.dtype
            tolerance = {2: 2e-3, 4: 1e-6, 8: 1e-12}[array.dtype.itemsize]
            np.testing.assert_allclose(actual[path], array, atol=tolerance, err_msg=f"{name} {path}")


def check_gradients_that_are_missing_and_such_as_are_not_contiguous():
    def run(communicator, *, zero_fill):
        link = L.Linear(3, 2, initialW=0)
        link.cleargrads()
        link.W.grad = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3) * WORLD.rank)
        if zero_fill and WORLD.rank == 0:
            link.b.grad = np.ones(2, np.float32)
        communicator.multi_node_mean_grad(link, zero_fill=zero_fill)
        return link

    for communicator in OURS.values():
        link = run(communicator, zero_fill=False)
        mean_rank = (WORLD.size - 1) / 2
        np.testing.assert_allclose(link.W.grad, np.arange(6).reshape(2, 3) * mean_rank, rtol=1e-6)
        assert link.b.grad is None
        np.testing.assert_allclose(run(communicator, zero_fill=True).b.grad, np.full(2, 1 / WORLD.size), rtol=1e-6)


def check_sixteen_bits_neither_overflow_nor_vanish():
    for wire, bound in (("float16", 2e-3), ("bfloat16", 2e-2)):
        communicator = create_communicator(Ring(), wire=wire)
        for scale in (1e-12, 1.0, 1e12):
            model, exact = model_with_gradients(scale), model_with_gradients(scale)
            communicator.multi_node_mean_grad(model)
            NAIVE.multi_node_mean_grad(exact)
            actual, expected = (
                np.concatenate([a.ravel() for _, a in sorted(gradients(m).items())]) for m in (model, exact)
            )
            error = np.linalg.norm(actual / scale - expected / scale) / np.linalg.norm(expected / scale)
            assert 0 < error < bound * WORLD.size, (wire, scale, error)
        communicator.finalize()


class Normalised(chainer.Chain):
    def __init__(self, communicator):
        super().__init__()
        random = np.random.RandomState(1)
        with self.init_scope():
            self.first = L.Linear(4, 6, initialW=random.normal(size=(6, 4)).astype(np.float32))
            self.norm = MultiNodeBatchNormalization(6, communicator)
            self.last = L.Linear(6, 3, initialW=random.normal(size=(3, 6)).astype(np.float32))

    def forward(self, x):
        return self.last(F.tanh(self.norm(self.first(x))))


def samples():
    random = np.random.RandomState(2)
    return [(random.normal(size=4).astype(np.float32), np.int32(number % 3)) for number in range(12 * WORLD.size)]


def check_training_with_scattered_data_normalisation_over_ranks_and_the_evaluator():
    def run(communicator):
        shard = chainermn.scatter_dataset(samples() if WORLD.rank == 0 else None, communicator, shuffle=True, seed=3)
        model = L.Classifier(Normalised(communicator))
        optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(0.1), communicator)
        optimizer.setup(model)
        iterator = chainer.iterators.SerialIterator(shard, 4, shuffle=False)
        updater = chainer.training.StandardUpdater(iterator, optimizer)
        for _ in range(7):
            updater.update()
        scored = chainer.iterators.SerialIterator(shard, 5, repeat=False, shuffle=False)
        evaluator = chainermn.create_multi_node_evaluator(extensions.Evaluator(scored, model), communicator)
        arrays = {path: parameter.array for path, parameter in model.namedparams()}
        norm = model.predictor.norm
        scores = {name: np.asarray(value) for name, value in evaluator().items()}
        return arrays | scores | {"mean": norm.avg_mean, "var": norm.avg_var}

    for name, expected, actual in both(run):
        assert len(expected) == 6 + 2 + 2
        assert_same(actual, expected, name)


def check_parts_of_the_ranks_average_among_themselves():
    def run(communicator):
        part = communicator.split(WORLD.rank // 2, -WORLD.rank)
        assert type(part) is type(communicator)
        assert (part.size, part.rank) == ((1, 0) if WORLD.rank == 2 else (2, 1 - WORLD.rank))
        model = model_with_gradients()
        part.multi_node_mean_grad(model)
        if part is not NAIVE:
            part.finalize()
        return gradients(model)

    for name, expected, actual in both(run):
        assert_same(actual, expected, name)


if __name__ == "__main__":  # on a rank
    chainer.disable_experimental_feature_warning = True
    NAIVE = chainermn.create_communicator("naive")
    OURS = {
        "auto": create_communicator(),
        "ring": create_communicator(Ring(), bucket_bytes=1000),
        "shared window": create_communicator(SharedWindow(), bucket_bytes=8),
        "direct": create_communicator(Direct(), bucket_bytes=260),
    }
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            WORLD.Barrier()
    for communicator in OURS.values():
        communicator.finalize()
