"""The formats on the wire, against a rounding written in another way and against numbers by hand."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from trainers.communicators import wire as wire_module
from trainers.communicators.wire import WIRES, BFloat16Wire, Float16Wire, FullWire, largest_absolute
from trainers.training.device import has_gpu

HALVES = {"float16": (Float16Wire, 11, -13, 16), "bfloat16": (BFloat16Wire, 8, -125, 128)}
LOW_HALVES = (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)


@pytest.fixture(autouse=True, params=["compiled", "by NumPy"])
def way(request, monkeypatch):
    """Every test once with the compiled conversions and once as where nothing was compiled."""
    if request.param == "by NumPy":
        monkeypatch.setattr(wire_module, "COMPILED", None)
    elif wire_module.COMPILED is None:
        pytest.skip("no C compiler when kilobatch was installed, or a processor without F16C and AVX2")


def every_float32(low_halves=LOW_HALVES):
    """All 65,536 upper halves of a float32, infinities, subnormals and what is no number among them."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([upper | low for low in low_halves]).view(np.float32)


def rounded(values, bits, smallest_exponent, largest_exponent):
    """To `bits` significant bits, ties to even, in float64, where all of it is exact."""
    with np.errstate(invalid="ignore"):  # of signalling numbers that are none
        values = values.astype(np.float64)
        _, exponents = np.frexp(np.where(np.isfinite(values), values, 0.0))
        quantum = np.ldexp(1.0, np.maximum(exponents, smallest_exponent) - bits)
        near = np.rint(values / quantum) * quantum
    return np.where(np.abs(near) >= 2.0**largest_exponent, np.copysign(np.inf, near), near)


