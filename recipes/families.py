"""Families of optimizers whose rate follows the batch by the same rule, as names of the vocabulary."""

from __future__ import annotations

__all__ = ["ADAPTIVE", "LAYERWISE", "MOMENTUM_SGD"]

# A step is proportional to the gradient: linear scaling, Goyal et al. 2017.
MOMENTUM_SGD = ("CorrectedMomentumSGD", "CorrectedNesterovAG", "MomentumSGD", "NesterovAG", "SGD")
# The gradient is divided by the root of its mean square: the square root, Malladi et al. 2022 and You et al. 2019.
ADAPTIVE = ("Adam", "Lamb")
# A layer's step is proportional to the norm of its weights, except for normalisation and biases.
LAYERWISE = ("Lamb", "Lars")
