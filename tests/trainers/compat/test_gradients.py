"""Gradients of Chainer's functions on this Python and NumPy against central differences in float64."""

import chainer
import chainer.functions as F
import numpy
import pytest

RANDOM = numpy.random.default_rng(20261121)


def draw(*shape):
    return RANDOM.standard_normal(shape)


LABELS = numpy.array([1, 0, 3, 2], numpy.int32)

CASES = {
    "convolution": (
        lambda x, W, b: F.convolution_2d(x, W, b, stride=2, pad=1),
        [draw(2, 3, 7, 6), draw(4, 3, 3, 3), draw(4)],
    ),
    "convolution 1x1": (F.convolution_2d, [draw(3, 4, 5, 5), draw(2, 4, 1, 1), draw(2)]),
    "dilated convolution": (lambda x, W: F.convolution_2d(x, W, dilate=2), [draw(2, 2, 7, 7), draw(3, 2, 3, 3)]),
    "grouped convolution": (lambda x, W: F.convolution_2d(x, W, pad=1, groups=2), [draw(2, 4, 5, 5), draw(6, 2, 3, 3)]),
    "deconvolution": (
        lambda x, W, b: F.deconvolution_2d(x, W, b, stride=2, pad=1),
        [draw(2, 3, 4, 4), draw(3, 2, 3, 3), draw(2)],
    ),
    "batch normalization": (F.batch_normalization, [draw(6, 3, 2, 2), draw(3), draw(3)]),
    "linear": (F.linear, [draw(4, 5), draw(3, 5), draw(3)]),
    "softmax cross entropy": (lambda x: F.softmax_cross_entropy(x, LABELS), [draw(4, 5)]),
    "ReLU": (F.relu, [draw(3, 4)]),
    "max pooling": (lambda x: F.max_pooling_2d(x, 3, stride=2, pad=1), [draw(2, 2, 6, 5)]),
    "average pooling": (lambda x: F.average_pooling_2d(x, 2), [draw(2, 2, 4, 4)]),
}


def weighted_sum(function, arrays):
    """A scalar of the function's value in which every element has another weight, so that no gradients cancel."""
    value = function(*arrays)
    weights = numpy.cos(numpy.arange(value.size)).reshape(value.shape).astype(value.dtype)
    return F.sum(value * weights)


def central_differences(function, arrays, width=1e-5):
    gradients = [numpy.empty_like(array) for array in arrays]
    for array, gradient in zip(arrays, gradients, strict=True):
        for index in numpy.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + width
            above = weighted_sum(function, arrays).item()
            array[index] = kept - width
            below = weighted_sum(function, arrays).item()
            array[index] = kept
            gradient[index] = (above - below) / (2 * width)
    return gradients


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 1e-4)])
@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_central_differences_in_float64(name, dtype, tolerance):
    function, arrays = CASES[name]
    expected = central_differences(function, [array.copy() for array in arrays])
    variables = [chainer.Variable(array.astype(dtype)) for array in arrays]
    weighted_sum(function, variables).backward()
    for variable, gradient in zip(variables, expected, strict=True):
        assert variable.grad.dtype == dtype
        numpy.testing.assert_allclose(variable.grad, gradient, rtol=tolerance, atol=tolerance * abs(gradient).max())


def test_convolution_equals_its_definition():
    x, W = draw(2, 3, 5, 6), draw(4, 3, 3, 2)
    expected = numpy.zeros((2, 4, 3, 5))
    for row, column in numpy.ndindex(3, 5):
        window = x[:, :, row : row + 3, column : column + 2]
        expected[:, :, row, column] = numpy.einsum("ncij,ocij->no", window, W)
    numpy.testing.assert_allclose(F.convolution_2d(x, W).array, expected, rtol=1e-12)


def test_batch_normalization_moves_the_running_statistics_with_the_unbiased_variance():
    x = draw(8, 2)
    link = chainer.links.BatchNormalization(2, decay=0.9, dtype=numpy.float64)
    link(x)
    numpy.testing.assert_allclose(link.avg_mean, 0.1 * x.mean(axis=0))
    numpy.testing.assert_allclose(link.avg_var, 0.9 + 0.1 * x.var(axis=0, ddof=1))