def through(wire, values):
    """What a receiver makes of values that were packed."""
    stored = np.full_like(values, 7.0)
    wire.store(stored, wire.pack(values))
    return stored


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_an_older_version_compiled_is_not_used(tmp_path):
    source, library = tmp_path / "half.c", tmp_path / "_half.so"
    source.write_text("int serves(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert wire_module.load(ctypes.CDLL(str(library))) is None


@pytest.mark.parametrize("name", HALVES)
def test_every_number_is_rounded_to_the_nearest_and_ties_to_even(name):
    wire, *form = HALVES[name]
    values = every_float32()
    actual, expected = through(wire(), values), rounded(values, *form)
    whole = ~np.isnan(values)
    np.testing.assert_array_equal(actual[whole], expected[whole])
    np.testing.assert_array_equal(np.signbit(actual[whole]), np.signbit(values[whole]))
    assert np.isnan(actual[~whole]).all(), "what is no number must stay none, or an overflow goes unseen"


@pytest.mark.parametrize("name", HALVES)
def test_ties_and_ends_by_hand(name):
    wire, bits, _, _ = HALVES[name]
    ulp = 2.0 ** (1 - bits)  # of numbers from 1 to 2
    values = [1 + ulp / 2, 1 + 3 * ulp / 2, -1 - ulp / 2, 1 + ulp / 2 + 2.0**-20, np.inf, -np.inf, 0.0]
    actual = through(wire(), np.array(values, dtype=np.float32))
    assert actual.tolist() == [1.0, 1 + 2 * ulp, -1.0, 1 + ulp, np.inf, -np.inf, 0.0]


def test_the_largest_and_the_smallest_numbers_by_hand():
    least = 2.0**-24
    halves = through(Float16Wire(), np.array([65504, 65519.9, 65520, least, least / 2, least * 0.51], dtype=np.float32))
    assert halves.tolist() == [65504, 65504, np.inf, least, 0, least]
    least = 2.0**-133
    largest = 2.0**128 - 2.0**120
    wide = through(
        BFloat16Wire(), np.array([largest, largest + 2.0**119, least, least / 2, least * 0.75], dtype=np.float32)
    )
    assert wide.tolist() == [largest, np.inf, least, 0, least]


@pytest.mark.parametrize("name", HALVES)
def test_what_was_received_is_sent_on_without_another_rounding(name):
    wire = HALVES[name][0]()
    once = through(wire, every_float32())
    twice = through(wire, once)
    np.testing.assert_array_equal(once, twice)


@pytest.mark.parametrize("name", WIRES)
def test_one_rounding_is_within_epsilon(name):
    wire = WIRES[name]()
    values = np.random.RandomState(0).normal(size=10_000).astype(np.float32)
    error = np.abs(through(wire, values).astype(np.float64) - values)
    assert (error <= wire.epsilon * np.abs(values)).all()
    assert error.max() > 0 or name == "float32"
    assert wire.pack(values).nbytes == wire.num_bytes * len(values)


@pytest.mark.parametrize("name", WIRES)
def test_received_numbers_are_added_in_float32(name):
    wire = WIRES[name]()
    values = np.full(3, 2.0**-20, dtype=np.float32)
    wire.add(values, wire.pack(np.array([1.0, -2.0, 0.0], dtype=np.float32)))
    assert values.tolist() == [1 + 2.0**-20, -2 + 2.0**-20, 2.0**-20]


@pytest.mark.parametrize("name", WIRES)
def test_buffers_to_add_and_to_store_are_apart_from_each_other(name):
    wire = WIRES[name]()
    values = np.ones(5, dtype=np.float32)
    to_add, to_store = wire.buffer_to_add(values), wire.buffer_to_store(values)
    assert (len(to_add), to_add.itemsize) == (len(to_store), to_store.itemsize) == (5, wire.num_bytes)
    assert not np.shares_memory(to_add, values)
    assert not np.shares_memory(to_add, to_store)
    assert np.shares_memory(wire.buffer_to_add(values[:2]), to_add)
    assert len(wire.buffer_to_add(values[:0])) == 0
    to_store[...] = wire.pack(np.array([1.0, 2.0, -4.0, 0.0, 8.0], dtype=np.float32))
    wire.store(values, to_store)
    assert values.tolist() == [1.0, 2.0, -4.0, 0.0, 8.0]


@pytest.mark.parametrize("name", WIRES)
def test_numbers_received_to_be_stored_are_added_right_or_not_at_all(name):
    """On float32 they have overwritten those that they would be added to: a run would train with wrong sums."""
    wire, values = WIRES[name](), np.array([1.0, 2.0], dtype=np.float32)
    received = wire.buffer_to_store(values)
    received[...] = wire.pack(np.array([4.0, 4.0], dtype=np.float32))
    if name == "float32":
        with pytest.raises(ValueError, match="use buffer_to_add"):
            wire.add(values, received)
    else:
        wire.add(values, received)
        assert values.tolist() == [5.0, 6.0]


def test_the_full_wire_sends_the_numbers_themselves_and_its_buffer_has_their_type():
    values, wire = np.ones(3), FullWire()
    assert FullWire(np.float64).num_bytes == 8
    assert wire.pack(values) is values
    assert wire.buffer_to_store(values) is values
    for dtype in (np.float32, np.float64, np.float32):
        assert wire.buffer_to_add(np.ones(4, dtype=dtype)).dtype == dtype


def test_losses_by_hand():
    values = np.array([0.0, 1.0, 65504, 65520, -1e6, np.inf, np.nan, 2.0**-25, -1e-9, 2.0**-24], dtype=np.float32)
    assert Float16Wire().scale(values, 1.0) == (2, 2), "65520 and -1e6; a half of the least number and -1e-9"
    assert FullWire().scale(values, 1.0) == (0, 0)
    wide = np.array([0.0, 3.4e38, -1e38, np.inf, np.nan, 1e-40, -9e-41, 1e-41], dtype=np.float32)
    assert BFloat16Wire().scale(wide, 1.0) == (1, 1), "3.4e38 lies above the largest, 1e-41 below half the least"


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 31])
def test_neighbours_of_any_number_of_values_stay_as_they_are(name, length):
    wire, random = HALVES[name][0](), np.random.RandomState(length)
    around = random.normal(size=length + 5).astype(np.float32)
    values, before = around[3 : 3 + length], around.copy()
    packed = wire.pack(values)
    assert packed.shape == (length,)
    expected = through(wire, values.astype(np.float64))
    wire.add(values, packed)
    assert np.array_equal(values, before[3 : 3 + length] + expected.astype(np.float32))
    wire.store(values, packed)
    assert np.array_equal(values, expected)
    assert wire.scale(values, 0.5) == (0, 0)
    assert np.array_equal(values, expected / 2)
    for part in (slice(3), slice(3 + length, None)):
        assert np.array_equal(around[part], before[part])


@pytest.mark.parametrize("name", HALVES)
def test_losses_in_any_place_are_counted(name):
    wire = HALVES[name][0]()
    for length in (8, 21):
        for index in range(length):
            values = np.ones(length, np.float32)
            values[index] = wire._infinite_from
            values[index - 1] = -wire._zero_up_to
            assert wire.scale(values, 1.0) == (1, 1)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("factor", [1.0, 0.3, -(2.0**-140), 3e38])
