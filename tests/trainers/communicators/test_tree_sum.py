"""The tree of exact mode: its shape by hand, its bits for every way of dealing the groups; here and on ranks."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

from trainers.communicators.tree_sum import TreeSum, halves, sum_of_tree

WORLD = MPI.COMM_WORLD


def leaf(number, values=3, dtype=np.float32):
    """Numbers whose sum depends on the order."""
    random = np.random.RandomState(number)
    return (random.normal(size=values) * 10.0 ** random.randint(-3, 4, size=values)).astype(dtype)


def leaves_of(count, **shape):
    return [leaf(number, **shape) for number in range(count)]


def whole(leaves):
    """The same sum, written down anew."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while 2 * left < len(leaves):
        left *= 2
    return whole(leaves[:left]) + whole(leaves[left:])


def held_of(leaves, numbers):
    tree = TreeSum(MPI.COMM_SELF)
    for number in numbers:
        tree.add(number, leaves[number])
    return tree.held


def written(start, stop):
    """A node with all below it, as words."""
    return str(start) if stop - start == 1 else "({} {})".format(*(written(*half) for half in halves(start, stop)))


@pytest.mark.parametrize(
    ("count", "shape"),
    [
        (1, "0"),
        (2, "(0 1)"),
        (3, "((0 1) 2)"),
        (4, "((0 1) (2 3))"),
        (5, "(((0 1) (2 3)) 4)"),
        (6, "(((0 1) (2 3)) (4 5))"),
        (7, "(((0 1) (2 3)) ((4 5) 6))"),
    ],
)
def test_the_shape_is_known_from_the_number_of_leaves(count, shape):
    assert written(0, count) == shape


def test_a_node_that_was_summed_elsewhere_is_as_good_as_its_leaves():
    leaves, tree = leaves_of(11), TreeSum(MPI.COMM_SELF)
    for start, stop in ((0, 4), (4, 6), (6, 7), (7, 8), (8, 10), (10, 11)):
        tree.add(start, whole(leaves[start:stop]), leaves=stop - start)
    assert list(tree.held) == [(0, 8), (8, 10), (10, 11)]
    out = np.empty_like(leaves[0])
    tree.total(out)
    assert out.tobytes() == whole(leaves).tobytes()


def test_a_tree_is_another_sum_than_one_after_the_other():
    leaves = leaves_of(9, values=100)
    assert whole(leaves).tobytes() != sum(leaves[1:], leaves[0]).tobytes()


@pytest.mark.parametrize(
    ("numbers", "spans"),
    [
        (range(0, 6), [(0, 4), (4, 6)]),
        (range(3, 8), [(3, 4), (4, 8)]),
        (range(1, 7), [(1, 2), (2, 4), (4, 6), (6, 7)]),
        (range(5, 5), []),
        ([0, 2, 3, 5], [(0, 1), (2, 4), (5, 6)]),
    ],
)
def test_siblings_are_added_up_as_soon_as_both_are_there(numbers, spans):
    assert list(held_of(leaves_of(8), numbers)) == spans


def nodes(start, stop):
    yield start, stop
    if stop - start > 1:
        for half in halves(start, stop):
            yield from nodes(*half)


@pytest.mark.parametrize("count", range(1, 20))
def test_what_is_held_of_any_range_are_few_nodes_of_the_tree(count):
    leaves, known = leaves_of(count), set(nodes(0, count))
    for start, stop in itertools.combinations(range(count + 1), 2):
        held = held_of(leaves, range(start, stop))
        assert [leaf for span in held for leaf in range(*span)] == list(range(start, stop))
        assert set(held) <= known
        assert len(held) <= 2 * np.log2(count) + 1
        for span, values in held.items():
            assert values.tobytes() == whole(leaves[slice(*span)]).tobytes()


@pytest.mark.parametrize("count", range(1, 9))
def test_the_sum_has_the_same_bits_however_the_leaves_are_dealt(count):
    leaves = leaves_of(count)
    for dealt in itertools.product(range(3), repeat=min(count, 6)):  # also ranks that hold groups here and there
        dealt += (2,) * (count - len(dealt))
        known = {}
        for rank in range(3):
            known |= held_of(leaves, [number for number, holder in enumerate(dealt) if holder == rank])
        assert sum_of_tree(known, 0, count).tobytes() == whole(leaves).tobytes(), dealt


def test_a_missing_leaf_is_reported():
    with pytest.raises(KeyError, match="norm group 3 is in no sum"):
        sum_of_tree(held_of(leaves_of(8), [0, 1, 2, 4, 5, 6, 7]), 0, 8)


def test_what_comes_in_stays_as_it_is():
    leaves = leaves_of(4)
    before = [leaf.copy() for leaf in leaves]
    held_of(leaves, range(4))
    np.testing.assert_array_equal(leaves, before)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_on_ranks(run_on_ranks, ranks):
    done = run_on_ranks(ranks, __file__)
    assert done.returncode == 0, done.stdout + done.stderr


def assert_sum(numbers, count, *, tree=None, piece_bytes=4_000_000, **shape):
    """The total of `count` leaves has the bits of the tree, this rank holding those of some numbers."""
    tree = tree or TreeSum(WORLD, piece_bytes=piece_bytes)
    for number in numbers:
        tree.add(number, leaf(number, **shape))
    expected = whole(leaves_of(count, **shape))
    out = np.full_like(expected, np.nan)
    tree.total(out)
    assert out.tobytes() == expected.tobytes(), (list(numbers), count, shape)


def check_every_way_to_deal_the_leaves_contiguously():
    for count in range(1, {1: 10, 2: 10, 3: 8}.get(WORLD.size, 5)):
        for cuts in itertools.combinations_with_replacement(range(count + 1), WORLD.size - 1):
            ends = [0, *cuts, count]
            assert_sum(range(ends[WORLD.rank], ends[WORLD.rank + 1]), count)


def check_leaves_dealt_in_turn():
    for count in (1, WORLD.size, 20, 33):
        assert_sum(range(WORLD.rank, count, WORLD.size), count)


def check_any_length_in_pieces_of_any_size():
    own = np.array_split(range(6), WORLD.size)[WORLD.rank].tolist()
    for values, piece_bytes in itertools.product((1, 2, 7, 100), (1, 12, 64, 10**9)):
        assert_sum(own, 6, piece_bytes=piece_bytes, values=values)
        assert_sum(own, 6, piece_bytes=piece_bytes, values=values, dtype=np.float64)


def check_nobody_gets_a_sum_where_leaves_of_one_are_missing():
    tree, out = TreeSum(WORLD), np.zeros(3, np.float32)
    if WORLD.rank == WORLD.size - 1:
        tree.fail()
    else:
        tree.add(WORLD.rank, leaf(WORLD.rank))
    assert tree.total(out) is False
    assert not out.any()
    assert_sum([WORLD.rank], WORLD.size, tree=tree)  # the next update


def check_a_tree_is_used_again_and_again():
    tree = TreeSum(WORLD)
    own = np.array_split(range(11), WORLD.size)[WORLD.rank].tolist()
    for values in (5, 5, 9):
        for number in own:
            tree.add(number, np.full(values, np.nan, np.float32))
        tree.clear()
        assert_sum(own, 11, tree=tree, values=values)
        assert not tree.held


if __name__ == "__main__":  # on a rank
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
