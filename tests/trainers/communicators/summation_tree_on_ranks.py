"""Run under mpiexec: sums over a tree whose leaves lie on several ranks, against the same tree on each rank alone.

Rank 0 prints `passed NAME` for each check; a check that fails raises.
"""

import itertools

import numpy as np
from mpi4py import MPI

from trainers.communicators.tree_sum import TreeSum

WORLD = MPI.COMM_WORLD
MOST_LEAVES = {1: 9, 2: 9, 3: 7}.get(WORLD.size, 4)


def leaf(number, *, values=7, dtype=np.float32):
    random = np.random.RandomState(number)
    return (random.normal(size=values) * 10.0 ** random.randint(-3, 4, size=values)).astype(dtype)


def whole(start, stop, **what):
    if stop - start == 1:
        return leaf(start, **what)
    left = 1
    while 2 * left < stop - start:
        left *= 2
    return whole(start, start + left, **what) + whole(start + left, stop, **what)


def assert_sum(numbers, count, *, tree=None, piece_bytes=4_000_000, **what):
    """The total of `count` leaves has the bits of the tree, this rank holding those of some numbers."""
    tree = tree or TreeSum(WORLD, piece_bytes=piece_bytes)
    for number in numbers:
        tree.add(number, leaf(number, **what))
    expected = whole(0, count, **what)
    out = np.full_like(expected, np.nan)
    tree.total(out)
    assert out.tobytes() == expected.tobytes(), (list(numbers), count, what)


def check_every_way_to_deal_the_leaves_contiguously():
    for count in range(1, MOST_LEAVES + 1):
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


def check_a_tree_is_used_again_and_again():
    tree = TreeSum(WORLD)
    own = np.array_split(range(11), WORLD.size)[WORLD.rank].tolist()
    for values in (5, 5, 9):
        for number in own:
            tree.add(number, np.full(values, np.nan, np.float32))
        tree.clear()
        assert_sum(own, 11, tree=tree, values=values)
        assert not tree.held


if __name__ == "__main__":
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            if WORLD.rank == 0:
                print(f"passed {name}", flush=True)
