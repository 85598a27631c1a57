"""The kernels called `numpy`."""

from trainers.kernels.numpy_convolution import convolution, convolution_data, convolution_weights
from trainers.kernels.numpy_pooling import max_pooled_at, max_pooling, max_pooling_gradient

__all__ = ["convolution", "convolution_data", "convolution_weights", "max_pooled_at"]
__all__ += ["max_pooling", "max_pooling_gradient"]
