"""What a loss or an optimizer of one's own would fail at on every rank is refused before they start."""

import itertools
import re
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import chainer
import chainer.functions as F
import numpy as np
import pytest

from lr_schedules import BatchRamp
from recipes.errors import InputRefused
from recipes.planning.memory import Model
from recipes.reading.checks import check_updater
from recipes.reading.open import open_recipe
from recipes.schema.recipe import LocalSteps
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
class Remembering:
    seen: list = field(default_factory=list)

    def __call__(self, logits, targets):
        self.seen.append(len(targets))
        return F.softmax_cross_entropy(logits, targets)


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


def unnamed(w, step, state, t):
    w -= state.setdefault("m", step * 0) + step


def late_state(w, step, state, t):
    w -= step
    if t % 5 == 0:
        w -= state.setdefault("slow", step * 0)


def widened(w, step, state, t):
    state["v"] = state["v"] * np.ones(1) + step
    w -= step


class OwnRule(chainer.UpdateRule):
    def init_state(self, param):
        pass

    def update_core(self, param):
        param.array -= self.hyperparam.lr * param.grad
        self.state["n"] = self.t


class OwnOptimizer(chainer.GradientMethod):
    def create_update_rule(self):
        return OwnRule(self.hyperparam)


@dataclass(frozen=True, kw_only=True)
class OfChainer:
    rate_attribute: ClassVar[str] = "lr"

    def build(self):
        return OwnOptimizer()


@dataclass(frozen=True, kw_only=True)
class Shortest:
    rate_attribute: ClassVar[str] = "lr"

    def update(self, w, g, state, hyperparam, *, t, xp):
        w -= hyperparam.lr * g

    def build(self):
        return ComponentOptimizer(self)


@dataclass(frozen=True, kw_only=True)
class WithoutRate:
    def build(self):
        return chainer.optimizers.SGD(0.1)


@dataclass(frozen=True, kw_only=True)
class Decaying(Steps):
    move: Any = None
    weight_decay: float = 0.5
    decay: Any = None

    def update(self, w, g, state, hyperparam, *, t, xp):
        w -= hyperparam.lr * (g + self.weight_decay * w)


@dataclass(frozen=True, kw_only=True)
class Decayed(Decaying):
    decay: Any = 0.9
    no_decay: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DecayingItself(Decaying):
    decays_itself: ClassVar[bool] = True


def of_three(logits, targets, weights):
    return F.softmax_cross_entropy(logits, targets)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda logits, targets: None, "returns a NoneType; let it return the mean over the samples"),
        (lambda logits, targets: 1.0, "returns a float; let it"),
        (lambda logits, targets: F.softmax_cross_entropy(logits, targets, reduce="no"), r"a Variable of shape \(32,\)"),
        (lambda logits, targets: logits[3], r"returns a Variable of shape \(10,\)"),
        (lambda z, t: F.sum(F.softmax_cross_entropy(z, t, reduce="no")), "returns the sum over the samples, .* of 32"),
        (of_three, "called with two arguments, logits and targets: missing a required argument: 'weights'"),
        (lambda logits, targets: F.mean(chainer.Variable(logits.array)), "gives the model no gradient; compute it by"),
    ],
)
def test_a_loss_of_ones_own_that_does_not_train_is_refused(opened, loss, message):
    with pytest.raises(InputRefused, match=f"^the loss, Loss, .*{message}"):
        require_update(replace(opened.recipe, loss=Loss(value=loss)), opened.dataset)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (Steps(move=rebind), "moves no weight in 16 steps; change the array `w` in place"),
        (Steps(move=fail_later), "fails at step 2: .*ZeroDivision"),
        (WithoutRate(), "has no `rate_attribute`; add `rate_attribute: ClassVar"),
        (Steps(move=unnamed), "keeps m in `state`, and no checkpoint could be resumed; name it in `states`"),
        (Steps(move=late_state), "keeps slow in `state`, and no checkpoint could be resumed; name it in `states`"),
        (Steps(move=widened), r"makes v of /.* float64 \(.*\), which is float32 \(.*; change it in place"),
        (OfChainer(), "keeps n in `state`, .*; make it in `init_state` of its update rule"),
        (Decaying(), "has a `weight_decay`, and kilobatch adds it to the gradient: if its own `update` applies it too"),
        (Decaying(decay=0.99), "has a `weight_decay`"),
        (Decaying(decay="times_rates"), "has `decay` 'times_rates'; its forms are coupled, times_rate, times_relative"),
    ],
)
def test_an_optimizer_of_ones_own_that_does_not_train_is_refused(opened, optimizer, message):
    with pytest.raises(InputRefused, match=f"^the optimizer, {type(optimizer).__name__}, {message}"):
        require_update(replace(opened.recipe, optimizer=optimizer), opened.dataset)


def hardest(logits, targets):
    losses = F.softmax_cross_entropy(logits, targets, reduce="no")
    return F.mean(losses[np.argpartition(-losses.array, 8)[:8]])


