"""A single bit that differs between ranks is found, in parameters and in running statistics."""

import json

import pytest

pytestmark = pytest.mark.mpi

PROGRAM = """
import json

import trainers.compat
import chainer
import chainer.links as L
import numpy as np
from mpi4py import MPI

from trainers.runs.checkpoint import weights_of
from trainers.training.equal_ranks import WeightsDiffer, require_equal_weights

world = MPI.COMM_WORLD
model = chainer.Chain(conv=L.Convolution2D(3, 4, 3), norm=L.BatchNormalization(4), output=L.Linear(4, 2))
arrays = {path: array for path, array in sorted(weights_of(model).items()) if array.shape}  # not in hash order
for number, array in enumerate(arrays.values()):
    array[...] = np.random.default_rng(number).standard_normal(array.shape)


def said():
    try:
        require_equal_weights(model, world, update=30)
    except WeightsDiffer as error:
        return str(error)
    return None


found = {"equal": said()}
for path, array in arrays.items():
    words = array.reshape(-1).view(np.uint32)
    words[-1] ^= world.rank == 1
    found[path] = said()
    words[-1] ^= world.rank == 1
before = {path: array.copy() for path, array in arrays.items()}
for path in (sorted(arrays)[0], sorted(arrays)[-1]):
    arrays[path] += world.rank == 2
found["two"] = said()
for path, array in arrays.items():
    array[...] = before[path]
array = arrays["/conv/W"].reshape(-1)
if world.rank == 0:
    array[:2] = array[:2][::-1].copy()
found["places"] = said()
everybody = world.gather(found)
if world.rank == 0:
    assert everybody == [found] * world.size  # all ranks raise the same
    print(json.dumps(found))
"""
PATHS = ["/conv/W", "/conv/b", "/norm/avg_mean", "/norm/avg_var", "/norm/beta", "/norm/gamma", "/output/W", "/output/b"]


@pytest.fixture(scope="module")
def found(tmp_path_factory, run_on_ranks):
    program = tmp_path_factory.mktemp("program") / "program.py"
    program.write_text(PROGRAM)
    done = run_on_ranks(3, program)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_equal_weights_pass(found):
    assert found["equal"] is None
    assert sorted(set(found) - {"equal", "two", "places"}) == PATHS


@pytest.mark.parametrize("path", PATHS)
def test_one_bit_of_any_array_counts(found, path):
    assert found[path].startswith(f"after 30 updates {path} is not the same on all ranks: rank 1 on ")


def test_the_first_path_that_differs_is_named(found):
    assert "/conv/W is not the same on all ranks: rank 2 on " in found["two"]


def test_values_that_changed_places_count(found):
    assert "/conv/W is not the same on all ranks: rank 0 on " in found["places"]
