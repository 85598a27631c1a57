"""Our optimizers against PyTorch's and timm's over the same 50 updates, with the options that make them the same.

The table of EXPERIMENTS.md:

    PYTHONPATH=. python tests/trainers/optimizers/test_torch.py
"""

import copy
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import trainers.compat  # noqa: F401
from trainers.optimizers import (
    SGD,
    Adam,
    CorrectedMomentumSGD,
    CorrectedNesterovAG,
    Lamb,
    Lars,
    MomentumSGD,
    NesterovAG,
    RmspropWarmup,
)

pytestmark = pytest.mark.torch

DECAY = 0.1
NORM_AND_BIAS = ("norm", "bias")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two optimizers that do the same."""

    ours: Any
    theirs: str  # a class of torch.optim, or timm:Class of timm.optim
    options: dict
    exempt_options: dict = field(default_factory=lambda: {"weight_decay": 0.0})
    constant_rate: float | None = None
    why: str = ""  # what makes them the same where conventions differ


MOMENTUM = {"momentum": 0.9, "weight_decay": DECAY, "no_decay": ("norm",)}
TORCH_SGD = {"momentum": 0.9, "weight_decay": DECAY}
ADAM = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-30, "weight_decay": DECAY, "no_decay": ("norm",)}
TORCH_ADAM = {"betas": (0.9, 0.99), "eps": 1e-30, "weight_decay": DECAY}
LARS = {"rate": "outside", "trust_coefficient": 0.02, "eps": 1e-8, "weight_decay": DECAY}
TIMM_LARS = {"momentum": 0.9, "trust_coeff": 0.02, "eps": 1e-8, "weight_decay": DECAY}
LAMB = {"weight_decay": DECAY}
TIMM_LAMB = {"weight_decay": DECAY, "max_grad_norm": None}
NO_RATIO = {"weight_decay": 0.0, "always_adapt": False}
TINY = "eps 1e-30, it stands in two places"
CASES = {
    "SGD": Case(ours=SGD(weight_decay=DECAY), theirs="SGD", options={"weight_decay": DECAY}),
    "MomentumSGD": Case(
        ours=MomentumSGD(**MOMENTUM), theirs="SGD", options=TORCH_SGD, constant_rate=0.05, why="at a constant rate"
    ),
    "CorrectedMomentumSGD": Case(ours=CorrectedMomentumSGD(**MOMENTUM), theirs="SGD", options=TORCH_SGD),
    "CorrectedMomentumSGD times_rate": Case(
        ours=CorrectedMomentumSGD(**MOMENTUM, decay="times_rate"), theirs="timm:SGDW", options=TORCH_SGD
    ),
    "NesterovAG": Case(
        ours=NesterovAG(**MOMENTUM),
        theirs="SGD",
        options={**TORCH_SGD, "nesterov": True},
        constant_rate=0.05,
        why="at a constant rate",
    ),
    "CorrectedNesterovAG": Case(
        ours=CorrectedNesterovAG(**MOMENTUM), theirs="SGD", options={**TORCH_SGD, "nesterov": True}
    ),
    "CorrectedNesterovAG times_rate": Case(
        ours=CorrectedNesterovAG(**MOMENTUM, decay="times_rate"),
        theirs="timm:SGDW",
        options={**TORCH_SGD, "nesterov": True},
    ),
    "Adam": Case(ours=Adam(**ADAM), theirs="Adam", options=TORCH_ADAM, why=TINY),
    "Adam times_rate": Case(ours=Adam(**ADAM, decay="times_rate"), theirs="AdamW", options=TORCH_ADAM, why=TINY),
    "Adam times_relative_rate": Case(
        ours=Adam(**ADAM, decay="times_relative_rate"),
        theirs="AdamW",
        options={**TORCH_ADAM, "weight_decay": DECAY / 0.1},
        why=f"their decay is ours over the full rate; {TINY}",
    ),
    "RmspropWarmup before its center": Case(
        ours=RmspropWarmup(beta_center=1e6, rmsprop_learning_rate=3e-3, weight_decay=DECAY),
        theirs="RMSprop",
        options={"alpha": 0.99, "momentum": 0.9, "eps": 1e-8, "weight_decay": DECAY},
        constant_rate=3e-3,
        why="at a constant rate, equal to the RMSprop rate",
    ),
    "RmspropWarmup when it is over": Case(
        ours=RmspropWarmup(beta_center=-10.0, weight_decay=DECAY), theirs="SGD", options=TORCH_SGD
    ),
    "Lars": Case(
        ours=Lars(**LARS), theirs="timm:Lars", options=TIMM_LARS, exempt_options=NO_RATIO, why="rate outside, eps 1e-8"
    ),
    "Lars nesterov": Case(
        ours=Lars(**LARS, nesterov=True),
        theirs="timm:Lars",
        options={**TIMM_LARS, "nesterov": True},
        exempt_options=NO_RATIO,
        why="rate outside, eps 1e-8",
    ),
    "Lars clip": Case(
        ours=Lars(**LARS, clip=True),
        theirs="timm:Lars",
        options={**TIMM_LARS, "trust_clip": True},
        exempt_options=NO_RATIO,
        why="rate outside, eps 1e-8",
    ),
    "Lars of every tensor": Case(
        ours=Lars(**LARS, no_decay=()), theirs="timm:Lars", options=TIMM_LARS, why="rate outside, eps 1e-8"
    ),
    "Lamb": Case(
        ours=Lamb(**LAMB), theirs="timm:Lamb", options=TIMM_LAMB, exempt_options=NO_RATIO, why="max_grad_norm None"
    ),
    "Lamb uncorrected": Case(
        ours=Lamb(**LAMB, bias_correction=False),
        theirs="timm:Lamb",
        options={**TIMM_LAMB, "bias_correction": False},
        exempt_options=NO_RATIO,
        why="max_grad_norm None",
    ),
    "Lamb of every tensor": Case(
        ours=Lamb(**LAMB, no_decay=()), theirs="timm:Lamb", options=TIMM_LAMB, why="max_grad_norm None"
    ),
}


def their_class(name):
    """Of PyTorch or timm; the test is skipped where that is not installed."""
    library, _, name = name.rpartition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(pytest.importorskip(f"{library or 'torch'}.optim"), name)


def is_exempt(path, no_decay):
    return ("norm" in no_decay and path.startswith("/bn/")) or ("bias" in no_decay and path.endswith("/b"))


def their_weights(case, recorded, dtype):
    kind = their_class(case.theirs)
    import torch

    tensors = {path: torch.tensor(w.astype(dtype), requires_grad=True) for path, w in recorded.weights.items()}
    exempt = [path for path in tensors if is_exempt(path, case.ours.no_decay)]
    groups = [{"params": [tensors[path] for path in tensors if path not in exempt]}]
    if exempt:
        groups.append({"params": [tensors[path] for path in exempt], **case.exempt_options})
    optimizer = kind(groups, lr=recorded.rates[0], **case.options)
    for rate, gradients in zip(recorded.rates, recorded.gradients, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for path, tensor in tensors.items():
            tensor.grad = torch.tensor(gradients[path].astype(dtype))
        optimizer.step()
    return {path: tensor.detach().numpy() for path, tensor in tensors.items()}


def deviation(case, recorded, dtype):
    """The largest difference of a tensor in its largest value."""
    if case.constant_rate is not None:
        recorded = copy.copy(recorded)
        recorded.rates = [case.constant_rate] * recorded.num_updates
    theirs = their_weights(case, recorded, dtype)
    ours = recorded.replay(case.ours, *recorded.setup(case.ours, dtype))
    return max(np.abs(ours[path] - theirs[path]).max() / np.abs(theirs[path]).max() for path in theirs)


@pytest.mark.parametrize("name", CASES)
def test_50_updates_agree_to_1e_10_in_float64(name, recorded):
    assert deviation(CASES[name], recorded, np.float64) <= 1e-10


@pytest.mark.parametrize("name", CASES)
def test_50_updates_agree_to_2e_6_in_float32(name, recorded):
    assert deviation(CASES[name], recorded, np.float32) <= 2e-6


DIFFERENT = {
    "MomentumSGD, the rate moving": Case(ours=MomentumSGD(**MOMENTUM), theirs="SGD", options=TORCH_SGD),
    "NesterovAG, the rate moving": Case(
        ours=NesterovAG(**MOMENTUM), theirs="SGD", options={**TORCH_SGD, "nesterov": True}
    ),
    "Lars, rate inside": Case(
        ours=Lars(**{**LARS, "rate": "inside"}), theirs="timm:Lars", options=TIMM_LARS, exempt_options=NO_RATIO
    ),
    "Lamb, timm's clipping on": Case(
        ours=Lamb(**LAMB), theirs="timm:Lamb", options={"weight_decay": DECAY}, exempt_options=NO_RATIO
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_our_docstrings_call_different_is(name, recorded):
    assert deviation(DIFFERENT[name], recorded, np.float64) > 1e-3


if __name__ == "__main__":
    from conftest import Recording

    run = Recording()
    print("| ours | theirs | the same with | float32 | float64 |\n|---|---|---|---|---|")
    for title, case in {**CASES, **DIFFERENT}.items():
        figures = (f"{deviation(case, run, dtype):.1e}" for dtype in (np.float32, np.float64))
        note = "different, as documented" if title in DIFFERENT else case.why
        print(f"| {title} | {case.theirs.replace(':', ' ')} | {note} | {' | '.join(figures)} |")
