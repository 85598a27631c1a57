"""PowerSGD against its algorithm with dense errors in float64, over 50 updates, on one worker and on several."""

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from mpi4py import MPI

from recipes.planning.random_bits import draws, word
from trainers.communicators import Direct, Ring, SharedWindow
from trainers.communicators.wire import Float16Wire, FullWire
from trainers.gradients.flat_gradients import backward_order
from trainers.gradients.power_sgd import PowerExchange, orthogonalize, rank_of, shared_out

WORLD, SEED = MPI.COMM_WORLD, 3


class Network(chainer.Chain):
    """A convolution, a bias and a matrix that become smaller, and a small matrix that does not."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(2, 6, 3)
            self.fc = L.Linear(24, 10)
            self.last = L.Linear(10, 2, nobias=True)

    def forward(self, images_NCHW):
        return self.last(self.fc(F.relu(self.conv(images_NCHW))))


def gradient_of(update, worker, dtype=np.float64):
    """Gradients of a worker at an update: a part that all share, which turns slowly, and noise."""
    size = sum(parameter.size for parameter in Network().params())
    shared = np.random.RandomState(0).normal(size=(3, size))
    turned = shared[0] + np.cos(update / 9) * shared[1] + np.sin(update / 5) * shared[2]
    return (turned + np.random.RandomState(1000 * update + worker).normal(size=size)).astype(dtype)


def exchange_of(mpi, *, rank=2, dtype=np.float64, component=None, wire=None):
    connection = (component or Direct()).connect(mpi.Dup())
    model = Network()
    for parameter in model.params():
        parameter.array = parameter.array.astype(dtype)
    images = np.ones((1, 2, 4, 4), dtype)
    return PowerExchange(
        model, backward_order(model, images), connection, wire=wire or FullWire(dtype), rank=rank, seed=SEED
    )


def run(exchange, own, *, updates=range(50), scale=0.1, dtype=np.float64):
    """The approximations of the updates, where `own(worker)` workers' gradients are here."""
    found = []
    for update in updates:
        exchange.flat.values[...] = sum(gradient_of(update, worker, dtype) for worker in own)
        exchange.begin(scale=scale).finish()
        exchange.commit()
        found.append(exchange.flat.values.copy())
    return found


def by_algorithm(slots, *, workers, rank, updates=50, scale=0.1):
    """Vogels et al. 2019, algorithms 1 and 2, in their order, with the error of every worker apart and dense."""
    errors, factors, found = [np.zeros(slots[-1].span.stop) for _ in range(workers)], {}, []
    for update in range(updates):
        # Theirs are means over workers: each worker's own gradient is `workers` times its part of the sum.
        memory = [workers * scale * gradient_of(update, worker) + errors[worker] for worker in range(workers)]
        out = np.mean(memory, axis=0)
        for slot in slots:
            shape = slot.parameter.shape
            r = rank_of(shape, rank)
            if not r:
                continue
            m = [each[slot.span].reshape(shape[0], -1) for each in memory]
            if slot.path not in factors:
                drawn = draws(SEED, "power sgd", word(slot.path)).normals(m[0].shape[1] * r)
                factors[slot.path] = drawn.reshape(-1, r)
            p = np.mean([each @ factors[slot.path] for each in m], axis=0)
            columns = []
            for column in p.T:  # Gram and Schmidt, with the authors' 1e-8 beside a column's length
                for done in columns:
                    column = column - (column @ done) * done
                columns.append(column / (np.sqrt(column @ column) + 1e-8))
            p = np.stack(columns, axis=1)
            q = factors[slot.path] = np.mean([each.T @ p for each in m], axis=0)
            out[slot.span] = (p @ q.T).ravel()
        errors = [each - out for each in memory]
        found.append(out)
    return found


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_50_updates_on_one_worker_are_those_of_the_algorithm(rank):
    exchange = exchange_of(MPI.COMM_SELF, rank=rank)
    assert {slot.path for slot in exchange.flat.slots if rank_of(slot.parameter.shape, rank)} >= {"/conv/W", "/fc/W"}
    expected = by_algorithm(exchange.flat.slots, workers=1, rank=rank)
    for actual, other in zip(run(exchange, [0]), expected, strict=True):
        np.testing.assert_allclose(actual, other, atol=1e-10)
    exact = sum(0.1 * gradient_of(update, 0) for update in range(50))
    assert np.linalg.norm(exact - sum(expected)) > 0.1, "something is left out"


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_on_ranks(run_on_ranks, ranks):
    """Runs the checks below; the number of ranks changes nothing but rounding."""
    done = run_on_ranks(ranks, __file__)
    assert done.returncode == 0, done.stdout + done.stderr


