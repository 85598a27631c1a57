"""A recipe that leaves a key of its optimizer out trains by these values, also when it goes on with an old run."""

from dataclasses import asdict

import pytest

from trainers import optimizers

PLAIN = {"weight_decay": 0.0, "no_decay": ()}
MOMENTUM = PLAIN | {"momentum": 0.9, "decay": "coupled"}
LAYERWISE = {"weight_decay": 0.0, "no_decay": ("norm", "bias")}
DEFAULTS = {
    "AdaScale": PLAIN | {"momentum": 0.9, "smoothing": None, "clock": "samples"},
    "Adam": PLAIN | {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": "coupled"},
    "CorrectedMomentumSGD": MOMENTUM,
    "CorrectedNesterovAG": MOMENTUM,
    "Lamb": LAYERWISE | {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "bias_correction": True, "trust_bounds": None},
    "Lars": LAYERWISE
    | {"momentum": 0.9, "trust_coefficient": 0.001, "decay_in_trust": True, "rate": "inside", "nesterov": False}
    | {"eps": 0.0, "clip": False},
    "MomentumSGD": MOMENTUM,
    "Muon": LAYERWISE | {"momentum": 0.95, "iterations": 5, "scale": "rows", "others": ("/fc/*", "/fc6/*")},
    "NesterovAG": MOMENTUM,
    "RmspropWarmup": PLAIN
    | {"mu1": 0.9, "mu2": 0.99, "eps": 1e-8, "rmsprop_learning_rate": 3e-4, "beta_center": 10.0, "beta_period": 5.0}
    | {"transition": "continuous"},
    "SGD": PLAIN | {"decay": "coupled"},
    "ScheduleFreeSGD": PLAIN | {"beta": 0.9},
}


@pytest.mark.parametrize("name", optimizers.__all__)
def test_defaults_are_those_of_recipes_that_leave_the_key_out(name):
    assert asdict(getattr(optimizers, name)()) == DEFAULTS[name]
