"""Linear scaling, against the recipes of the library that were written by hand from the papers."""

import pytest

from recipes.errors import InputRefused
from recipes.planning.rates import learning_rate_at
from recipes.reading.open import open_recipe
from recipes.scale.derive import scaled_text
from trainers.launch.vocabulary import vocabulary

GOYAL = [512, 1024, 2048, 4096]
BEYOND = [16384, 32768, 65536]


@pytest.mark.parametrize("batch", GOYAL)
def test_goyal_at_256_becomes_the_papers_recipe_at_every_batch(batch, scale, same_run):
    made, opened = scale("goyal2017/256", batch)
    assert same_run(opened) == same_run(f"goyal2017/{batch}")
    assert made.rates == pytest.approx((0.1, 0.1 * batch / 256))


def test_goyal_at_256_becomes_8k_with_rate_3_2_after_5_epochs(scale, same_run):
    opened = scale("goyal2017/256", 8192)[1]
    assert same_run(opened) == same_run("goyal2017")
    rates = [learning_rate_at(opened.recipe, epoch) for epoch in (0.0, 2.5, 5.0, 30.0)]
    assert rates == pytest.approx([0.1, 1.65, 3.2, 0.32])


def test_goyal_at_8k_goes_back_to_256_without_warmup(scale, same_run):
    assert same_run(scale("goyal2017", 256)[1]) == same_run("goyal2017/256")


def test_there_and_back_again_is_the_same_run(scale, same_run, tmp_path):
    scale("goyal2017", 256, out=tmp_path / "down.yaml")
    assert same_run(scale("down.yaml", 8192)[1]) == same_run("goyal2017")


@pytest.mark.parametrize("batch", BEYOND)
def test_beyond_8k_is_refused_with_what_the_paper_saw_and_done_when_asked(batch, scale, same_run, tmp_path):
    with pytest.raises(InputRefused, match=f"would be {batch:,}; `recipes scale --beyond` goes on.*27.55 % at 32,768"):
        scale("goyal2017", batch)
    assert list(tmp_path.iterdir()) == []
    made, opened = scale("goyal2017", batch, beyond=True)
    assert same_run(opened) == same_run(f"goyal2017/{batch}")
    assert any("33.96 % at 65,536" in text for text in made.not_promised)


def test_the_first_power_is_the_linear_rule(scale):
    first = "kilobatch: 1\nextends: goyal2017/256\nlearning_rate: {rule: 1.0}\n"
    with pytest.raises(InputRefused, match="linear scaling is published up to"):
        scale("first.yaml", 65536, text=first)
    assert scale("first.yaml", 4096)[1].recipe.learning_rate.warmup is not None


def test_digits_baseline_at_512_is_the_large_batch_recipe(scale, same_run):
    assert same_run(scale("digits/baseline", 512)[1]) == same_run("digits/large_batch")


def test_a_ramp_grows_as_a_whole(scale, change_of):
    made, opened = scale("suzuki2018", 4096)
    assert opened.recipe.batch.global_.sizes == (4096, 8192)
    assert opened.recipe.batch.global_.boundaries == (0.0, 30.0)
    assert change_of(made, "batch.norm_span")[0] == change_of(made, "batch.norm_span")[1]
    rates = [learning_rate_at(opened.recipe, epoch) for epoch in (5.0, 30.0, 60.0)]
    assert rates == pytest.approx([1.6, 0.32, 0.032])


def test_a_batch_that_grows_where_the_rate_falls_is_not_beyond(scale):
    # 8,192 and then 16,384 at a fifth of the rate: as far as 8,192 alone.
    assert scale("suzuki2018", 8192)[0].rates == pytest.approx((0.8, 3.2))
    flat = "kilobatch: 1\nextends: suzuki2018\nlearning_rate: {schedule: {boundaries: [31, 60, 80]}}\n"
    with pytest.raises(InputRefused, match="this would be 16,384"):
        scale("flat.yaml", 8192, text=flat)


