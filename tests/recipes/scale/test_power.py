"""A recipe whose rate follows a power of the batch keeps it at another batch."""

import pytest


@pytest.mark.parametrize("kind", ["MomentumSGD", "Adam"])
def test_the_power_of_a_recipe_stays_its_rule(scale, kind):
    text = f"kilobatch: 1\nextends: digits/baseline\nlearning_rate: {{rule: 0.75}}\noptimizer: {{kind: {kind}}}\n"
    scaled, opened = scale("own.yaml", 128, text=text)
    assert scaled.rates == pytest.approx((0.05, 0.05 * 4**0.75))
    assert opened.recipe.learning_rate.rule == 0.75


@pytest.mark.parametrize(
    ("kind", "rule", "decay"),
    [("MomentumSGD", "sqrt", 0.02), ("MomentumSGD", 0.75, 0.014142), ("Adam", 0.75, 0.014142), ("Adam", 1.0, 0.01)],
)
def test_decay_taken_from_the_weights_grows_where_the_rate_grows_less_than_the_batch(scale, kind, rule, decay):
    """At 4 times the batch the rate grows by 4 ** rule, and updates are 4 times fewer."""
    text = f"kilobatch: 1\nextends: goyal2017/256\nlearning_rate: {{rule: {rule}}}\n"
    text += f"optimizer: {{kind: {kind}, weight_decay: 0.01, decay: times_rate}}\n"
    assert scale("own.yaml", 1024, text=text)[1].recipe.optimizer.weight_decay == pytest.approx(decay, rel=1e-4)


@pytest.mark.parametrize("kind", ["MomentumSGD", "RmspropWarmup, mu2: 0.99"])
def test_decay_in_the_gradient_stays_and_says_what_an_epoch_takes(scale, kind):
    text = "kilobatch: 1\nextends: goyal2017/256\nlearning_rate: {rule: sqrt}\n"
    text += f"optimizer: {{kind: {kind}, weight_decay: 1e-4}}\n"
    made, _ = scale("own.yaml", 1024, text=text)
    (decay,) = [change for change in made.changes if change.key == "optimizer.weight_decay"]
    assert (decay.before, decay.after) == (1e-4, 1e-4)
    assert "shrinks the weights 0.5 times as much" in decay.reason
