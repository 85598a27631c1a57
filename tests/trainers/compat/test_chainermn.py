"""ChainerMN's functions on two real MPI ranks, with its naive communicator and with ours.

Every rank runs each check of this file in turn; means and training are compared in `gradients/test_chainermn.py`.
"""

import sys
import tempfile
import warnings

import trainers  # noqa: F401  first, for its patches

# isort: split

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy
import pytest
from chainer.training import extensions
from chainermn.links import MultiNodeBatchNormalization

from trainers.gradients.chainermn import create_communicator


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["naive", "ours"])
def test_chainermn_on_two_ranks(run_on_ranks, kind):
    done = run_on_ranks(2, __file__, kind)
    assert done.returncode == 0, done.stderr


class Linear(chainer.Chain):
    def __init__(self, start):
        super().__init__()
        with self.init_scope():
            self.layer = L.Linear(2, 1, nobias=True, initialW=numpy.full((1, 2), start, numpy.float32))

    def forward(self, x):
        return self.layer(x)


def classifier():
    """A model whose loss is the mean of its inputs' sums, while its weights are 1."""
    return L.Classifier(Linear(1.0), lossfun=lambda y, t: F.mean(y), accfun=lambda y, t: F.mean(y))


def trainer_around(comm, iterations):
    """A trainer whose loss is the mean of the rank's own samples."""
    model = classifier()
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    samples = [(numpy.full(2, comm.rank + 1, numpy.float32), numpy.zeros(1, numpy.float32))] * 4
    iterator = chainer.iterators.SerialIterator(samples, 2)
    updater = chainer.training.StandardUpdater(iterator, optimizer)
    return chainer.training.Trainer(updater, (iterations, "iteration"), out=tempfile.mkdtemp())


def check_communicator(comm):
    assert comm.size == 2
    assert [int(rank) for rank in comm.allgather(numpy.array(comm.rank))] == [0, 1]
    assert (comm.intra_rank, comm.intra_size, comm.inter_size) == (comm.rank, 2, 1)


def check_send_and_receive(comm):
    if comm.rank == 0:
        comm.send(numpy.array([[3.0, 4.0]], numpy.float32), dest=1, tag=7)
        comm.send_obj({"name": "digits"}, dest=1)
    else:
        assert comm.recv(source=0, tag=7).tolist() == [[3.0, 4.0]]
        assert comm.recv_obj(source=0) == {"name": "digits"}


def check_alltoall(comm):
    sent = tuple(numpy.array([10.0 * comm.rank + to], numpy.float32) for to in range(2))
    received = comm.alltoall(sent)
    assert [array.item() for array in received] == [0.0 + comm.rank, 10.0 + comm.rank]


def check_bcast_and_allreduce(comm):
    of_root = comm.bcast(numpy.array([5.0, 6.0], numpy.float32) if comm.rank == 1 else None, root=1)
    assert of_root.tolist() == [5.0, 6.0]
    assert comm.allreduce(numpy.array([comm.rank + 1.0], numpy.float32)).item() == 3.0


def check_bcast_data(comm):
    model = Linear(start=comm.rank)
    comm.bcast_data(model)
    assert model.layer.W.array.tolist() == [[0.0, 0.0]]


def check_multi_node_evaluator(comm):
    samples = [(numpy.full(2, comm.rank + 1, numpy.float32), numpy.zeros(1, numpy.float32))] * 3
    model = classifier()
    iterator = chainer.iterators.SerialIterator(samples, 2, repeat=False, shuffle=False)
    evaluator = chainermn.create_multi_node_evaluator(extensions.Evaluator(iterator, model), comm)
    assert evaluator()["main/loss"] == 3.0


def check_observation_aggregator(comm):
    for kind in (chainer.Variable, numpy.asarray):
        trainer = trainer_around(comm, iterations=1)
        report = chainer.training.make_extension(priority=chainer.training.PRIORITY_WRITER)(
            lambda trainer, kind=kind: trainer.observation.update(own=kind(numpy.full((), 2.0 * comm.rank + 2)))
        )
        trainer.extend(report)
        trainer.extend(chainermn.extensions.ObservationAggregator(comm, "own", aggregated_key="mean"))
        trainer.run()
        assert float(trainer.observation["mean"]) == 3.0


