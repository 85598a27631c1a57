"""Schedules of learning rate and batch size: pure, stateless functions of the epochs seen.

The names below are the vocabulary of a recipe: `kind: Cosine` is `lr_schedules.Cosine`.
"""

from lr_schedules.combine import Joined, Product
from lr_schedules.ramps import BatchRamp
from lr_schedules.scaling import linear_scaling, no_scaling, sqrt_scaling
from lr_schedules.shapes import Constant, Cosine, Exponential, MultiStep, PiecewiseLinear, Polynomial, SlowStart
from lr_schedules.warmups import ConstantWarmup, GradualWarmup

__all__ = [
    "BatchRamp",
    "Constant",
    "ConstantWarmup",
    "Cosine",
    "Exponential",
    "GradualWarmup",
    "Joined",
    "MultiStep",
    "PiecewiseLinear",
    "Polynomial",
    "Product",
    "SlowStart",
    "linear_scaling",
    "no_scaling",
    "sqrt_scaling",
]
