"""The kernels called `cudnn`, for GPUs."""

# ruff: noqa: F401  these names are the operators

from __future__ import annotations

from trainers.kernels.cuda.convolution import (
    convolution,
    convolution_data,
    convolution_data_plus,
    convolution_weights,
)
from trainers.kernels.cuda.elementwise import add, add_to, relu, relu_gradient
from trainers.kernels.cuda.loss import cross_entropy, cross_entropy_gradient
from trainers.kernels.cuda.normalization import (
    COMPUTES_MASK,
    gradient_by,
    mean_and_variance,
    normalized_by,
    scales,
    see,
    whole_scales,
)
from trainers.kernels.cuda.pooling import (
    average_pooling,
    average_pooling_gradient,
    max_pooling,
    max_pooling_gradient,
)
from trainers.kernels.cuda.products import product
from trainers.kernels.cuda.tensors import STEPS, finite, gather, move_averages, narrowed, optimizer_step
