"""Where kernels have a convolution and no gradient of it, as cuDNN may lack a plan for one, Chainer's nodes give it."""

from types import SimpleNamespace

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers.kernels import chainer_hooks
from trainers.models.batch_norm import NormGroups

DIVISION = divide(global_batch_size=8, norm_span=4, workers=1, micro_batch_size=8)

pytestmark = pytest.mark.usefixtures("each_kind")


def gradients():
    random = np.random.RandomState(0)
    image, plus = (chainer.Variable(random.normal(size=(8, 3, 6, 7)).astype(np.float32)) for _ in range(2))
    weights = random.normal(size=(3, 3, 3, 3)).astype(np.float32)
    model = chainer.Sequential(L.Convolution2D(3, 3, 3, pad=1, nobias=True, initialW=weights), L.BatchNormalization(3))
    groups = NormGroups(Evaluation())
    groups.install(model)
    groups.begin_update(DIVISION)
    groups.begin_micro_batch(DIVISION.micro_batches(0)[0])
    with chainer.using_config("train", True):
        y = F.relu(model[1](model[0](image)) + plus)
    assert type(y.creator_node).__name__ == "ConvolutionNormalization"
    F.sum(y**2).backward()
    return [image.grad, plus.grad, model[0].W.grad, model[1].gamma.grad]


def test_chainers_nodes_give_it(monkeypatch):
    expected, ours = gradients(), dict(vars(chainer_hooks.operators))
    ours.pop("convolution_gradients", None)
    monkeypatch.setattr(
        chainer_hooks, "operators", SimpleNamespace(**ours | {"convolution_data": lambda *_, **__: None})
    )
    for found, other in zip(gradients(), expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5)
