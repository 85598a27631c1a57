"""A recipe whose rate follows a power of the batch keeps it at another batch."""

import pytest


@pytest.mark.parametrize("kind", ["MomentumSGD", "Adam"])
def test_the_power_of_a_recipe_stays_its_rule(scale, kind):
    text = f"kilobatch: 1\nextends: digits/baseline\nlearning_rate: {{rule: 0.75}}\noptimizer: {{kind: {kind}}}\n"
    scaled, opened = scale("own.yaml", 128, text=text)
    assert scaled.rates == pytest.approx((0.05, 0.05 * 4**0.75))
    assert opened.recipe.learning_rate.rule == 0.75
