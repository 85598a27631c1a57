"""ChainerMN's own communicators as a kind: right sums, real ones, and refusals before ranks start."""

import subprocess
import sys

import pytest

from recipes.errors import RecipeError
from recipes.reading.open import open_cluster
from trainers.communicators import ChainerMN
from trainers.launch.vocabulary import vocabulary

PROGRAM = """
import numpy as np
from mpi4py import MPI
import trainers.compat
import chainermn
from chainermn.communicators.naive_communicator import NaiveCommunicator
from trainers.communicators import ChainerMN
from trainers.communicators.wire import WIRES

made, original = [], chainermn.create_communicator
chainermn.create_communicator = lambda *given: made.append(original(*given)) or made[-1]
world = MPI.COMM_WORLD
connection = ChainerMN().connect(world.Dup())
assert type(made[0]) is NaiveCommunicator
for size in (1, 1000):
    values = np.random.default_rng(world.rank).standard_normal(size).astype(np.float32)
    expected = np.sum([np.random.default_rng(rank).standard_normal(size).astype("f") for rank in range(world.size)], 0)
    connection.sum(values, WIRES["float32"]())
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
connection.close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_naive_sums_by_chainermns_own_communicator(run_on_ranks, tmp_path, ranks):
    program = tmp_path / "sums.py"
    program.write_text(PROGRAM)
    run_on_ranks(ranks, program)


@pytest.mark.mpi
def test_a_run_by_name_is_the_one_by_default_up_to_rounding(train, tmp_path, assert_same_run):
    communicator = "cluster.exchange.communicator={kind: ChainerMN, name: naive}"
    named = train(tmp_path / "named", 2, "--set", communicator, stop_after=4)
    assert "gradients: ChainerMN" in named.log
    assert_same_run(named, train(tmp_path / "default", 2, stop_after=4), loss=1e-5, weights=1e-4)


CLUSTER = "name: ours\nnodes: 1\nworkers_per_node: 2\ndevice: cpu\ndevice_memory_bytes: 8000000000\nexchange: {%s}\n"


def test_another_name_is_refused_with_the_list(tmp_path):
    (tmp_path / "ours.yaml").write_text(CLUSTER % "communicator: {kind: ChainerMN, name: hierarchical}")
    with pytest.raises(RecipeError, match="name: is 'hierarchical'; must be one of 'naive', 'flat', 'pure_nccl'|naive"):
        open_cluster(str(tmp_path / "ours.yaml"), vocabulary=vocabulary())


def test_those_for_gpus_are_refused_on_a_cpu_before_ranks_start(tmp_path):
    assert [ChainerMN(name=name).needs_gpu for name in ("naive", "flat", "pure_nccl")] == [False, True, True]
    words = ["train", "digits/ramp", "--set", "cluster.exchange.communicator={kind: ChainerMN, name: pure_nccl}"]
    command = [sys.executable, "-P", "-m", "kilobatch", *words, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "ChainerMN" in done.stderr
    assert not (tmp_path / "run").exists()
