"""A fused step knows the arrays of its model, and no others."""

import weakref

import chainer
import numpy as np
import pytest

from trainers.kernels import chainer_hooks
from trainers.optimizers import MomentumSGD
from trainers.optimizers.fused_step import FusedStep


@pytest.mark.parametrize("served", [True, False])
def test_arrays_that_are_weights_no_longer_are_not_kept(cuda_on_cpu, monkeypatch, served):
    component, launched = MomentumSGD(momentum=0.9), cuda_on_cpu()
    model, optimizer = chainer.links.Linear(3, 2), component.build()
    optimizer.setup(model)
    optimizer.lr = 0.1
    step = FusedStep(optimizer, component)
    model.W.grad, model.b.grad = np.ones((2, 3), "f"), np.ones(2, "f")
    step()
    weights = weakref.ref(model.W.array)
    monkeypatch.setattr(chainer_hooks, "operators", chainer_hooks.operators if served else None)
    for parameter in model.params():  # as on another device
        parameter.array = parameter.array.copy()
    step()
    assert weights() is None
    assert len(launched) == 1 + served
