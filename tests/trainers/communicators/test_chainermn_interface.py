"""Our exchange behind ChainerMN's interface: settings here, and all its parts on two and three ranks beside `naive`."""

import re
from pathlib import Path

import chainer
import chainer.links as L
import chainermn
import numpy as np
import pytest
from mpi4py import MPI

from trainers.communicators import CudaAwareMpi, MpiAllreduce, Ring, Torus
from trainers.gradients.chainermn import create_communicator

PROGRAM = Path(__file__).with_name("chainermn_on_ranks.py")
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(), re.MULTILINE)


@pytest.fixture(scope="module", params=[2, 3])
def launch(request, run_on_ranks):
    return run_on_ranks(request.param, PROGRAM)


@pytest.mark.mpi
@pytest.mark.parametrize("check", CHECKS)
def test_chainermn_with_ours_as_with_naive(launch, check):
    assert f"passed {check}\n" in launch.stdout, f"failed here or in an earlier check:\n{launch.stderr}"


@pytest.mark.mpi
def test_all_ranks_end_well_after_all_checks(launch):
    assert len(CHECKS) == 9
    assert launch.returncode == 0, launch.stderr


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
        (CudaAwareMpi(), "float32", "CudaAwareMpi: this MPI takes no pointers into the memory of GPUs"),
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
