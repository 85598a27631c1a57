"""What every communicator promises before any rank is there, and the divisions of arrays and ranks.

For what it promises as a component see `tests/trainers/test_components.py`.
"""

import dataclasses
import inspect
import re

import numpy as np
import pytest
from mpi4py import MPI

from trainers import communicators
from trainers.communicators.connection import Connection, even_slices
from trainers.communicators.halving_doubling import binary_blocks, segment
from trainers.communicators.wire import WIRES, FullWire

COMPONENTS = [getattr(communicators, name) for name in communicators.__all__]
ON_HOST = [component for component in COMPONENTS if not getattr(component, "needs_gpu", False)]
HALVE = [component for component in ON_HOST if getattr(component, "sums_16_bits", True)]
FIELDS = [(component, field) for component in COMPONENTS for field in dataclasses.fields(component)]
COUNTED = [(component, field.name) for component, field in FIELDS if field.default is None]
FLAGS = [(component, field.name) for component, field in FIELDS if field.default is False]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda one: one.__name__)
def test_its_docstring_has_the_numbers_on_the_wire(component):
    if component is not communicators.Auto:  # which sends those of what it chooses
        doc = inspect.getdoc(component)
        line = re.search(r"^    .* n\b|^    nothing on the wire$", doc, re.MULTILINE)
        assert line, "a line of its own with the numbers on the wire, such as `    2 (P - 1) / P n`"
        assert "wire" in doc


@pytest.mark.parametrize(
    ("component", "field", "value", "message"),
    [(*count, value, "a whole number >= 1") for count in COUNTED for value in (0, -1, 2.0, True, "2")]
    + [(*flag, value, "true or false") for flag in FLAGS for value in (0, 1, None, "true")],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_it_refuses_what_is_no_count_or_flag(component, field, value, message):
    with pytest.raises(ValueError, match=rf"^{component.__name__}\.{field} must be {message}, got"):
        component(**{field: value})


def test_there_are_counts_and_flags():
    assert len(COUNTED) >= 4
    assert len(FLAGS) >= 4


@pytest.mark.parametrize("component", ON_HOST, ids=lambda one: one.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_values", [0, 1, 7, 70_000])
def test_alone_the_sum_is_the_values_themselves(component, num_values, dtype):
    connection = component().connect(MPI.COMM_SELF.Dup())
    assert isinstance(connection, Connection)
    values = connection.allocate(num_values, dtype)
    assert values.dtype == dtype
    assert values.shape == (num_values,)
    assert not values.any()
    values[...] = expected = np.random.RandomState(0).normal(size=num_values).astype(dtype)
    connection.sum(values, FullWire(dtype))
    assert (values == expected).all()
    connection.mean(values, FullWire(dtype), 1.0, 0.25)
    assert (values == expected * dtype(0.25)).all()
    connection.close()


@pytest.mark.parametrize("component", HALVE, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_alone_nothing_but_one_rounding_happens(component, name):
    wire = WIRES[name]()
    connection = component().connect(MPI.COMM_SELF.Dup())
    values = connection.allocate(100, np.float32)
    values[...] = expected = np.random.RandomState(1).normal(size=100).astype(np.float32)
    connection.sum(values, wire)
    rounded = expected.copy()
    wire.store(rounded, wire.pack(expected))
    assert (values == expected).all() or (values == rounded).all()
    connection.close()


@pytest.mark.parametrize("component", ON_HOST, ids=lambda one: one.__name__)
def test_a_connection_that_allocated_nothing_can_be_closed(component):
    component().connect(MPI.COMM_SELF.Dup()).close()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_all_reduce_of_mpi_refuses_16_bits_by_name(name):
    connection = communicators.MpiAllreduce().connect(MPI.COMM_SELF)
    with pytest.raises(ValueError, match=f"^MpiAllreduce: MPI has no sum of {name}; take Direct, Ring or Halving"):
        connection.sum(np.ones(2, dtype=np.float32), WIRES[name]())


def test_without_communication_everybody_keeps_the_own_numbers():
    connection = communicators.Dummy().connect(MPI.COMM_SELF)
    values = np.array([1.0, 2.0], dtype=np.float32)
    connection.mean(values, FullWire(), 1.0, 0.5)
    assert values.tolist() == [0.5, 1.0]


def test_a_row_that_does_not_divide_the_workers_is_refused():
    with pytest.raises(ValueError, match=r"^Torus\.row: 1 workers do not divide into rows of 2$"):
        communicators.Torus(row=2).connect(MPI.COMM_SELF)


@pytest.mark.parametrize(("workers", "fit"), [(1, True), (2, True), (3, False), (4, True), (5, False)])
def test_nodes_of_two_take_one_worker_or_an_even_number(workers, fit):
    assert (communicators.SharedWindow(ranks_per_node=2).misfit(workers) == "") is fit
    assert communicators.SharedWindow().misfit(workers) == ""


@pytest.mark.parametrize("total", [0, 1, 2, 5, 17, 1000])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_shares_follow_each_other_and_differ_by_one_at_most(total, parts):
    actual = even_slices(total, parts)
    assert len(actual) == parts
    assert [index for part in actual for index in range(part.start, part.stop)] == list(range(total))
    sizes = [part.stop - part.start for part in actual]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("size", range(1, 70))
def test_binary_blocks_are_the_ones_in_the_number_of_ranks(size):
    actual = binary_blocks(size)
    assert [block for _, block in actual] == [2**index for index in reversed(range(8)) if size >> index & 1]
    assert [start for start, _ in actual] == [sum(block for _, block in actual[:index]) for index in range(len(actual))]


@pytest.mark.parametrize("total", [0, 1, 3, 5, 8, 1001])
def test_segments_cover_everything_and_those_of_half_as_many_parts_are_two_of_them(total):
    for parts in (1, 2, 4, 8):
        pieces = [segment(total, parts, part) for part in range(parts)]
        assert [index for piece in pieces for index in range(piece.start, piece.stop)] == list(range(total))
        for part in range(parts):
            first, second = (segment(total, 2 * parts, 2 * part + half) for half in (0, 1))
            assert slice(first.start, second.stop) == pieces[part]
            assert first.stop == second.start
