"""What a loss or an optimizer of one's own would fail at on every rank is refused before they start."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import chainer
import chainer.functions as F
import pytest

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from trainers.launch.preflight import require_startable
from trainers.launch.vocabulary import vocabulary
from trainers.optimizers.component_rule import ComponentOptimizer
from trainers.training.trial_update import require_update


@pytest.fixture(scope="module")
def opened():
    overrides = ["model={kind: SmallCNN, width: 4}"]
    return open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)


@dataclass(frozen=True, kw_only=True)
class Loss:
    value: Any

    def build(self):
        return self.value


@dataclass(frozen=True, kw_only=True)
class Steps:
    move: Any

    rate_attribute: ClassVar[str] = "lr"
    states: ClassVar[tuple[str, ...]] = ("v",)
    elementwise: ClassVar[bool] = True

    def update(self, w, g, state, hyperparam, *, t, xp):
        self.move(w, hyperparam.lr * g, state, t)

    def build(self):
        return ComponentOptimizer(self)


def rebind(w, step, state, t):
    w = w - step


def in_place(w, step, state, t):
    w -= step


def fail_later(w, step, state, t):
    w -= step * (1 // (2 - t))


@dataclass(frozen=True, kw_only=True)
class WithoutRate:
    def build(self):
        return chainer.optimizers.SGD(0.1)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda logits, targets: None, "returns a NoneType; let it return the mean over the samples"),
        (lambda logits, targets: 1.0, "returns a float; let it"),
        (lambda logits, targets: F.softmax_cross_entropy(logits, targets, reduce="no"), r"a Variable of shape \(2,\)"),
        (lambda logits, targets: logits[3], r"fails at logits \(2, 10\) and targets \(2,\): .*test_trial_update.py"),
        (lambda logits, targets: F.mean(chainer.Variable(logits.array)), "gives the model no gradient; compute it by"),
    ],
)
def test_a_loss_of_ones_own_that_does_not_train_is_refused(opened, loss, message):
    with pytest.raises(InputRefused, match=f"^the loss, Loss, .*{message}"):
        require_update(replace(opened.recipe, loss=Loss(value=loss)), opened.dataset)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (Steps(move=rebind), "moves no weight in 2 steps; change the array `w` in place"),
        (Steps(move=fail_later), "fails at step 2: .*ZeroDivision"),
        (WithoutRate(), "has no `rate_attribute`; add `rate_attribute: ClassVar"),
    ],
)
def test_an_optimizer_of_ones_own_that_does_not_train_is_refused(opened, optimizer, message):
    with pytest.raises(InputRefused, match=f"^the optimizer, {type(optimizer).__name__}, {message}"):
        require_update(replace(opened.recipe, optimizer=optimizer), opened.dataset)


def test_they_are_tried_before_ranks_start_and_others_are_not(opened, monkeypatch):
    good = replace(opened.recipe, loss=Loss(value=F.softmax_cross_entropy), optimizer=Steps(move=in_place))
    require_startable(replace(opened, recipe=good), ranks=1, files=True)
    with pytest.raises(InputRefused, match="the optimizer, Steps, moves no weight"):
        require_startable(replace(opened, recipe=replace(good, optimizer=Steps(move=rebind))), ranks=1, files=False)


def test_a_loss_beside_mixes_is_tried_on_mixtures_too(opened):
    mixed = open_recipe(
        "digits/baseline", vocabulary=vocabulary(), overrides=["augmentation.mix=[{kind: Mixup, alpha: 0.2}]"]
    )
    of_labels = Loss(value=lambda logits, targets: -F.mean(F.select_item(F.log_softmax(logits), targets)))
    require_update(replace(opened.recipe, loss=of_labels), opened.dataset)
    with pytest.raises(InputRefused, match=r"the loss, Loss, fails at logits \(2, 10\) and targets \(2, 10\): "):
        require_update(replace(mixed.recipe, loss=of_labels), mixed.dataset)