def of_pairs(logits, targets):
    one, other = np.nonzero(np.triu(targets[:, None] == targets, 1))
    return F.mean(F.stack([F.sum((logits[i] - logits[j]) ** 2) for i, j in zip(one, other, strict=True)]))


def masked(logits, targets):
    return F.mean(F.softmax_cross_entropy(logits, targets, reduce="no") * np.float32(targets > 99))


def of_the_pairs_of_each(logits, targets):
    one, other = np.nonzero(np.triu(targets[:, None] == targets, 1))
    return F.sum(F.stack([F.sum((logits[i] - logits[j]) ** 2) for i, j in zip(one, other, strict=True)])) / len(targets)


def sure_ones(logits, targets):  # all within one half of the trial
    sure = np.exp(F.log_softmax(logits).array).max(axis=1) > 0.5
    return F.sum(F.softmax_cross_entropy(logits, targets, reduce="no") * sure.astype("f")) / max(1, sure.sum())


def sum_and_mean(logits, targets):
    return F.sum(F.softmax_cross_entropy(logits, targets, reduce="no")) + 0.1 * F.mean(logits**2)


def signed(logits, targets):
    return F.mean(logits)


def noisy(logits, targets):
    noise = np.random.default_rng().standard_normal(logits.shape).astype("f")
    return F.softmax_cross_entropy(logits + 0.1 * noise, targets)


def dropped(logits, targets):
    return F.softmax_cross_entropy(F.dropout(logits), targets)


def fourth(w, step, state, t):
    state["v"] += step
    w -= state["v"] * (t % 4 == 0)


def jittered(w, step, state, t):
    w -= step * np.random.random()


CALLS = itertools.count(1)


def counted(w, step, state, t):
    w -= step / next(CALLS)


def large(w, step, state, t):
    w -= step * (abs(step) > 1e-6)


@pytest.mark.parametrize("loss", [hardest, of_pairs, masked, sure_ones, signed, dropped])
def test_a_loss_that_looks_at_the_samples_of_a_norm_group_is_tried_on_so_many(opened, loss):
    recipe = replace(opened.recipe, loss=Loss(value=loss), optimizer=Steps(move=large))
    assert require_update(recipe, opened.dataset) == []


def by_the_weights_of_the_batch(logits, targets):  # as PyTorch's weighted cross entropy
    weights = np.linspace(0.5, 3, 10, dtype="f")[targets]
    return F.sum(F.softmax_cross_entropy(logits, targets, reduce="no") * weights) / weights.sum()


def of_the_mean_logits(logits, targets):
    return F.softmax_cross_entropy(logits, targets) + F.sum(F.mean(logits, axis=0) ** 2)


def smoothed(logits, targets):
    log_p = F.log_softmax(logits)
    return -0.9 * F.mean(F.select_item(log_p, targets)) - 0.1 * F.mean(log_p)


WEIGHT = chainer.Parameter(np.ones((3, 3), "f"))


def regularised(logits, targets):
    return F.cast(F.softmax_cross_entropy(logits, targets), "f") + F.sum(WEIGHT**2)


@pytest.mark.parametrize("dtype", ["f", chainer.mixed16])
@pytest.mark.parametrize(
    ("loss", "is_coupled"),
    [
        *((loss, True) for loss in (hardest, sure_ones, by_the_weights_of_the_batch, of_the_mean_logits)),
        *((loss, False) for loss in (masked, signed, dropped, smoothed, regularised)),
    ],
)
def test_a_loss_that_couples_samples_is_named_where_an_update_has_several_norm_groups(opened, loss, is_coupled, dtype):
    recipe = replace(opened.recipe, loss=Loss(value=loss))
    groups = replace(recipe, batch=replace(recipe.batch, global_=BatchRamp(boundaries=(0.0,), sizes=(96,))))
    with chainer.using_config("dtype", dtype):
        assert require_update(recipe, opened.dataset) == []
        found = require_update(groups, opened.dataset)
    assert [text[:31] for text in found] == ["the loss, Loss, couples samples"] * is_coupled
    assert all("in each norm group of 32 samples, not over the batch" in text for text in found)


@pytest.mark.parametrize("loss", [sum_and_mean, of_the_pairs_of_each])
def test_a_loss_that_grows_with_the_number_of_samples_is_named(opened, loss):
    (warning,) = require_update(replace(opened.recipe, loss=Loss(value=loss)), opened.dataset)
    assert warning.startswith("the loss, Loss, grows with the number of samples, ")


def test_a_loss_that_draws_by_itself_is_named(opened):
    (warning,) = require_update(replace(opened.recipe, loss=Loss(value=noisy)), opened.dataset)
    assert re.match(r"the loss, Loss, is [0-9.]+ and [0-9.]+ for the same logits and targets, ", warning)


def test_a_loss_that_changes_its_own_fields_is_refused(opened):
    loss = Remembering()
    with pytest.raises(InputRefused, match="the loss, Remembering, changes its own field seen, a key of the recipe"):
        require_update(replace(opened.recipe, loss=loss), opened.dataset)


