"""Float16 is Chainer's own on the CPU, whichever kernels serve: a mixed16 step has the same bits under all of them."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers import kernels
from trainers.gradients.mixed_precision import forward_in
from trainers.models import SmallResNet
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import draw_initial_weights


@pytest.fixture(autouse=True)
def _same_kernels_afterwards():
    before = kernels.in_use()
    yield
    kernels.use(before)


def step(compute):
    """The loss of a step in two norm groups, and its gradients by path."""
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    groups = NormGroups(Evaluation())
    groups.install(model)
    division = divide(global_batch_size=16, norm_span=8, workers=1, micro_batch_size=16)
    groups.begin_update(division)
    groups.begin_micro_batch(division.micro_batches(0)[0])
    random = np.random.RandomState(0)
    images, labels = random.normal(size=(16, 3, 8, 8)).astype(np.float32), random.randint(0, 5, 16).astype(np.int32)
    with chainer.using_config("train", True):
        loss = F.softmax_cross_entropy(forward_in(model, compute)(images), labels)
        model.cleargrads()
        (loss * 1024).backward()
    return {"loss": loss.array, **{path: parameter.grad for path, parameter in model.namedparams()}}


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_step_in_mixed16_is_chainers_to_the_bit(kind):
    if kind == "torch":
        pytest.importorskip("torch")
    found = {}
    for operators_for in ("chainer", kind):
        kernels.use(operators_for)
        found[operators_for] = {compute: step(compute) for compute in ("mixed16", "float32")}
    for path, expected in found["chainer"]["mixed16"].items():
        np.testing.assert_array_equal(found[kind]["mixed16"][path], expected, err_msg=path)
    single = [run["float32"] for run in found.values()]
    assert any(not np.array_equal(single[0][path], single[1][path]) for path in single[0])  # where they do serve
