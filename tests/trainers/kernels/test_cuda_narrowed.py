"""All weights of a model rounded to 16 bits in one launch, on a GPU and compiled for the CPU."""

import platform

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from trainers.gradients.mixed_precision import weights_in
from trainers.kernels.cuda import tensors as cuda_tensors
from trainers.models import SmallResNet
from trainers.models.keyed_random import draw_initial_weights

F16C = pytest.mark.skipif(platform.machine() != "x86_64", reason="no F16C")
SHAPES = [(64, 3, 7, 7), (5,), (10, 7), (33, 129, 3, 3), (8, 16, 1, 1), (6, 4, 1, 3), (), (130, 129), (3, 4, 5)]


def bits_of(array):
    return np.asarray(array.get() if hasattr(array, "get") else array).view(f"u{array.itemsize}")


@pytest.mark.parametrize("kind", [pytest.param("e", marks=F16C), pytest.param("E", id="bfloat16"), "f"])
def test_tensors_are_rounded_as_one_by_one_and_lie_channels_last(cuda, kind):
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if kind == "E" else kind)
    random = np.random.RandomState(0)
    tensors = [random.normal(size=shape).astype("f") for shape in SHAPES]
    found = cuda_tensors.narrowed([cuda.xp.asarray(tensor) for tensor in tensors], dtype)
    for one, tensor in zip(found, tensors, strict=True):
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
    found = gradients(model, images)
    assert launched == ["narrowed"]
    for path, parameter in model.namedparams():
        assert parameter.grad.dtype == np.float32
        assert parameter.grad.flags.c_contiguous
        np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


def test_in_float32_only_windows_are_cast_and_their_gradients_are_what_they_were(cuda_on_cpu):
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    images = np.random.RandomState(0).normal(size=(4, 3, 8, 8)).astype(np.float32)
    expected, launched = gradients(model, images), cuda_on_cpu()
    with weights_in(model, np.float32):
        assert not model.conv1.W.array.flags.c_contiguous
        assert type(model.fc.W) is chainer.Parameter
    assert launched == ["narrowed"]
    found = gradients(model, images)
    for path, parameter in model.namedparams():
        assert parameter.grad.flags.c_contiguous
        np.testing.assert_allclose(found[path], expected[path], rtol=0, atol=1e-5 * np.abs(expected[path]).max())


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
