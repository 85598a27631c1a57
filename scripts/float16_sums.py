"""What the sum of 1,024 workers' gradients loses in 16 bits, by the order in which it is scaled, rounded and added.

    .venv/bin/python scripts/float16_sums.py
    .venv/bin/python scripts/float16_sums.py --ranks 1024 --values 4096 --wire bfloat16

The workers are rows of one array; nothing is sent. Every worker's numbers are normal with the deviation of the line.
`single`: one number of each worker is 10,000 deviations, at a place of its own; `common`: 5,000 to 15,000 at the same
place on all of them; `equal`: the same 10,000 there, so that a ring rounds to the same side again and again. The sums
of one bucket, with the wires of trainers/communicators:

    direct     ours: times S / B, rounded to the wire, added in float32, rounded once more (Direct)
    halving    ours by recursive halving: a partial sum is rounded at each of log2(P) hops (HalvingDoubling)
    ring       ours around a ring: a partial sum is rounded at each of P - 1 hops (Ring)
    divided    divided by P before the cast, then as `ring`
    chainermn  ChainerMN's order: the cast, a sum that is rounded at each hop of a ring, the division by P

P workers, B = P here, S a power of two for each bucket as the exchange chooses it. The table has the relative error in
L2 against float64, how many elements of the mean are infinite or none (inf) and how many are zero that should not be.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trainers.communicators.connection import shares
from trainers.communicators.wire import WIRES
from trainers.gradients.exchange import wire_factor

DEVIATIONS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
LARGE = ("none", "single", "common", "equal")


def gradients(num_ranks: int, num_values: int, deviation: float, large: str = "none", *, seed: int = 0) -> np.ndarray:
    """The gradients, float32, one row for each worker; `large` says which elements are about 10,000 deviations."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((num_ranks, num_values), dtype=np.float32) * np.float32(deviation)
    if large == "single":
        rows[np.arange(num_ranks), random.permutation(num_values)[:num_ranks]] = 1e4 * deviation
    elif large == "common":
        rows[:, num_values // 2] = 1e4 * deviation * random.uniform(0.5, 1.5, num_ranks)
    elif large == "equal":
        rows[:, num_values // 2] = 1e4 * deviation
    return rows


def rounded(values: np.ndarray, wire: Any) -> np.ndarray:
    """Numbers as received, rounded to the wire."""
    flat = values.reshape(-1)
    found = np.empty_like(flat)
    wire.store(found, wire.pack(flat))
    return found.reshape(values.shape)


def direct_sum(rows: np.ndarray, wire: Any) -> np.ndarray:
    """Every part is summed on the worker that owns it, starting with the owner's own unrounded numbers."""
    received, own, places = rounded(rows, wire), *owners(rows)
    total = rows[own, places]
    for step in range(1, len(rows)):
        total += received[(own + step) % len(rows), places]
    return rounded(total, wire)


def ring_sum(rows: np.ndarray, wire: Any) -> np.ndarray:
    """Every part starts at the worker after its owner, and each following worker adds its own numbers to it."""
    own, places = owners(rows)
    total = rows[(own + 1) % len(rows), places]
    for step in range(2, len(rows) + 1):
        total = rows[(own + step) % len(rows), places] + rounded(total, wire)
    return rounded(total, wire)


def owners(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each value the worker that owns its part, and the value's index."""
    own = np.empty(rows.shape[1], np.intp)
    for rank, part in enumerate(shares(rows.shape[1], len(rows))):
        own[part] = rank
    return own, np.arange(rows.shape[1])


def halving_sum(rows: np.ndarray, wire: Any) -> np.ndarray:
    """Recursive halving over a power of two of workers: partners exchange halves and add what they receive."""
    if len(rows) == 1:
        return rounded(rows[0], wire)
    assert len(rows) % 2 == 0, "a power of two"
    (first, second), middle = np.split(rows, 2), rows.shape[1] // 2
    low = first[:, :middle] + rounded(second[:, :middle], wire)
    high = second[:, middle:] + rounded(first[:, middle:], wire)
    return np.concatenate([halving_sum(low, wire), halving_sum(high, wire)])


ALGORITHMS: dict[str, tuple[Callable[[np.ndarray, Any], np.ndarray], Callable[[int], int]]] = {
    "direct": (direct_sum, lambda num_ranks: 1),
    "halving": (halving_sum, lambda num_ranks: num_ranks.bit_length() - 1),
    "ring": (ring_sum, lambda num_ranks: num_ranks - 1),
}


def our_mean(rows: np.ndarray, wire: Any, algorithm: str) -> np.ndarray:
    """The mean as `Exchange` computes it."""
    sum_of, num_roundings = ALGORITHMS[algorithm]
    scaled = rows * np.float32(1 / len(rows))
    total = float(np.abs(scaled).max(axis=1).astype(np.float64).sum())
    factor = np.float32(wire_factor(total, wire, num_roundings(len(rows))))
    return sum_of(scaled * factor, wire) * (np.float32(1) / factor)


def mean_divided_before(rows: np.ndarray, wire: Any) -> np.ndarray:
    """The order: divide by the workers, cast, sum."""
    return ring_sum(rows * np.float32(1 / len(rows)), wire)


def mean_divided_after(rows: np.ndarray, wire: Any) -> np.ndarray:
    """ChainerMN's order: the cast, the sum, the division (in float32, which it does in the wire's format)."""
    return ring_sum(rounded(rows, wire), wire) * np.float32(1 / len(rows))


def figures(rows: np.ndarray, wire: Any) -> Iterator[tuple[str, float, int, int]]:
    """(way, relative error in L2, number of results that are infinite or NaN, number that are wrongly zero)."""
    exact = rows.mean(axis=0, dtype=np.float64)
    ways = {name: our_mean(rows, wire, name) for name in ALGORITHMS}
    ways |= {"divided": mean_divided_before(rows, wire), "chainermn": mean_divided_after(rows, wire)}
    for name, found in ways.items():
        finite = np.isfinite(found)
        error = np.inf if not finite.all() else float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
        yield name, error, int((~finite).sum()), int(((found == 0) & (exact != 0)).sum())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024, help="workers, a power of two")
    parser.add_argument("--values", type=int, default=4096, help="of a worker")
    parser.add_argument("--wire", choices=("float16", "bfloat16"), default="float16")
    options = parser.parse_args()
    names = [*ALGORITHMS, "divided", "chainermn"]
    print("| deviation | large | " + " | ".join(f"{name}: error, inf, zero" for name in names) + " |")
    print("|---" * (2 + len(names)) + "|", flush=True)
    for large in LARGE:
        for deviation in DEVIATIONS:
            rows = gradients(options.ranks, options.values, deviation, large)
            cells = [f"{deviation:g}", large]
            for _, error, infinite, flushed in figures(rows, WIRES[options.wire]()):
                cells.append(f"{error:.1e}, {infinite}, {flushed}")
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    np.seterr(invalid="ignore", over="ignore")  # what overflows is counted
    main()
