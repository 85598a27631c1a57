"""Square root scaling, by hand."""

from pathlib import Path

import pytest

from recipes.errors import InputRefused

ADAM = """\
kilobatch: 1
extends: goyal2017/256
learning_rate: {reference: 1e-3, rule: sqrt, schedule: {kind: Cosine}}
optimizer: {kind: Adam, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-4, no_decay: [norm]}
"""


@pytest.mark.parametrize(
    ("batch", "rate", "beta1", "beta2", "eps"),
    [(1024, 2e-3, 0.6, 0.996, 5e-9), (64, 5e-4, 0.975, 0.99975, 2e-8)],  # 1 - k * 0.1, 1 - k * 0.001
)
def test_adam_at_4_times_and_a_quarter_of_the_batch(batch, rate, beta1, beta2, eps, scale, change_of):
    made, opened = scale("adam.yaml", batch, text=ADAM)
    assert made.rates == pytest.approx((1e-3, rate))
    expected = {"beta1": (0.9, beta1), "beta2": (0.999, beta2), "eps": (1e-8, eps), "weight_decay": (1e-4, 1e-4)}
    assert {key: change_of(made, f"optimizer.{key}") for key in expected} == expected
    assert (opened.recipe.optimizer.beta1, opened.recipe.optimizer.eps) == (beta1, eps)
    assert change_of(made, "learning_rate.reference") == (1e-3, 1e-3)
    assert change_of(made, "learning_rate.warmup") == (None, None)


def test_adam_there_and_back_again(scale, same_run, tmp_path):
    (tmp_path / "adam.yaml").write_text(ADAM)
    before = scale("adam.yaml", 1024)[1]
    after = scale(str(before.path), 256, out=tmp_path / "back.yaml")[1]
    assert same_run(after) == same_run("adam.yaml")


@pytest.mark.parametrize(("batch", "value"), [(2560, "0"), (4096, "-0.6")])
def test_refused_where_a_beta_leaves_its_range(batch, value, scale, tmp_path):
    refusal = rf"optimizer.beta1: 0.9 would become .* = {value}.*outside \(0, 1\).*ends below a batch of 2,560"
    with pytest.raises(InputRefused, match=refusal):
        scale("adam.yaml", batch, text=ADAM)
    assert [path.name for path in tmp_path.iterdir()] == ["adam.yaml"]


def test_a_linear_rule_becomes_the_root_from_the_batch_at_hand(scale, change_of):
    linear = ADAM.replace("rule: sqrt", "rule: linear").replace("goyal2017/256", "goyal2017/512")
    linear = linear.replace("schedule", "warmup: null, schedule")
    made, _ = scale("linear.yaml", 2048, text=linear)
    assert change_of(made, "learning_rate.rule") == ("linear", "sqrt")
    assert change_of(made, "learning_rate.per") == (256, 512)
    assert change_of(made, "learning_rate.reference") == (1e-3, 2e-3)
    assert made.rates == pytest.approx((2e-3, 4e-3))


def test_decay_taken_from_the_weights_keeps_up(scale, change_of):
    made, _ = scale("w.yaml", 1024, text=ADAM.replace("weight_decay", "decay: times_rate, weight_decay"))
    # Rate x 2 and updates / 4: decay x 2 for the same shrinking an epoch.
    assert change_of(made, "optimizer.weight_decay") == (1e-4, 2e-4)


def test_lamb_of_you2019_at_a_quarter_of_the_batch(scale, change_of):
    made, opened = scale("you2019", 8192)
    assert made.rates == pytest.approx((0.04, 0.02))
    assert change_of(made, "learning_rate.rule") == ("none", "sqrt")
    for key, value in (("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-6)):
        assert change_of(made, f"optimizer.{key}") == (value, value)
    assert opened.recipe.learning_rate.warmup.shape.epochs == pytest.approx(5, rel=1e-3)  # 20 at 32,768
    assert opened.recipe.learning_rate.warmup.target_batch == 8192
    assert change_of(made, "optimizer.weight_decay") == (1.5, 1.5)
    assert opened.recipe.epochs == pytest.approx(3519 * 32768 / 1281167)  # 3,519 updates of the old batch
    assert any("LAMB" in text for text in made.not_promised)


def test_lamb_ends_where_the_warmup_would_fill_the_run(scale):
    with pytest.raises(InputRefused, match=r"20.001 epochs would become 160.008 of 90.0043: this rule ends"):
        scale("you2019", 8 * 32768)


def test_the_warmup_that_is_printed_is_that_of_the_file(scale, change_of):
    made, _ = scale("you2019", 16384)
    assert not any("target_batch" in str(change.before) for change in made.changes)


def test_rmsprop_warmup_is_linear_for_sgd_and_the_root_for_rmsprop(scale, change_of):
    with pytest.raises(InputRefused, match="up to a batch of 32,768"):
        scale("akiba2017", 65536)
    made, opened = scale("akiba2017", 8192)
    assert made.rates == pytest.approx((12.8, 3.2))
    assert change_of(made, "optimizer.rmsprop_learning_rate") == (3e-4, 1.5e-4)
    assert change_of(made, "optimizer.mu2") == (0.99, 0.9975)
    assert change_of(made, "optimizer.eps") == (1e-8, 2e-8)
    assert change_of(made, "optimizer.mu1") == (0.9, 0.9)
    assert change_of(made, "optimizer.beta_center") == (10, 10)
    assert change_of(made, "optimizer.beta_period") == (5, 5)
    assert opened.recipe.learning_rate.warmup is None


def test_a_warmup_that_begins_at_the_reference_rate_begins_at_the_same_part_of_the_new_rate(scale):
    """0.0003 of 0.0096 at batch 8,192; the root counts from there, and 0.0096 is the reference now."""
    rate = "{reference: 0.0003, warmup: {start: reference}}"
    text = f"kilobatch: 1\nextends: goyal2017\nlearning_rate: {rate}\noptimizer: {{kind: Adam}}\n"
    for batch in (4096, 16384):
        opened = scale("adam.yaml", batch, text=text, out=Path(f"at-{batch}.yaml"))[1]
        assert opened.recipe.learning_rate.warmup.shape.start == pytest.approx(1 / 32)
