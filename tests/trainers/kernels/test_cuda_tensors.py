"""Kernels over many tensors in one launch, on a GPU and compiled for the CPU: gradients, 16-bit weights, averages."""

import gc
import platform

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers.gradients.flat_gradients import FlatGradients, _Arrivals, backward_order
from trainers.gradients.mixed_precision import forward_in, weights_in
from trainers.kernels.cuda import tensors as cuda_tensors
from trainers.models import SmallResNet
from trainers.models.batch_norm import NormGroups, moved_statistics
from trainers.models.keyed_random import draw_initial_weights

F16C = pytest.mark.skipif(platform.machine() != "x86_64", reason="no F16C")
SHAPES = [(64, 3, 7, 7), (5,), (10, 7), (33, 129, 3, 3), (8, 16, 1, 1), (6, 4, 1, 3), (), (130, 129), (3, 4, 5)]
ODD = {2: np.inf, 3: np.nan, 6: -np.inf}


def dtype_of(kind):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if kind == "E" else kind)


def gradients_of(shapes, dtype):
    """In C order, those of four axes with channels last, a matrix the other way round."""
    random = np.random.RandomState(0)
    actual = [np.asarray(random.normal(size=shape)).astype(dtype) for shape in shapes]
    for number, one in enumerate(actual):
        if one.ndim == 4:
            actual[number] = np.ascontiguousarray(one.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        elif one.shape == (130, 129):
            actual[number] = np.asfortranarray(one)
    return actual


def on(cuda, arrays):
    """There, lying as they do here."""
    return [cuda.xp.asarray(array, order="A") if array.ndim < 4 else last_on(cuda, array) for array in arrays]


def last_on(cuda, array):
    return cuda.xp.asarray(np.ascontiguousarray(array.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)


def host(array):
    return array.get() if hasattr(array, "get") else array


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
    out, flags = cuda.xp.asarray(before), cuda.xp.zeros(20, np.uint8)
    how = {"starts": starts[:-1].tolist(), "adds": adds, "numbers": [*range(3, 3 + len(tensors))]}
    assert cuda_tensors.gather(on(cuda, tensors), out, found=flags if finds else None, **how)
    np.testing.assert_array_equal(host(out), expected)
    assert np.flatnonzero(host(flags)).tolist() == ([3 + number for number in ODD] if finds else [])


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
    """Gradients of two micro-batches, what was told meanwhile and where an infinity was actual."""
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    random, told = np.random.RandomState(0), []
    flat = FlatGradients(backward_order(model, np.zeros((2, 3, 8, 8), "f")))
    flat.begin_update(check=True)
    ends = (3, len(flat.slots) - 1)
    for finished in (None, told.append):
        images = random.normal(size=(4, 3, 8, 8)).astype("f")
        if bad is not None:
            images[:] = bad
        with chainer.using_config("train", True), flat.collect(finished, ends=ends, measure=True) as norm:
            F.sum(forward_in(model, compute)(images) ** 2).backward()
    return flat, told, float(norm.terms.sum())


def not_finite(flat):
    return flat.first_flagged(host(flat.flags))


@pytest.mark.parametrize("compute", ["float32", pytest.param("mixed16", marks=F16C)])
def test_a_model_has_the_gradients_it_has_one_by_one(cuda_on_cpu, compute):
    expected, told, norm = taken(compute)
    launched = cuda_on_cpu()
    actual, told_since, norm_since = taken(compute)
    launches = [name for name in launched if name == "gathered"]
    types = 2 if compute == "mixed16" else 1  # weights of normalisation have gradients of float32
    assert types * 2 <= len(launches) <= types * 2 * 2
    scale = np.abs(expected.values).max()
    np.testing.assert_allclose(actual.values, expected.values, rtol=0, atol=scale * (1e-2 if types == 2 else 1e-5))
    assert sorted(told_since) == sorted(told) == list(range(len(actual.slots)))
    assert norm_since == pytest.approx(norm, rel=2e-2)
    assert not_finite(actual) is not_finite(expected) is None


class RunsOut(chainer.FunctionNode):
    """Identity in whose backward memory runs out."""

    def forward(self, inputs):
        return (inputs[0].copy(),)

    def backward(self, indexes, grads):
        raise MemoryError


def test_gradients_that_wait_are_gone_with_the_exception_that_ended_backward(cuda_on_cpu):
    cuda_on_cpu()
    model, x = chainer.Sequential(chainer.links.Linear(4, 8), chainer.links.Linear(8, 2)), np.ones((2, 4), "f")
    flat = FlatGradients(backward_order(model, x))
    gc.collect()
    gc.disable()
    try:
        flat.begin_update()
        with pytest.raises(MemoryError), flat.collect(ends=(3,)):
            F.sum(model[1](RunsOut().apply((model[0](x),))[0])).backward()
        assert not [each for each in gc.get_objects() if type(each) is _Arrivals]
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_infinity_is_told_as_without_the_kernel(cuda_on_cpu):
    expected = not_finite(taken("float32", bad=np.inf)[0])
    assert expected is not None
    cuda_on_cpu()
    assert not_finite(taken("float32", bad=np.inf)[0]) == expected


def bits_of(array):
    return np.asarray(host(array)).view(f"u{array.itemsize}")


@pytest.mark.parametrize(
    "kind", [pytest.param("e", marks=F16C), pytest.param("E", id="bfloat16", marks=pytest.mark.bfloat16), "f"]
)
def test_tensors_are_rounded_as_one_by_one_and_lie_channels_last(cuda, kind):
    dtype = dtype_of(kind)
    random = np.random.RandomState(0)
    tensors = [random.normal(size=shape).astype("f") for shape in SHAPES]
    actual = cuda_tensors.narrowed([cuda.xp.asarray(tensor) for tensor in tensors], dtype)
    for one, tensor in zip(actual, tensors, strict=True):
        np.testing.assert_array_equal(bits_of(one), bits_of(tensor.astype(dtype)))
        assert (one.transpose(0, 2, 3, 1) if one.ndim == 4 else one).flags.c_contiguous


def test_what_it_does_not_round_it_leaves(cuda):
    weights = cuda.xp.asarray(np.ones((4, 3), "f"))
    wide = weights.astype("d")
    for tensors, kind in (([weights], "d"), ([weights, weights.T], "e"), ([weights, wide], "e"), ([], "e")):
        assert cuda_tensors.narrowed(tensors, np.dtype(kind)) is None


def test_tensors_of_more_values_than_it_counts_it_leaves(cuda, monkeypatch):
    tensors = [cuda.xp.asarray(np.ones(5, "f")), cuda.xp.asarray(np.ones(3, "f"))]
    monkeypatch.setattr(cuda_tensors, "_MOST", 5)
    assert cuda_tensors.narrowed(tensors, np.dtype("f")) is not None
    monkeypatch.setattr(cuda_tensors, "_MOST", 4)
    assert cuda_tensors.narrowed(tensors, np.dtype("f")) is None


def gradients(model, images):
    """Of the sum of a forward's squares with weights in the images' type, by path."""
    with chainer.using_config("train", True), weights_in(model, images.dtype):
        loss = F.sum(F.cast(model(images), np.float32) ** 2)
    model.cleargrads()
    loss.backward()
    return {path: parameter.grad for path, parameter in model.namedparams()}


@F16C
def test_a_model_in_16_bits_has_the_gradients_it_had_and_they_lie_as_its_parameters(cuda_on_cpu):
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    images = np.random.RandomState(0).normal(size=(4, 3, 8, 8)).astype(np.float16)
    expected, launched = gradients(model, images), cuda_on_cpu()
    actual = gradients(model, images)
    assert launched == ["narrowed"]
    for path, parameter in model.namedparams():
        assert parameter.grad.dtype == np.float32
        assert parameter.grad.flags.c_contiguous
        np.testing.assert_array_equal(actual[path], expected[path], err_msg=path)


def test_in_float32_only_windows_are_cast_and_their_gradients_are_what_they_were(cuda_on_cpu):
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    images = np.random.RandomState(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
    expected, launched = gradients(model, images), cuda_on_cpu()
    with weights_in(model, np.float32):
        assert not model.conv1.W.array.flags.c_contiguous
        assert type(model.fc.W) is chainer.Parameter
    assert launched == ["narrowed"]
    actual = gradients(model, images)
    for path, parameter in model.namedparams():
        assert parameter.grad.flags.c_contiguous
        np.testing.assert_allclose(actual[path], expected[path], rtol=0, atol=1e-5 * np.abs(expected[path]).max())


def test_in_float32_and_without_such_kernels_weights_stay(cuda_on_cpu):
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    before = [id(link.__dict__[name]) for link in model.links() for name in sorted(link._params)]
    with weights_in(model, np.float32):
        assert [id(link.__dict__[name]) for link in model.links() for name in sorted(link._params)] == before
    cuda_on_cpu()
    for parameter in model.params():
        parameter.array = parameter.array.astype(np.float64)
    with weights_in(model, np.float32):
        assert [id(link.__dict__[name]) for link in model.links() for name in sorted(link._params)] == before


def test_a_link_in_two_places_is_cast_once(cuda_on_cpu):
    model, served = chainer.Sequential(L.Linear(3, 3)), cuda_on_cpu()
    model.append(model[0])
    W, b = model[0].W, model[0].b
    with weights_in(model, np.float16):
        cast = model[0].W
        assert cast.dtype == np.float16
        assert cast.creator.inputs[0].get_variable() is W
    assert model[0].W is W
    assert model[0].b is b
    assert served == ["narrowed"]


CHANNELS = 300  # more than a block has threads


@pytest.mark.parametrize("kind", ["f", "d"])
@pytest.mark.parametrize("keep", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("how", ["pooled", "moving_average"])
@pytest.mark.parametrize("bad", [1.0, np.nan, np.inf])
def test_averages_move_as_by_operations_on_arrays(cuda, kind, keep, how, bad):
    random = np.random.RandomState(0)
    sums, averages = random.uniform(1, 2, 5000), random.normal(size=(2, CHANNELS)).astype(kind)
    places = random.permutation(5000)[: 4 * CHANNELS].reshape(4, CHANNELS)
    sums[places[0, ::7]] = 0  # of layers that were not used
    sums[places[:, 1]] *= bad
    with np.errstate(invalid="ignore"):
        expected = moved_statistics(sums[places], averages, keep, how)
    actual = cuda.xp.asarray(averages)
    cuda_tensors.move_averages(cuda.xp.asarray(sums), cuda.xp.asarray(places), actual, keep, pooled=how == "pooled")
    np.testing.assert_allclose(host(actual), expected, rtol=1e-6 if kind == "f" else 1e-13)
    np.testing.assert_array_equal(host(actual)[:, ::7], averages[:, ::7])


class Net(chainer.Chain):
    """Two normalisations, of which one has its turn twice."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.wide, self.narrow, self.idle = (L.BatchNormalization(size) for size in (5, 3, 2))

    def forward(self, x):
        return self.narrow(self.narrow(self.wide(x)[:, :3]))


@pytest.mark.parametrize("how", ["pooled", "moving_average", "last_batch", "by_group"])
def test_a_models_running_statistics_are_moved_in_one_launch(cuda_on_cpu, how):
    def moved():
        model, groups = Net(), NormGroups(Evaluation(norm_statistics=how))
        groups.install(model)
        division = divide(global_batch_size=8, norm_span=4, workers=1, micro_batch_size=8)
        x = np.random.RandomState(0).normal(size=(8, 5)).astype("f")
        for _ in range(2):
            groups.begin_update(division)
            groups.begin_micro_batch(division.micro_batches(0)[0])
            with chainer.using_config("train", True):
                model(x)
            groups.update_running_statistics(MPI.COMM_SELF, 8)
        return [getattr(link, name).copy() for link in model.children() for name in ("avg_mean", "avg_var")]

    expected, launched = moved(), cuda_on_cpu()
    for actual, other in zip(moved(), expected, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-6, atol=1e-7)
    assert launched.count("moved_averages") == 2