def check_scatter_dataset(comm):
    samples = list(range(7)) if comm.rank == 0 else None
    shard = chainermn.scatter_dataset(samples, comm, shuffle=True, seed=1, max_buf_len=64)
    both = comm.mpi_comm.allgather(list(shard))
    assert [len(part) for part in both] == [4, 4]
    assert sorted(set(sum(both, []))) == list(range(7))


def check_scatter_index(comm):
    shares = comm.mpi_comm.allgather(chainermn.datasets.scatter_index(7, comm))
    assert [tuple(map(int, share)) for share in shares] == [(0, 4), (3, 7)]


def check_empty_dataset(comm):
    assert len(chainermn.datasets.create_empty_dataset(list(range(5)))) == 5


def check_multi_node_iterator(comm):
    samples = [(numpy.full(2, index, numpy.float32), numpy.int32(index)) for index in range(4)]
    source = chainer.iterators.SerialIterator(samples, 2, shuffle=False) if comm.rank == 0 else None
    iterator = chainermn.iterators.create_multi_node_iterator(source, comm)
    labels = [[int(label) for _, label in next(iterator)] for _ in range(2)]
    assert labels == [[0, 1], [2, 3]]


def check_synchronized_iterator(comm):
    numpy.random.seed(comm.rank)
    iterator = chainer.iterators.SerialIterator(list(range(16)), 16)
    synchronized = chainermn.iterators.create_synchronized_iterator(iterator, comm)
    orders = comm.mpi_comm.allgather(next(synchronized))
    assert orders[0] == orders[1] != list(range(16))


def check_multi_node_batch_normalization_equals_the_joined_batch(comm):
    batch = numpy.random.default_rng(0).standard_normal((8, 3, 2, 2)).astype(numpy.float32)
    weights = numpy.random.default_rng(1).standard_normal(batch.shape).astype(numpy.float32)
    whole, part = slice(None), slice(4 * comm.rank, 4 * comm.rank + 4)

    def outputs(link, rows):
        link.avg_var[...] = 0  # ChainerMN starts its running variance there, Chainer at 1
        x = chainer.Variable(batch[rows])
        y = link(x)
        F.sum(y * weights[rows]).backward()
        num_values = x.size // 3  # a channel; to unbias the variance ChainerMN takes the number on one rank, not all
        return y.array, x.grad, link.avg_mean, link.avg_var * (num_values - 1) / num_values

    joined = outputs(L.BatchNormalization(3), whole)
    ours = outputs(MultiNodeBatchNormalization(3, comm), part)
    for expected, got, rows in zip(joined, ours, (part, part, whole, whole), strict=True):
        numpy.testing.assert_allclose(got, expected[rows], rtol=1e-4, atol=1e-5)


def check_checkpointer(comm):
    folder = comm.bcast_obj(tempfile.mkdtemp() if comm.rank == 0 else None)

    def run(iterations):
        trainer = trainer_around(comm, iterations)
        checkpointer = chainermn.create_multi_node_checkpointer("check", comm, path=folder)
        trainer.extend(checkpointer, trigger=(1, "iteration"))
        checkpointer.maybe_load(trainer, trainer.updater.get_optimizer("main"))
        start = trainer.updater.iteration
        trainer.run()
        checkpointer.save(trainer, trainer.updater.iteration)  # a run that ends well removes its checkpoints
        return start, trainer.updater.get_optimizer("main").target.predictor.layer.W.array

    assert run(2)[0] == 0
    start, W = run(4)
    assert start == 2
    # a call of the optimizer moves W by 0.15, but the first of a process, also of a resumed one, only broadcasts it
    numpy.testing.assert_allclose(W, [[1 - 0.15 - 0.15] * 2], rtol=1e-6)


if __name__ == "__main__":  # on a rank
    chainer.disable_experimental_feature_warning = True
    warnings.filterwarnings("ignore", "Checkpointer is deprecated")
    communicator = create_communicator() if sys.argv[1] == "ours" else chainermn.create_communicator(sys.argv[1])
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check(communicator)
            communicator.mpi_comm.Barrier()
    communicator.finalize()
