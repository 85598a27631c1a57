"""The kernels called `numpy`."""

from trainers.kernels.cpu.compiled import Steps
from trainers.kernels.cpu.convolution import convolution, convolution_data, convolution_weights
from trainers.kernels.cpu.elementwise import add, add_to, relu, relu_gradient
from trainers.kernels.cpu.normalization import (
    COMPUTES_MASK,
    gradient_by,
    mean_and_variance,
    normalization_gradient,
    normalized,
    normalized_by,
    scales,
    whole_scales,
)
from trainers.kernels.cpu.pooling import max_pooled_at, max_pooling, max_pooling_gradient
from trainers.kernels.threads import THREADS

__all__ = ["add", "relu", "relu_gradient", "convolution", "convolution_data", "convolution_weights", "max_pooled_at"]
__all__ += ["mean_and_variance", "normalization_gradient", "normalized", "max_pooling", "max_pooling_gradient"]
__all__ += ["add_to", "COMPUTES_MASK", "scales", "normalized_by", "gradient_by", "whole_scales"]
__all__ += ["optimizer_step", "finite", "STEPS"]

_steps = Steps(THREADS)
optimizer_step, finite, STEPS = _steps.optimizer_step, _steps.finite, _steps.types
