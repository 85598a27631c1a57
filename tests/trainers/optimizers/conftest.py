"""Gradients recorded from a run, and their replay through an optimizer of ours."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from trainers.datasets import Digits
from trainers.optimizers.hyperparameters import Hyperparameters, set_hyperparameters
from trainers.optimizers.weight_decay import decay_parameters
from trainers.runs.checkpoint import load_into, read_checkpoint, write_checkpoint

NUM_UPDATES = 50
FULL_RATE = 0.1
# Warmup, a plateau and a fall by 10, so that every place for the rate gives other weights.
RATES = [FULL_RATE * min(0.1 + 0.09 * update, 1.0) for update in range(30)] + [FULL_RATE / 10] * 20


class Network(chainer.Chain):
    """A convolution, normalisation and a linear layer with a bias: one of everything that rules tell apart.

    The convolution has no bias: before normalisation its gradient would be rounding noise, which Adam blows up.
    """

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(1, 4, 3, nobias=True)
            self.bn = L.BatchNormalization(4)
            self.fc = L.Linear(36, 10)

    def forward(self, images_NCHW):
        return self.fc(F.max_pooling_2d(F.relu(self.bn(self.conv(images_NCHW))), 2))


class Recording:
    """Weights before a run (bias and shift are 0) and the gradients of its updates, float32, by path."""

    num_updates, rates, full_rate, epochs = NUM_UPDATES, RATES, FULL_RATE, [update / 2 for update in range(NUM_UPDATES)]

    def __init__(self):
        state = np.random.get_state()
        np.random.seed(0)
        model = Network()
        np.random.set_state(state)
        self.weights = {path: parameter.array.copy() for path, parameter in model.namedparams()}
        samples = Digits().open(None, "train")
        optimizer = chainer.optimizers.SGD(0.1).setup(model)
        self.gradients = []
        for update in range(NUM_UPDATES):
            images, labels = zip(*(samples[update * 25 + i] for i in range(25)), strict=True)
            images_NCHW = np.stack(images).astype(np.float32).transpose(0, 3, 1, 2) / 255
            model.cleargrads()
            F.softmax_cross_entropy(model(images_NCHW), np.array(labels, np.int32)).backward()
            self.gradients.append({path: parameter.grad.copy() for path, parameter in model.namedparams()})
            optimizer.update()

    def setup(self, component, dtype=np.float32):
        """The model with the weights before the run, and the component's optimizer set up with it."""
        model = Network()
        for path, parameter in model.namedparams():
            parameter.array = self.weights[path].astype(dtype)
        optimizer = component.build().setup(model)
        decay_parameters(optimizer, component)
        return model, optimizer

    def replay(self, component, model, optimizer, updates=range(NUM_UPDATES), at=lambda component, update: component):
        """Give the optimizer, `at` each update, these updates' gradients; returns the weights by path."""
        for update in updates:
            moment = Hyperparameters(
                update=update,
                epoch=self.epochs[update],
                global_batch_size=25,
                learning_rate=self.rates[update],
                full_rate=self.full_rate,
            )
            set_hyperparameters(at(component, update), optimizer, moment)
            for path, parameter in model.namedparams():
                parameter.grad = self.gradients[update][path].astype(parameter.dtype)
            optimizer.update()
        return {path: parameter.array for path, parameter in model.namedparams()}

    def interrupted(self, component, folder, after=20):
        """The weights where the run stopped `after` so many updates and went on from its checkpoint elsewhere."""
        model, optimizer = self.setup(component)
        self.replay(component, model, optimizer, range(after))
        kept = write_checkpoint(folder, model=model, optimizer=optimizer, state={"update": after})
        model, optimizer = self.setup(component)
        load_into(model, optimizer, read_checkpoint(kept))
        return self.replay(component, model, optimizer, range(after, self.num_updates))


@pytest.fixture(scope="session")
def recorded():
    return Recording()
