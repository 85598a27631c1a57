"""Optimizers that follow the batch by the same rule: names of the vocabulary, by family."""

from __future__ import annotations

__all__ = ["ADAPTIVE", "LAYERWISE", "MOMENTUM_SGD"]

# A step is the gradient times the rate: linear scaling, Goyal et al. 2017.
MOMENTUM_SGD = ("CorrectedMomentumSGD", "CorrectedNesterovAG", "MomentumSGD", "NesterovAG", "SGD")
# The gradient is divided by the root of its mean square: the square root, Malladi et al. 2022 and You et al. 2019.
ADAPTIVE = ("Adam", "Lamb")
# A layer's step has the size of its weights, and norms and biases are left out of that.
LAYERWISE = ("Lamb", "Lars")