def test_a_ramp_inside_the_new_warmup_has_a_target_batch(scale):
    steps = "kilobatch: 1\nextends: goyal2017/256\nbatch: {global: [{from: 0, size: 256}, {from: 3, size: 512}]}\n"
    opened = scale("steps.yaml", 512, text=steps)[1]
    assert opened.recipe.batch.global_.sizes == (512, 1024)
    assert opened.recipe.learning_rate.warmup.target_batch == 1024


def test_a_rate_that_was_given_for_one_batch_is_linear_from_there(scale, change_of):
    one = "kilobatch: 1\nextends: goyal2017/256\nlearning_rate: {reference: 0.3, rule: none, per: 32}\n"
    made, opened = scale("one.yaml", 512, text=one)
    assert change_of(made, "learning_rate.rule") == ("none", "linear")
    assert change_of(made, "learning_rate.per") == (32, 256)
    assert made.rates == pytest.approx((0.3, 0.6))
    assert opened.recipe.learning_rate.warmup.shape.epochs == 5


def test_the_root_stays_the_root_without_a_warmup(scale):
    root = "kilobatch: 1\nextends: goyal2017/256\nlearning_rate: {rule: sqrt}\n"
    made, opened = scale("root.yaml", 16384, text=root)
    assert made.rates == pytest.approx((0.1, 0.8))
    assert opened.recipe.learning_rate.warmup is None


def test_warmup_of_a_short_run_is_a_quarter_of_it_and_ends_before_the_first_step(scale):
    short = "kilobatch: 1\nextends: goyal2017/256\nepochs: 16\nlearning_rate: {schedule: {boundaries: [10]}}\n"
    long = short.replace("epochs: 16", "epochs: 32")
    early = short.replace("[10]", "[3, 10]")
    for name, text, epochs, why in (
        ("long", long, 5, ""),
        ("short", short, 4, ", a quarter of this run; 5 in a longer one"),
        ("early", early, 3, ", up to the schedule's first step down; 5 where it comes later"),
    ):
        made, opened = scale(f"{name}.yaml", 512, text=text)
        assert opened.recipe.learning_rate.warmup.shape.epochs == epochs
        (change,) = (change for change in made.changes if change.key == "learning_rate.warmup")
        assert change.reason == f"a rise in a straight line over {epochs} epochs{why}"


def test_a_schedule_of_stages_does_not_rise_and_gets_a_warmup(scale):
    stages = "kilobatch: 1\nextends: goyal2017/256\n"
    stages += "learning_rate: {schedule: {kind: SlowStart, boundaries: [30, 60], factors: [1, 0.1, 0.01]}}\n"
    assert scale("stages.yaml", 512, text=stages)[1].recipe.learning_rate.warmup.shape.epochs == 5


def test_decay_relative_to_the_full_rate_moves_with_the_batch(scale, change_of):
    composer = (
        "kilobatch: 1\nextends: goyal2017\n"
        "optimizer: {kind: MomentumSGD, weight_decay: 5e-4, decay: times_relative_rate, no_decay: [norm]}\n"
    )
    made, _ = scale("composer.yaml", 2048, text=composer)
    assert change_of(made, "optimizer.weight_decay") == (5e-4, 1.25e-4)
    coupled = composer.replace("times_relative_rate", "times_rate")
    made, _ = scale("coupled.yaml", 2048, text=coupled)
    assert change_of(made, "optimizer.weight_decay") == (5e-4, 5e-4)


def test_adascale_moves_nothing_but_the_batch(scale):
    gain = "kilobatch: 1\nextends: digits/baseline\nlearning_rate: {rule: none}\noptimizer: {kind: AdaScale}\n"
    made, opened = scale("gain.yaml", 256, text=gain)
    assert [change.key for change in made.changes if change.moves] == ["batch.global"]
    assert made.rates == (0.05, 0.05)
    assert opened.recipe.learning_rate.warmup is None