def test_losses_are_those_of_the_products_which_are_numpys(name, factor):
    wire, values = HALVES[name][0](), every_float32()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        expected = values * np.float32(factor)
        counted = wire.scale(values, factor)
    whole = ~np.isnan(expected)
    assert np.array_equal(values[whole].view(np.uint32), expected[whole].view(np.uint32))
    assert np.isnan(values[~whole]).all()
    becomes = through(wire, expected)
    overflowed = np.isinf(becomes) & ~np.isinf(expected)
    flushed = (becomes == 0) & (expected != 0)
    assert counted == (overflowed.sum(), flushed.sum())


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 31, 32769, 100_000])
def test_the_largest_absolute_value_is_that_of_numpy(length):
    values = np.random.RandomState(length).normal(size=length).astype(np.float32)
    for index in {0, length // 2, length - 1} if length else ():
        for odd in (-77.0, 1e-45, -np.inf, np.nan):
            values[index] = odd
            np.testing.assert_array_equal(largest_absolute(values), np.abs(values).max())
        values[index] = 0.0
    assert largest_absolute(values) == np.abs(values).max(initial=0.0)
    assert largest_absolute(-values.astype(np.float64)) == largest_absolute(values), (
        "other types and every second number, too"
    )
    assert largest_absolute(values[::2]) == np.abs(values[::2]).max(initial=0.0)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
@pytest.mark.parametrize("name", HALVES)
def test_a_gpu_rounds_to_the_same_bits_and_counts_alike(name):
    import cupy

    wire, values = HALVES[name][0](), every_float32()
    whole = ~np.isnan(values)
    packed = wire.pack(cupy.asarray(values))
    np.testing.assert_array_equal(packed.get()[whole], wire.pack(values)[whole])
    stored = cupy.full_like(cupy.asarray(values), 7.0)
    wire.store(stored, packed)
    np.testing.assert_array_equal(stored.get()[whole], through(wire, values)[whole])
    assert np.isnan(stored.get()[~whole]).all()
    numbers = values[whole]
    counted = numbers[(numbers == 0) | (abs(numbers) >= 2.0**-126)]  # CuPy's kernels take subnormals for zero
    assert wire.scale(cupy.asarray(counted), 1.0) == wire.scale(counted, 1.0)
    assert wire.scale(cupy.asarray(values), 1.0)[0] == wire.scale(counted, 1.0)[0]
    assert wire.scale(cupy.empty(0, np.float32), 1.0) == (0, 0)


def every_half():
    return np.arange(1 << 16, dtype=np.uint16)


def test_every_float16_number_is_unpacked_as_numpy_does():
    values = np.empty(1 << 16, np.float32)
    expected = every_half().view(np.float16).astype(np.float32)
    Float16Wire().store(values, every_half())
    np.testing.assert_array_equal(values, expected)
    assert np.array_equal(np.signbit(values), np.signbit(expected))


def test_float32_numbers_are_packed_as_numpy_does():
    numbers = every_half().view(np.float16).astype(np.float32)
    numbers = np.sort(numbers[np.isfinite(numbers)])
    middles = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    anything = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32)
    small = anything[np.abs(anything) < 65519]
    above, below = (np.nextafter(middles, np.float32(to)) for to in (np.inf, -np.inf))
    for values in (numbers, middles, above, below, small, anything, small.astype(np.float64)):
        with np.errstate(over="ignore"):
            expected = values.astype(np.float16)
        packed = Float16Wire().pack(values)
        np.testing.assert_array_equal(packed.view(np.float16), expected)
        known = ~np.isnan(expected)
        assert np.array_equal(packed[known], expected.view(np.uint16)[known])


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("count", [*range(19), 70_001])
def test_scaling_on_the_way_has_the_bits_and_counts_of_scaling_before_and_after(name, count):
    wire, factor = HALVES[name][0](), 2.0**100 if name == "bfloat16" else 300.0
    random = np.random.RandomState(count)
    values, received = (random.normal(size=count) * 10.0 ** random.randint(-12, 3, count) for _ in range(2))
    values[::5] = 2.0**28 - 2.0**4  # of bfloat16's, times the factor, too
    values, packed = values.astype(np.float32), wire.pack(received.astype(np.float32))
    scaled, lost = values.copy(), np.zeros(2, np.int64)
    counted = wire.scale(scaled, factor)
    assert (wire.pack(values.copy(), factor, lost) == wire.pack(scaled)).all()
    assert tuple(lost) == counted
    assert counted[0] >= (count + 4) // 5
    added = values.copy()
    wire.add(added, packed, factor, lost)
    wire.add(scaled, packed)
    assert added.tobytes() == scaled.tobytes()
    assert (lost == np.multiply(counted, 2)).all()
    wire.store(added, packed, 0.25)
    wire.store(scaled, packed)
    assert (added == scaled * np.float32(0.25)).all()
