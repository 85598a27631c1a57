"""The kernels called `cudnn`, for GPUs."""

from trainers.kernels.cuda_averages import move_averages
from trainers.kernels.cuda_convolution import convolution, convolution_data, convolution_weights
from trainers.kernels.cuda_elementwise import add, add_to, relu, relu_gradient
from trainers.kernels.cuda_loss import cross_entropy, cross_entropy_gradient
from trainers.kernels.cuda_normalization import (
    COMPUTES_MASK,
    gradient_by,
    mean_and_variance,
    normalization_gradient,
    normalized,
    normalized_by,
    scales,
    see,
    whole_scales,
)
from trainers.kernels.cuda_pooling import (
    average_pooling,
    average_pooling_gradient,
    max_pooled_at,
    max_pooling,
    max_pooling_gradient,
)
from trainers.kernels.cuda_products import product
from trainers.kernels.cuda_steps import STEPS, optimizer_step
from trainers.kernels.cuda_tensors import finite, gather, narrowed

__all__ = [
    "add",
    "add_to",
    "relu",
    "relu_gradient",
    "convolution",
    "convolution_data",
    "convolution_weights",
    "max_pooled_at",
]
__all__ += ["mean_and_variance", "normalization_gradient", "normalized", "max_pooling"]
__all__ += ["max_pooling_gradient", "average_pooling", "average_pooling_gradient"]
__all__ += ["COMPUTES_MASK", "scales", "normalized_by", "gradient_by", "see", "finite", "optimizer_step", "STEPS"]
__all__ += ["cross_entropy", "cross_entropy_gradient", "product", "whole_scales", "narrowed", "gather", "move_averages"]