def test_a_rate_for_one_batch_without_per_becomes_linear_from_that_batch(scale, same_run):
    text = "kilobatch: 1\nextends: goyal2017/256\nlearning_rate: {rule: none, per: null}\n"
    made, opened = scale("none.yaml", 8192, text=text)
    assert made.rates == pytest.approx((0.1, 3.2))
    assert (opened.recipe.learning_rate.rule, opened.recipe.learning_rate.per) == ("linear", 256)
    assert learning_rate_at(opened.recipe, 0.0) == pytest.approx(0.1)


def test_a_norm_span_that_followed_from_a_small_batch_stays_and_is_written_down(scale, change_of):
    text = "kilobatch: 1\nextends: goyal2017/256\nbatch: {global: 16, norm_span: null}\n"
    made, opened = scale("small.yaml", 1024, text=text)
    assert change_of(made, "batch.norm_span") == (16, 16)
    assert opened.recipe.batch.norm_span.sizes == (16,)
    assert "16, unchanged, and written down" in scaled_text(made)


def test_a_warmup_stays_where_the_rate_without_would_be_too_long_a_first_step(scale):
    rate = "{reference: 3.2, per: 8192, warmup: {start: {rate: 0.1}}}"
    text = f"kilobatch: 1\nextends: goyal2017\nbatch: {{global: 4096}}\nlearning_rate: {rate}\n"
    opened = scale("big.yaml", 8192, text=text)[1]
    assert opened.recipe.learning_rate.warmup.shape.epochs == 5


def test_positions_in_updates_are_the_same_epochs_in_every_key_of_a_scaled_ramp(scale):
    text = """\
kilobatch: 1
extends: goyal2017
batch:
  global: [{from: 0, size: 2048}, {from: 18768up, size: 4096}]
  norm_span: [{from: 0, size: 32}, {from: 18768up, size: 64}]
evaluation: {norm_momentum: {per: 2048}}
extensions: [{kind: WeightNorms, every: 626up}]
updater: {local_steps: {from: 1000up, every: 4, replicas: 2}}
"""
    before = scale("ups.yaml", 4096, text=text)
    opened, was = before[1].recipe, open_recipe("ups.yaml", vocabulary=vocabulary()).recipe
    assert opened.batch.norm_span == was.batch.norm_span
    assert opened.batch.global_.boundaries == was.batch.global_.boundaries
    assert (opened.extensions, opened.updater) == (was.extensions, was.updater)


def test_the_gain_of_adascale_counts_from_the_old_batch_where_no_per_is_written(scale, change_of):
    gain = "learning_rate: {rule: none, per: null}\noptimizer: {kind: AdaScale}\n"
    made, opened = scale("gain.yaml", 8192, text=f"kilobatch: 1\nextends: goyal2017/256\n{gain}")
    assert change_of(made, "learning_rate.per") == (256, 256)
    assert opened.recipe.learning_rate.per == 256


GAIN = "kilobatch: 1\nextends: digits/baseline\nlearning_rate: {rule: none, per: 16}\noptimizer: {kind: AdaScale}\n"


@pytest.mark.parametrize(("sizes", "batch", "span"), [((128, 256), 64, 32), ((64,), 32, 16), ((64,), 16, 16)])
def test_adascale_keeps_two_norm_groups_but_at_the_batch_of_its_rate(sizes, batch, span, scale, change_of):
    steps = [f"{{from: {number}, size: {size}}}" for number, size in enumerate(sizes)]
    made, opened = scale("gain.yaml", batch, text=f"{GAIN}batch: {{global: [{', '.join(steps)}]}}\n")
    assert opened.recipe.batch.norm_span.sizes == (span,)
    (change,) = [change for change in made.changes if change.key == "batch.norm_span"]
    assert ("AdaScale compares" in change.reason) == (batch == 32)


def test_adascale_at_a_batch_of_one_sample_is_refused_with_the_cause(scale):
    with pytest.raises(InputRefused, match="--batch 1: AdaScale compares the gradients of norm groups, .* at least 2"):
        scale("gain.yaml", 1, text=f"{GAIN}batch: {{norm_span: 8}}\n")
