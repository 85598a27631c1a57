"""Every library recipe at half, twice and eight times its batch has the rate that the rule promises, or is refused."""

import math
import re

import pytest

from recipes.errors import InputRefused
from recipes.planning.rates import full_rate_at, learning_rate_at
from recipes.reading.open import open_recipe
from recipes.reading.registry import names
from recipes.scale import scale_recipe
from recipes.scale.promise import require_promise
from trainers.launch.vocabulary import vocabulary

WORDS = vocabulary()
QUICK = ("digits/large_batch", "ffcv2022", "goyal2017", "mlperf/lars_8192", "you2019", "smith2017/cifar10_grow")
QUICK += ("fashion/ramp_4096", "fashion/adascale_4096")
ENDS = re.compile(
    r"is published up to|published points go|no rule joins|is not among the published|ask for fewer|outside \(0, 1\)|"
    r"whole number of samples|this rule ends below|is left open|AdaScale"
)


def scaled(name, factor, folder):
    before = open_recipe(name, vocabulary=WORDS).recipe
    batch = int(before.batch.global_.sizes[0] * factor)
    file = folder / f"scaled-{batch}.yaml"
    scale_recipe(name, batch=batch, vocabulary=WORDS, out=file)
    return before, open_recipe(file, vocabulary=WORDS).recipe


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names("recipes")]
)
@pytest.mark.parametrize("factor", [0.5, 2, 8])
def test_the_derived_curve_is_the_promised_one(name, factor, tmp_path):
    try:
        before, after = scaled(name, factor, tmp_path)
    except InputRefused as refused:
        said = str(refused)
    else:
        said = ""
    if said:
        assert ENDS.search(said)
        assert not list(tmp_path.iterdir())
        return
    if type(before.optimizer).__name__ == "Lars":  # by published points, with their own epochs
        return
    root = type(before.optimizer).__name__ == "Lamb" or before.learning_rate.rule == "sqrt"
    growth = math.sqrt(factor) if root else factor
    if type(before.optimizer).__name__ == "AdaScale" and before.learning_rate.rule == "none":
        growth = 1.0  # its gain scales the rate
    warmups = [recipe.learning_rate.warmup for recipe in (before, after)]
    begins = max(0.0 if warmup is None else warmup.shape.epochs for warmup in warmups)
    for number in range(40):
        epoch = begins + (after.epochs - begins) * (number + 0.5) / 40
        assert learning_rate_at(after, epoch) == pytest.approx(growth * learning_rate_at(before, epoch), rel=1e-4)
        assert learning_rate_at(after, begins * number / 40) <= growth * full_rate_at(before, begins) * (1 + 1e-4)


def test_a_promise_that_is_broken_is_refused_at_its_epoch(tmp_path):
    before, after = scaled("goyal2017/2048", 2, tmp_path)
    require_promise(before, after, ratio=2.0)
    with pytest.raises(InputRefused, match=r"at epoch 1\.125 the derived rate is 0\.4375, and 0\.65625 is promised"):
        require_promise(before, after, ratio=3.0)


RAMP = "[{from: 0, size: 32}, {from: 3, size: 64}]"
WARMUP = "{kind: GradualWarmup, epochs: 2, start: {factor: 0.1}, joins: multiply}"
AIMED = "{kind: GradualWarmup, epochs: 4, start: {factor: 0.1}, joins: over, target_batch: 64}"  # over the step at 3
ELSEWHERE = "{kind: GradualWarmup, epochs: 2, start: {factor: 0.1}, joins: before, target_batch: 64}"


def text_of(optimizer, rate, batch=RAMP):
    optimizer = f"{{kind: {optimizer}{', beta1: 0.5' if optimizer == 'Adam' else ''}}}"
    return (
        f"kilobatch: 1\nextends: digits/baseline\nbatch: {{global: {batch}, norm_span: 16}}\n"
        f"learning_rate: {{{rate}}}\noptimizer: {optimizer}\n"
    )


@pytest.mark.parametrize(
    ("optimizer", "rate", "batch"),
    [
        ("MomentumSGD", f"rule: none, warmup: {AIMED}", RAMP),
        ("MomentumSGD", f"rule: none, warmup: {ELSEWHERE}", "32"),
        ("MomentumSGD", f"rule: linear, warmup: {AIMED}", RAMP),
        ("MomentumSGD", f"rule: linear, scale_with: initial, warmup: {ELSEWHERE}", RAMP),
        ("MomentumSGD", f"rule: sqrt, warmup: {ELSEWHERE}", RAMP),
        ("Adam", "rule: none", RAMP),
        ("Adam", "rule: linear, per: 20", RAMP),
        ("Adam", f"rule: linear, warmup: {AIMED}", RAMP),
        ("Adam", f"rule: linear, scale_with: initial, warmup: {WARMUP}", RAMP),
        ("Adam", f"rule: linear, warmup: {ELSEWHERE}", "32"),
        ("Adam", f"rule: sqrt, warmup: {AIMED}", RAMP),
        ("RmspropWarmup", f"rule: none, warmup: {AIMED}", RAMP),
        ("RmspropWarmup", f"rule: linear, warmup: {ELSEWHERE}", RAMP),
        ("AdaScale", f"rule: linear, warmup: {AIMED}", RAMP),
        ("MomentumSGD", f"every: 0.009, warmup: {WARMUP}", "32"),  # whose multiples are rounded
    ],
)
def test_a_ramp_and_a_warmup_with_a_target_keep_the_form_of_their_curve(optimizer, rate, batch, scale):
    _, opened = scale("mine.yaml", 48, text=text_of(optimizer, rate, batch))
    before, after = open_recipe("mine.yaml", vocabulary=WORDS).recipe, opened.recipe
    growth = math.sqrt(1.5) if optimizer == "Adam" or before.learning_rate.rule == "sqrt" else 1.5
    for epoch in (0.0, 0.9, 1.9, 2.1, 2.9, 3.1, 3.9, 4.1, 12.0, 19.5):
        assert learning_rate_at(after, epoch) == pytest.approx(growth * learning_rate_at(before, epoch), rel=1e-4)


