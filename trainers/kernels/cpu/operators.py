"""The kernels called `numpy`."""

# ruff: noqa: F401  these names are the operators

from trainers.kernels.cpu.compiled import Steps
from trainers.kernels.cpu.convolution import convolution, convolution_data, convolution_weights
from trainers.kernels.cpu.elementwise import add, add_to, relu, relu_gradient
from trainers.kernels.cpu.loss import cross_entropy, cross_entropy_gradient
from trainers.kernels.cpu.normalization import (
    COMPUTES_MASK,
    gradient_by,
    mean_and_variance,
    normalization_gradient,
    normalized,
    normalized_by,
    row_sums,
    scales,
    whole_scales,
)
from trainers.kernels.cpu.pooling import max_pooled_at, max_pooling, max_pooling_gradient
from trainers.kernels.threads import THREADS

COMPUTES_GROUPS = COMPUTES_MASK  # several norm groups, each with the bits it has alone: by compiled passes only
_steps = Steps(THREADS)
optimizer_step, finite, STEPS = _steps.optimizer_step, _steps.finite, _steps.types
