"""Norm groups and mixed precision give on a GPU what they give on the CPU."""

import importlib

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer.backends.cuda import to_cpu
from mpi4py import MPI

from recipes.planning.division import divide
from recipes.schema import Evaluation, NormMomentum, Precision
from trainers import kernels
from trainers.gradients.mixed_precision import LossScale, computing, forward_in
from trainers.gradients.norms import first_not_finite
from trainers.kernels import chainer_hooks
from trainers.kernels.fused_normalization import ConvolutionNormalization
from trainers.models import SmallResNet
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import draw_initial_weights
from trainers.training.device import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy"),
]

DEVICE = "@cupy:0"
DIVISION = divide(global_batch_size=48, norm_span=16, workers=1, micro_batch_size=48)


@pytest.fixture(params=["chainer", "cudnn"], autouse=True)
def _kernels(request, monkeypatch):
    """Each kind of kernels, whatever other tests have left; they round float16 at other places."""
    if kernels.missing(request.param, device="gpu") is not None:
        pytest.skip(f"no {request.param} kernels here")
    ours = None if request.param == "chainer" else importlib.import_module("trainers.kernels.cuda.operators")
    monkeypatch.setattr(chainer_hooks, "gpu_operators", ours)


def one_update(device, compute, norm_statistics, *, loss_scale=1024, frozen=()):
    """Loss, gradients and running statistics of one update of 48 samples, on the CPU whatever computed them."""
    random = np.random.RandomState(0)
    images, labels = random.normal(5.0, 1.0, (48, 3, 8, 8)).astype(np.float32), random.randint(0, 5, 48)
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    groups = NormGroups(Evaluation(norm_statistics=norm_statistics, norm_momentum=NormMomentum(keep=0.5)))
    groups.install(model)
    for name in frozen:
        model[name].is_frozen = True
    model.to_device(device)
    xp = chainer.get_device(device).xp
    groups.begin_update(DIVISION)
    groups.begin_micro_batch(DIVISION.micro_batches(0)[0])
    mixed = LossScale(Precision(compute="mixed16", loss_scale=loss_scale))
    factor = mixed.factor(DIVISION) if compute == "mixed16" else 1.0
    with chainer.using_config("train", True), computing(compute, model.device):
        logits = forward_in(model, compute)(xp.asarray(images))
        loss = F.softmax_cross_entropy(logits, xp.asarray(labels.astype(np.int32)))
        model.cleargrads()
        (loss * (48.0 * factor)).backward()
    for parameter in model.params():
        parameter.grad *= np.float32(1 / factor)
    overflowed = first_not_finite({path: parameter.grad for path, parameter in sorted(model.namedparams())})
    groups.update_running_statistics(MPI.COMM_SELF, 48)
    actual = {path: to_cpu(parameter.grad) for path, parameter in model.namedparams()}
    actual |= {"bn1/avg_mean": to_cpu(model.bn1.avg_mean), "bn1/avg_var": to_cpu(model.bn1.avg_var)}
    return float(to_cpu(loss.array)), actual, overflowed


@pytest.mark.parametrize("norm_statistics", ["moving_average", "pooled", "last_batch", "by_group"])
@pytest.mark.parametrize(
    ("compute", "bound"), [("float32", 1e-3), ("tf32", 0.25), ("mixed16", 0.25), ("bfloat16", 0.6)]
)
def test_an_update_is_that_of_the_cpu(norm_statistics, compute, bound):
    if compute == "bfloat16":
        pytest.importorskip("ml_dtypes")
    loss, actual, _ = one_update(DEVICE, compute, norm_statistics)
    expected_loss, expected, _ = one_update("@numpy", compute, norm_statistics)
    assert loss == pytest.approx(expected_loss, rel=bound)
    for path, array in actual.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected[path], rtol=0, atol=bound * abs(expected[path]).max(), err_msg=path)


@pytest.mark.parametrize("compute", ["float32", "mixed16"])
def test_a_frozen_layer_is_that_of_the_cpu(compute):
    loss, actual, _ = one_update(DEVICE, compute, "pooled", frozen=("bn1",))
    expected_loss, expected, _ = one_update("@numpy", compute, "pooled", frozen=("bn1",))
    bound = 1e-3 if compute == "float32" else 0.25
    assert loss == pytest.approx(expected_loss, rel=bound)
    assert not actual["bn1/avg_mean"].any()
    for path, array in actual.items():
        np.testing.assert_allclose(array, expected[path], rtol=0, atol=bound * abs(expected[path]).max(), err_msg=path)


def test_an_overflow_is_found():
    assert one_update(DEVICE, "mixed16", "pooled", loss_scale=2**30)[2] is not None
    assert one_update(DEVICE, "mixed16", "pooled")[2] is None


@pytest.mark.parametrize("compute", ["float32", "mixed16"])
def test_a_convolution_and_its_normalisation_are_one_node_with_the_results_of_two(compute, monkeypatch):
    made, forward = [], ConvolutionNormalization.forward
    monkeypatch.setattr(
        ConvolutionNormalization, "forward", lambda self, inputs: made.append(self) or forward(self, inputs)
    )
    loss, actual, _ = one_update(DEVICE, compute, "moving_average")
    assert bool(made) == (chainer_hooks.gpu_operators is not None)
    made.clear()
    with chainer.FunctionHook():  # someone looks on
        expected_loss, expected, _ = one_update(DEVICE, compute, "moving_average")
    assert not made
    assert loss == expected_loss
    bound = 1e-5 if compute == "float32" else 5e-3  # cuDNN may add gradients of weights up in any order
    for path, values in expected.items():
        np.testing.assert_allclose(actual[path], values, rtol=0, atol=bound * abs(values).max(), err_msg=path)