def test_what_may_train_all_the_same_is_named(opened):
    def fails(logits, targets):
        raise IndexError(len(targets))

    (warning,) = require_update(replace(opened.recipe, loss=Loss(value=fails)), opened.dataset)
    assert re.fullmatch(r"the loss, Loss, fails at .*\(32, 10\).*IndexError: 32 .*test_trial_update.*", warning)

    def late(w, step, state, t):
        state["v"] += step

    (warning,) = require_update(replace(opened.recipe, optimizer=Steps(move=late)), opened.dataset)
    assert warning.startswith("the optimizer, Steps, moves no weight in 16 steps, only its state; is that meant?")

    def fail_at_seven(w, step, state, t):
        w -= step * (1 // (t != 7))

    (warning,) = require_update(replace(opened.recipe, optimizer=Steps(move=fail_at_seven)), opened.dataset)
    assert warning.startswith("the optimizer, Steps, fails at step 7: ZeroDivisionError")


@pytest.mark.parametrize("move", [fourth, in_place])
def test_an_optimizer_that_moves_weights_at_some_steps_is_taken(opened, move):
    assert require_update(replace(opened.recipe, optimizer=Steps(move=move)), opened.dataset) == []


@pytest.mark.parametrize(
    "optimizer",
    [
        DecayingItself(),
        DecayingItself(decay="slow"),
        Decaying(weight_decay=0.0),
        Decaying(decay="times_rate"),
        Decayed(),
    ],
)
def test_an_optimizer_that_says_who_applies_its_weight_decay_is_taken(opened, optimizer):
    assert require_update(replace(opened.recipe, optimizer=optimizer), opened.dataset) == []


def test_an_optimizer_needs_no_more_than_its_rate_and_its_formula(opened):
    assert require_update(replace(opened.recipe, optimizer=Shortest()), opened.dataset) == []
    updater = replace(opened.recipe.updater, local_steps=LocalSteps(replicas=2, every=2))
    check_updater(opened.reading, replace(opened.recipe, optimizer=Shortest(), updater=updater))
    assert "Shortest computes a layer's step from all of its gradient" in str(opened.reading.problems.pop(0))
    assert Model.of(replace(opened.recipe, optimizer=Steps(move=in_place)), 5).num_state_values == 1


@pytest.mark.parametrize("move", [jittered, counted])
def test_an_optimizer_that_draws_or_keeps_something_outside_of_its_state_is_named(opened, move):
    (warning,) = require_update(replace(opened.recipe, optimizer=Steps(move=move)), opened.dataset)
    assert warning.startswith("the optimizer, Steps, takes other steps with the same weights and gradients, so no run")


def test_an_optimizer_takes_no_steps_on_the_cpu_for_a_run_on_a_gpu(opened):
    assert require_update(replace(opened.recipe, optimizer=Steps(move=fail_later)), opened.dataset, on_gpu=True) == []


def test_they_are_tried_before_the_ranks_of_a_new_run_start(opened, capsys):
    good = replace(opened.recipe, loss=Loss(value=F.softmax_cross_entropy), optimizer=Steps(move=in_place))
    require_startable(replace(opened, recipe=good), ranks=1, is_new=True)
    wrong = replace(opened, recipe=replace(good, optimizer=Steps(move=rebind)))
    with pytest.raises(InputRefused, match="the optimizer, Steps, moves no weight"):
        require_startable(wrong, ranks=1, is_new=True)
    require_startable(wrong, ranks=1, is_new=False)
    assert capsys.readouterr().err == ""
    doubtful = replace(opened, recipe=replace(good, loss=Loss(value=lambda logits, targets: 1 / 0)))
    require_startable(doubtful, ranks=1, is_new=True)
    assert capsys.readouterr().err.startswith("kilobatch: warning: the loss, Loss, fails at a trial with logits")


def test_what_trained_the_runs_of_a_pack_is_no_more_than_warned_of(opened, tmp_path, capsys):
    recipe = replace(opened.recipe, optimizer=Decaying())
    packed = replace(opened, recipe=recipe, path=tmp_path / "recipe.yaml")
    (tmp_path / "pack.json").touch()
    (tmp_path / "recipe.yaml").write_text("kilobatch: 1\n")
    with pytest.raises(InputRefused, match="has a `weight_decay`"):  # no run was trained
        require_startable(packed, ranks=1, is_new=True)
    (tmp_path / "runs").mkdir()
    require_startable(packed, ranks=1, is_new=True)
    assert capsys.readouterr().err.startswith("kilobatch: warning: the optimizer, Decaying, has a `weight_decay`")


def test_a_loss_beside_mixes_is_tried_on_mixtures_too(opened):
    mixed = open_recipe(
        "digits/baseline", vocabulary=vocabulary(), overrides=["augmentation.mix=[{kind: Mixup, alpha: 0.2}]"]
    )
    of_labels = Loss(value=lambda logits, targets: -F.mean(F.select_item(F.log_softmax(logits), targets)))
    assert require_update(replace(opened.recipe, loss=of_labels), opened.dataset) == []
    (warning,) = require_update(replace(mixed.recipe, loss=of_labels), mixed.dataset)
    assert "fails at a trial with logits (32, 10) and targets (32, 10): " in warning
