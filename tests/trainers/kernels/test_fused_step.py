"""A step of all parameters at once, on our CUDA kernels compiled for the CPU, is Chainer's parameter by parameter."""

import chainer
import chainer.links as L
import numpy as np
import pytest

from trainers import optimizers
from trainers.fused_step import step
from trainers.gradients import first_not_finite
from trainers.optimizers.weight_decay import decay_parameters
from trainers.steering import Moment, steer

FORMS = [
    optimizers.MomentumSGD(momentum=0.9),
    optimizers.MomentumSGD(weight_decay=0.1, no_decay=("norm", "bias")),
    optimizers.MomentumSGD(weight_decay=0.1, decay="times_rate"),
    optimizers.CorrectedMomentumSGD(weight_decay=0.1, no_decay=("norm",)),
    optimizers.CorrectedMomentumSGD(weight_decay=0.1, decay="times_relative_rate"),
    optimizers.Lars(weight_decay=0.1),
    optimizers.Lars(weight_decay=0.1, no_decay=(), rate="outside", decay_in_trust=False, eps=0.1),
    optimizers.Lars(weight_decay=0.1, nesterov=True, clip=True, trust_coefficient=0.3),
]


class Model(chainer.Chain):
    """Tensors of several blocks, of one value, and one that starts at zero."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.large = L.Linear(300, 150)
            self.bn = L.BatchNormalization(33)
            self.small = L.Linear(1, 1)


def after_updates(component, dtype, *, count=3):
    """Weights and buffers after some updates at rates that move."""
    random, model = np.random.RandomState(0), Model()
    optimizer = component.build()
    optimizer.setup(model)
    decay_parameters(optimizer, component)
    for _, parameter in sorted(model.namedparams()):
        zero = parameter.size == 33
        parameter.array = (0 if zero else 1) * random.normal(size=parameter.shape).astype(dtype)
    for update in range(count):
        for _, parameter in sorted(model.namedparams()):
            parameter.grad = random.normal(size=parameter.shape).astype(dtype)
        rate = 0.0 if update == 1 else 0.1 / (update + 1)
        moment = Moment(update=update, epoch=0.0, global_batch_size=8, learning_rate=rate, full_rate=0.2)
        steer(component, optimizer, moment)
        step(optimizer, component)
    assert optimizer.t == count
    weights = {path: parameter.array for path, parameter in model.namedparams()}
    return weights | {f"{path} v": parameter.update_rule.state["v"] for path, parameter in model.namedparams()}


@pytest.mark.parametrize("component", FORMS, ids=repr)
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_it_is_the_step_of_chainer(cuda_on_cpu, component, dtype, bound):
    expected = after_updates(component, dtype)
    served = cuda_on_cpu()
    found = after_updates(component, dtype)
    assert served.count("momentum_step") == 3
    assert served.count("ratios") == (0 if not isinstance(component, optimizers.Lars) else 2 if component.clip else 3)
    for path, values in expected.items():
        assert found[path].dtype == dtype
        largest = max(np.abs(values).max(), 1e-3)
        np.testing.assert_allclose(found[path], values, rtol=0, atol=bound * largest, err_msg=path)


def test_what_has_no_such_step_goes_parameter_by_parameter(cuda_on_cpu):
    served = cuda_on_cpu()
    after_updates(optimizers.NesterovAG(), np.float32)
    assert "momentum_step" not in served


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_the_first_parameter_that_is_not_finite_is_found(cuda_on_cpu, bad):
    model, served = Model(), cuda_on_cpu()
    assert first_not_finite(model, "array") is None
    for path, place in (("/small/W", 0), ("/large/W", 44_999), ("/bn/gamma", 32)):
        dict(model.namedparams())[path].array.flat[place] = bad
    assert first_not_finite(model, "array") == "/bn/gamma"
    assert served == ["not_finite"] * 2
