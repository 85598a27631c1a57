"""An optimizer's step of all parameters at once on a GPU: one launch, after two more for trust ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainers.kernels import cuda_launch
from trainers.kernels.cuda_launch import THREADS
from trainers.kernels.cuda_tensors import Table, addresses, launch, on_device, table
from trainers.step_forms import StepDecay, StepForm, Trust

STEPS = "eEfd"  # types of weights that there are steps for
_STATES = 2  # arguments of the kernels


def optimizer_step(
    form: StepForm, decay: StepDecay, weights: Sequence[Any], gradients: Sequence[Any], states: Sequence[Sequence[Any]]
) -> None:
    """Move weights and states in place.

    Args:
        weights, gradients: contiguous arrays of one type, one a tensor.
        states: such arrays for each of the form's `states`.
    """
    of_all, like, lambdas = table(weights), weights[0], on_device(decay.lambdas, "d")
    held = [addresses(each) for each in states] + [None] * (_STATES - len(states))
    given = (addresses(weights), addresses(gradients), *held, lambdas, float(decay.coupled), float(decay.shrink))
    numbers, ratios = tuple(map(float, form.numbers)), None  # they may be integers, where Python made the component
    if form.trust is not None:
        parts = cuda_launch.device.xp.empty((of_all.blocks, 2), "d")
        launch(f"{form.kernels}_norms", like, of_all, *given, parts, *numbers)
        ratios = _ratios(form.trust, parts, of_all, lambdas, like)
    launch(f"{form.kernels}_step", like, of_all, *given, ratios, *numbers)


def _ratios(trust: Trust, parts: Any, of_all: Table, lambdas: Any, like: Any) -> Any:
    found, count = cuda_launch.device.xp.empty(len(lambdas), "d"), len(lambdas)
    arguments = (parts, of_all.firsts, lambdas, found, *map(float, trust.numbers), count)
    cuda_launch.device.launch("ratios", like.dtype.char, 1, (-(-count // THREADS),), arguments)
    return found
