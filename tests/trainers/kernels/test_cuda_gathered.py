"""Gradients of a model put into one array together, on a GPU and compiled for the CPU."""

import gc
import platform

import chainer
import chainer.functions as F
import numpy as np
import pytest

from trainers.gradients.flat_gradients import FlatGradients, _Arrivals
from trainers.gradients.mixed_precision import forward_in
from trainers.kernels.cuda import tensors as cuda_tensors
from trainers.models import SmallResNet
from trainers.models.keyed_random import draw_initial_weights

F16C = pytest.mark.skipif(platform.machine() != "x86_64", reason="no F16C")
KINDS = [pytest.param("e", marks=F16C), pytest.param("E", id="bfloat16"), "f", "d"]
SHAPES = [(64, 3, 7, 7), (5,), (10, 7), (33, 129, 3, 3), (8, 16, 1, 1), (6, 4, 1, 3), (), (130, 129), (3, 4, 5)]
ODD = {2: np.inf, 3: np.nan, 6: -np.inf}


def dtype_of(kind):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if kind == "E" else kind)


def gradients_of(shapes, dtype):
    """In C order, those of four axes with channels last, a matrix the other way round."""
    random = np.random.RandomState(0)
    found = [np.asarray(random.normal(size=shape)).astype(dtype) for shape in shapes]
    for number, one in enumerate(found):
        if one.ndim == 4:
            found[number] = np.ascontiguousarray(one.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        elif one.shape == (130, 129):
            found[number] = np.asfortranarray(one)
    return found


def on(cuda, arrays):
    """There, lying as they do here."""
    return [cuda.xp.asarray(array, order="A") if array.ndim < 4 else last_on(cuda, array) for array in arrays]


def last_on(cuda, array):
    return cuda.xp.asarray(np.ascontiguousarray(array.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)


def host(array):
    return array.get() if hasattr(array, "get") else array


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("finds", [True, False], ids=["looking", "not looking"])
def test_gradients_are_put_or_added_as_one_by_one(cuda, kind, finds):
    tensors, wide = gradients_of(SHAPES, dtype_of(kind)), "d" if kind == "d" else "f"
    for number, value in ODD.items():
        tensors[number][(-1,) * tensors[number].ndim] = value
    starts = np.cumsum([2, *(tensor.size + 1 for tensor in tensors)])  # one value between them
    before = np.random.RandomState(1).normal(size=starts[-1]).astype(wide)
    adds = [number % 2 == 1 for number in range(len(tensors))]
    expected = before.copy()
    for start, tensor, add in zip(starts, tensors, adds, strict=False):
        place = slice(start, start + tensor.size)
        expected[place] = add * expected[place] + tensor.astype(wide).ravel()
    out, found = cuda.xp.asarray(before), cuda.xp.zeros(20, np.uint8)
    how = {"starts": starts[:-1].tolist(), "adds": adds, "numbers": [*range(3, 3 + len(tensors))]}
    assert cuda_tensors.gather(on(cuda, tensors), out, found=found if finds else None, **how)
    np.testing.assert_array_equal(host(out), expected)
    assert np.flatnonzero(host(found)).tolist() == ([3 + number for number in ODD] if finds else [])


def test_of_several_types_and_very_many_each_type_takes_its_launches(cuda):
    count = 2 * cuda_tensors._ADDRESSES + 5
    tensors = [np.full(3, number, "fe"[number % 3 == 0]) for number in range(count)]
    out, launched, launch = cuda.xp.asarray(np.full(3 * count, np.nan, "f")), [], cuda.launch
    cuda.launch = lambda name, kind, *rest: (launched.append(kind), launch(name, kind, *rest))
    how = {"starts": range(0, 3 * count, 3), "adds": [False] * count, "found": None, "numbers": range(count)}
    assert cuda_tensors.gather(on(cuda, tensors), out, **how)
    del cuda.launch
    np.testing.assert_array_equal(host(out), np.repeat(np.arange(count), 3))
    assert launched == ["e", "f", "f"]


@pytest.mark.parametrize(("kinds", "into"), [("fd", "f"), ("f", "d"), ("e", "e"), ("fi", "f")])
def test_other_types_are_left_to_others(cuda, kinds, into):
    tensors, out = [cuda.xp.ones(2, kind) for kind in kinds], cuda.xp.zeros(4, into)
    how = {"starts": (0, 2)[: len(tensors)], "adds": [True] * len(tensors), "numbers": range(len(tensors))}
    assert not cuda_tensors.gather(tensors, out, found=None, **how)
    assert not host(out).any()


def test_nothing_is_launched_for_tensors_without_values(cuda):
    out, launched, launch = cuda.xp.zeros(3, "f"), [], cuda.launch
    cuda.launch = lambda name, kind, width, grid, given: (launched.append(grid), launch(name, kind, width, grid, given))
    how = {"starts": (0, 0), "adds": (False, False), "found": None, "numbers": (0, 1)}
    assert cuda_tensors.gather([cuda.xp.zeros(0, "f")] * 2, out, **how)
    assert cuda_tensors.gather([cuda.xp.zeros(0, "e"), cuda.xp.ones(3, "f")], out, **how)
    del cuda.launch
    assert launched == [(1,)]
    assert host(out).all()


def test_a_tensor_of_more_values_than_the_kernel_counts_is_left_to_others():
    huge = np.broadcast_to(np.float32(0), 1 << 32)
    how = {"starts": (0,), "adds": (False,), "found": None, "numbers": (0,)}
    assert not cuda_tensors.gather([huge], np.zeros(1, "f"), **how)


def test_ever_other_sets_of_tensors_are_not_all_remembered(cuda, monkeypatch):
    """As those of a model that leaves layers out at random."""
    monkeypatch.setattr(cuda, "launch", lambda *_: None)
    tensors, out = [cuda.xp.ones(1, "f") for _ in range(12)], cuda.xp.zeros(12, "f")
    for chosen in range(1, 1 << 11):
        numbers = [number for number in range(12) if chosen >> number & 1]
        some = [tensors[number] for number in numbers]
        how = {"starts": numbers, "adds": [False] * len(some), "found": None, "numbers": numbers}
        assert cuda_tensors.gather(some, out, **how)
    assert cuda_tensors._recent_fields.cache_info().currsize <= 1024


def taken(compute, bad=None):
    """Gradients of two micro-batches, what was told meanwhile and where an infinity was found."""
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    random, told = np.random.RandomState(0), []
    flat = FlatGradients(model, np.zeros((2, 3, 8, 8), "f"))
    flat.begin_update(check=True)
    ends = (3, len(flat.slots) - 1)
    for finished in (None, told.append):
        images = random.normal(size=(4, 3, 8, 8)).astype("f")
        if bad is not None:
            images[:] = bad
        with chainer.using_config("train", True), flat.collect(finished, ends=ends, measure=True) as norm:
            F.sum(forward_in(model, compute)(images) ** 2).backward()
    return flat, told, norm.value


@pytest.mark.parametrize("compute", ["float32", pytest.param("mixed16", marks=F16C)])
def test_a_model_has_the_gradients_it_has_one_by_one(cuda_on_cpu, compute):
    expected, told, norm = taken(compute)
    launched = cuda_on_cpu()
    found, told_since, norm_since = taken(compute)
    launches = [name for name in launched if name == "gathered"]
    types = 2 if compute == "mixed16" else 1  # weights of normalisation have gradients of float32
    assert types * 2 <= len(launches) <= types * 2 * 2
    scale = np.abs(expected.values).max()
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=scale * (1e-2 if types == 2 else 1e-5))
    assert sorted(told_since) == sorted(told) == list(range(len(found.slots)))
    assert norm_since == pytest.approx(norm, rel=2e-2)
    assert found.not_finite is expected.not_finite is None


class RunsOut(chainer.FunctionNode):
    """Identity in whose backward memory runs out."""

    def forward(self, inputs):
        return (inputs[0].copy(),)

    def backward(self, indexes, grads):
        raise MemoryError


def test_gradients_that_wait_are_gone_with_the_exception_that_ended_backward(cuda_on_cpu):
    cuda_on_cpu()
    model, x = chainer.Sequential(chainer.links.Linear(4, 8), chainer.links.Linear(8, 2)), np.ones((2, 4), "f")
    flat = FlatGradients(model, x)
    gc.collect()
    gc.disable()
    try:
        flat.begin_update()
        with pytest.raises(MemoryError), flat.collect(ends=(3,)):
            F.sum(model[1](RunsOut().apply((model[0](x),))[0])).backward()
        assert not [each for each in gc.get_objects() if isinstance(each, _Arrivals)]
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_infinity_is_told_as_without_the_kernel(cuda_on_cpu):
    expected = taken("float32", bad=np.inf)[0].not_finite
    assert expected is not None
    cuda_on_cpu()
    assert taken("float32", bad=np.inf)[0].not_finite == expected