def check_workers_with_errors_of_their_own_give_what_one_gives_with_all_gradients(component):
    """Three gradients an update, shared unevenly. 1e-15 of rounding grows to 1e-9 in 50 updates, on one worker too."""
    together = run(exchange_of(WORLD, component=component), range(3)[WORLD.rank :: WORLD.size])
    alone = run(exchange_of(MPI.COMM_SELF), range(3))
    for actual, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-7)
    assert len(set(WORLD.allgather(together[-1].tobytes()))) == 1, "the same bits on all workers"


def check_50_updates_of_as_many_workers_are_those_of_the_algorithm():
    exchange = exchange_of(WORLD)
    expected = by_algorithm(exchange.flat.slots, workers=WORLD.size, rank=2)
    for actual, other in zip(run(exchange, [WORLD.rank]), expected, strict=True):
        np.testing.assert_allclose(actual, other, atol=1e-7)


def test_an_attempt_that_is_done_again_leaves_no_error_and_a_resumed_run_has_the_bits():
    whole = run(exchange_of(MPI.COMM_SELF, dtype=np.float32), [0], dtype=np.float32)
    first, then = (exchange_of(MPI.COMM_SELF, dtype=np.float32) for _ in range(2))
    run(first, [0], updates=range(20), dtype=np.float32)
    first.flat.values[...] = 7.0
    first.begin(scale=0.1).finish()  # given up
    then.restore({name: array.copy() for name, array in first.own_arrays().items()})
    for exchange in (first, then):
        rest = run(exchange, [0], updates=range(20, 50), dtype=np.float32)
        for actual, expected in zip(rest, whole[20:], strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_errors_of_three_workers_are_shared_out_to_two():
    kept = [{"error:/W": np.full(2, number, np.float32), "q:/W": np.ones(1)} for number in (1.0, 2.0, 6.0)]
    assert shared_out(kept, 3) == kept
    one, two = shared_out(kept, 2)
    assert one is two
    assert (one["error:/W"].tolist(), one["error:/W"].dtype, one["q:/W"]) == ([4.5, 4.5], np.float32, [1.0])


def test_on_a_16_bit_wire_the_errors_make_up_for_what_was_rounded_away():
    exchange = exchange_of(MPI.COMM_SELF, dtype=np.float32, wire=Float16Wire(), rank=4)
    total = sum(run(exchange, [0], dtype=np.float32))
    exact = sum(0.1 * gradient_of(update, 0) for update in range(50))
    error = sum(np.linalg.norm(array) ** 2 for name, array in exchange.own_arrays().items() if name.startswith("error"))
    matrices = np.concatenate([np.r_[slot.span] for slot in exchange.flat.slots if rank_of(slot.parameter.shape, 4)])
    assert np.linalg.norm((exact - total)[matrices]) == pytest.approx(error**0.5, rel=1e-3)


def test_columns_become_orthogonal():
    matrix = np.random.RandomState(0).normal(size=(9, 4))
    orthogonalize(matrix)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(4), atol=1e-7)


if __name__ == "__main__":
    for communicator in (Direct(), Ring(), SharedWindow()):
        check_workers_with_errors_of_their_own_give_what_one_gives_with_all_gradients(communicator)
    check_50_updates_of_as_many_workers_are_those_of_the_algorithm()


def test_a_gradient_that_is_zero_once_does_not_freeze_its_weights():
    """As those of a convolution behind a last gamma of 0, at the first update."""
    exchange = exchange_of(WORLD)
    for update in range(3):
        exchange.flat.values[...] = gradient_of(update, 0) if update else 0
        exchange.begin(scale=1.0).finish()
        exchange.commit()
    assert exchange._matrices
    for matrix in exchange._matrices:
        assert np.linalg.matrix_rank(matrix.of(exchange.flat.values)) == 2


def test_a_matrix_crosses_as_it_is_where_its_factors_are_no_shorter():
    """4 x 4 at rank 2: 2 * (4 + 4) numbers."""
    assert (rank_of((4, 4), 2), rank_of((4, 5), 2)) == (0, 2)