@pytest.mark.parametrize("rule", ["none", "linear"])
def test_a_new_warmup_over_a_step_of_the_ramp_ends_at_the_rate_that_is_due(rule, scale):
    _, opened = scale("mine.yaml", 48, text=text_of("MomentumSGD", f"rule: {rule}"))
    before, after = open_recipe("mine.yaml", vocabulary=WORDS).recipe, opened.recipe
    assert after.learning_rate.warmup.shape.epochs == 5
    for epoch in (5 - 1e-6, 5.0, 12.0):
        assert learning_rate_at(after, epoch) == pytest.approx(1.5 * learning_rate_at(before, epoch), rel=1e-4)


@pytest.mark.parametrize(("joins", "rest"), [("multiply", 20), ("before", 16)])
def test_lambs_longer_warmup_aims_at_the_batch_that_it_ends_in_and_the_schedule_lasts_to_the_end(joins, rest, scale):
    """Twice the epochs: the step at 3 lies within them now."""
    rate = f"rule: linear, warmup: {WARMUP.replace('multiply', joins)}"
    _, opened = scale("mine.yaml", 64, text=text_of("Lamb", rate))
    formula = opened.recipe.learning_rate
    assert (formula.warmup.shape.epochs, formula.warmup.target_batch, formula.schedule.epochs) == (4, 128, rest)
    assert full_rate_at(opened.recipe, 3.9) == pytest.approx(math.sqrt(2) * 0.1)
    assert full_rate_at(opened.recipe, 4.1) == pytest.approx(math.sqrt(2) * 0.1)


@pytest.mark.parametrize(
    ("optimizer", "batch", "rest"),
    [("Lamb", 64, 16), ("MomentumSGD", 16, 20)],  # twice the warmup, or none up to the reference batch
)
def test_a_product_whose_last_factor_lasts_from_the_warmup_to_the_end_does_so_still(optimizer, batch, rest, scale):
    inner = "{kind: Product, factors: [{kind: Cosine}]}"
    schedule = f"{{kind: Product, factors: [{{kind: Polynomial, epochs: 7}}, {inner}]}}"
    rate = f"rule: linear, warmup: {WARMUP.replace('multiply', 'before')}, schedule: {schedule}"
    _, opened = scale("mine.yaml", batch, text=text_of(optimizer, rate, "32"))
    other, product = opened.recipe.learning_rate.schedule.factors
    assert (other.epochs, product.factors[0].epochs) == (7, rest)


def test_a_decay_that_would_begin_after_the_end_behind_a_longer_warmup_is_refused(scale):
    rate = f"warmup: {WARMUP.replace('multiply', 'before')}, schedule: {{kind: StableDecay, decay_from: 16}}"
    with pytest.raises(InputRefused, match=r"--batch 64: behind a warmup of 4 epochs .*decay_from must be before ep"):
        scale("mine.yaml", 64, text=text_of("Lamb", rate, "32"))


@pytest.mark.parametrize(
    ("optimizer", "rate", "batch", "refusal"),
    [
        (
            "Adam",
            f"rule: linear, warmup: {AIMED.replace('64', '33')}",
            RAMP,
            "of 33 would be 49.5, .*; ask for a multi.*32",
        ),
        ("Lars", f"rule: linear, warmup: {ELSEWHERE}, schedule: {{kind: Polynomial}}", "32", "remove .*target_batch"),
        ("Muon", "rule: none", RAMP, "no rule says how Muon follows the batch"),
    ],
)
def test_what_no_rule_gives_is_refused_in_words(optimizer, rate, batch, refusal, scale):
    with pytest.raises(InputRefused, match=refusal):
        scale("mine.yaml", 48, text=text_of(optimizer, rate, batch))


@pytest.mark.parametrize(
    ("rate", "epoch"),
    [
        (f"rule: linear, warmup: {AIMED.replace('64', '32')}", "4.25"),  # follows the batch, which it did not before
        (f"rule: linear, scale_with: initial, warmup: {AIMED.replace('64', '33')}", "0.25"),  # aims too high
    ],
)
def test_a_wrong_curve_over_a_ramp_breaks_the_promise(rate, epoch, write):
    before, after = (
        open_recipe(write(text_of("MomentumSGD", each)), vocabulary=WORDS).recipe
        for each in (f"rule: none, warmup: {AIMED}", rate)
    )
    with pytest.raises(InputRefused, match=rf"at epoch {epoch} the derived rate"):
        require_promise(before, after, ratio=1.0)
