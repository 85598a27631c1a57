"""Rates by hand: each rule, each way to join, each way to read; limits that follow from them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from lr_schedules import Cosine, MultiStep, Product, SlowStart
from recipes.planning.rates import (
    averaged_samples,
    batch_size_at,
    first_step_of,
    largest_linear_batch,
    learning_rate_at,
    momentum_at,
    norm_span_at,
    written_weight_decay,
)
from recipes.reading.open import open_recipe
from recipes.schema import Evaluation, NormMomentum
from trainers.launch.vocabulary import vocabulary

SPAN = "[{from: 0, size: 8}, {from: 10, size: 64}]"
RAMP = f"batch: {{global: [{{from: 0, size: 32}}, {{from: 10, size: 64}}], norm_span: {SPAN}}}"
GROWING = "batch.global=[{from: 0, size: 4096}, {from: 30, size: 8192}]"
HALF = "schedule: {kind: MultiStep, boundaries: [4, 10], factor: 0.5}"


def rates(opened, text, epochs, **lines):
    recipe = opened(line_7=f"learning_rate: {{reference: 0.1, per: 32, {text}}}", **lines).recipe
    return [learning_rate_at(recipe, epoch) for epoch in epochs]


@pytest.mark.parametrize(("rule", "rate"), [("linear", 0.4), ("sqrt", 0.2), ("none", 0.1)])
def test_rule_at_four_times_the_batch(opened, rule, rate):
    assert rates(opened, f"rule: {rule}", [0, 19], line_6="batch: {global: 128}") == pytest.approx([rate, rate])


def test_decay_halves_while_the_batch_doubles(opened):
    epochs = [0, 3.9, 4, 9.9, 10, 19]
    assert rates(opened, HALF, epochs, line_6=RAMP) == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.05, 0.05])
    initial = rates(opened, f"{HALF}, scale_with: initial", epochs, line_6=RAMP)
    assert initial == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


@pytest.mark.parametrize(
    ("joins", "expected"),
    [
        # A line from 0.1 to 0.4 over 8 epochs; 1, 1/2, 1/4 at 0, 4, 10.
        ("multiply", [0.1, 0.5 * 0.25, 0.5 * 0.4, 0.25 * 0.4, 0.1]),
        ("before", [0.1, 0.25, 0.4, 0.4, 0.2]),  # the schedule's 4 is 12 here
        ("over", [0.1, 0.25, 0.2, 0.1, 0.1]),
    ],
)
def test_three_ways_to_join_a_warmup(opened, joins, expected):
    warmup = f"warmup: {{kind: GradualWarmup, epochs: 8, start: reference, joins: {joins}}}"
    result = rates(opened, f"{HALF}, {warmup}", [0, 4, 8, 10, 12], line_6="batch: {global: 128}")
    assert result == pytest.approx(expected)


def test_warmup_is_one_straight_line_through_a_ramp_to_the_batch_it_aims_at(opened):
    warmup = "warmup: {kind: GradualWarmup, epochs: 15, start: 0, target_batch: 64}"
    result = rates(opened, warmup, [0, 5, 9.75, 10, 10.25, 15, 19], line_6=RAMP)
    assert result == pytest.approx([0, 0.2 / 3, 0.13, 0.4 / 3, 0.2 * 10.25 / 15, 0.2, 0.2])


def test_rate_read_once_an_epoch_is_a_staircase(opened):
    warmup = "warmup: {kind: GradualWarmup, epochs: 4, start: 0}"
    result = rates(opened, f"every: 1ep, {warmup}", [0, 0.99, 1, 2.5, 3.99, 4], line_6="batch: {global: 32}")
    assert result == pytest.approx([0, 0, 0.025, 0.05, 0.075, 0.1])


def test_rate_read_once_an_epoch_still_follows_the_batch_of_the_update(opened):
    ramp = "batch: {global: [{from: 0, size: 32}, {from: 10.5, size: 64}]}"
    assert rates(opened, "every: 1ep", [10, 10.4, 10.5, 11], line_6=ramp) == pytest.approx([0.1, 0.1, 0.2, 0.2])


def test_batch_and_norm_span_move_at_their_boundary(opened):
    recipe = opened(line_6=RAMP).recipe
    assert [batch_size_at(recipe, epoch) for epoch in (0, 9.99, 10)] == [32, 32, 64]
    assert [norm_span_at(recipe, epoch) for epoch in (0, 9.99, 10)] == [8, 8, 64]


@pytest.mark.parametrize(
    ("optimizer", "momentum"),
    [
        ("{kind: MomentumSGD, momentum: 0.8}", 0.8),
        ("{kind: Adam, beta1: 0.7}", 0.7),
        ("{kind: SGD}", None),
        ("{kind: Rmsprop, mu1: 0.6}\nlacks: [Rmsprop]", 0.6),
        ("{kind: Other, rate: 0.6}\nlacks: [Other]", None),
    ],
)
def test_momentum_is_the_coefficient_of_the_recipe(opened, optimizer, momentum):
    assert momentum_at(opened(line_8=f"optimizer: {optimizer}").recipe, 3.0) == momentum


@pytest.mark.parametrize(
    ("overrides", "reach"),
    [
        ([], 8192),
        (["batch.global=65536"], 65536),
        ([GROWING], 4096),  # at a tenth of the rate
        ([GROWING.replace("30", "10")], 8192),
        ([GROWING.replace("30", "1"), "learning_rate.warmup.target_batch=8192"], 8192),  # its full rate comes later
        ([GROWING.replace("30", "10"), "learning_rate.scale_with=initial"], 4096),
        ([GROWING, "learning_rate.rule=none"], 4096),
        ([GROWING, "learning_rate.schedule.factor=0.75"], 6144),
    ],
)
def test_largest_linear_batch_of_goyal2017(overrides, reach):
    recipe = open_recipe("goyal2017", vocabulary=vocabulary(), overrides=overrides).recipe
    assert largest_linear_batch(recipe) == pytest.approx(reach)


def window(statistics, keep, per, *, batch=256, span=32):
    evaluation = Evaluation(norm_statistics=statistics, norm_momentum=NormMomentum(keep=keep, per=per))
    return averaged_samples(evaluation, global_batch_size=batch, norm_span=span)


def test_averaged_samples_by_hand():
    assert window("moving_average", 0.9, "update") == pytest.approx(2560)
    assert window("pooled", 0.75, "update") == pytest.approx(1024)
    assert window("by_group", 0.9, "update") == pytest.approx(320)
    assert window("last_batch", 0.9, "update") is None
    # Two updates of 128 keep 0.9 each: 0.81 for one of 256.
    assert window("moving_average", 0.9, 128) == pytest.approx(256 / 0.19)


def test_averaged_samples_per_samples_hardly_depends_on_the_batch():
    assert window("pooled", 0.9, 32, batch=32) == pytest.approx(320)
    assert window("pooled", 0.9, 32, batch=64) == pytest.approx(337, abs=1)


@pytest.mark.parametrize(("keep", "per", "samples"), [(0.0, 64, 96), (0.9, 2**63 - 1, 2**63 / 0.1053605)])
def test_averaged_samples_of_the_shortest_and_the_longest_average(keep, per, samples):
    evaluation = Evaluation(norm_momentum=NormMomentum(keep=keep, per=per))
    assert averaged_samples(evaluation, global_batch_size=96, norm_span=32) == pytest.approx(samples)


def test_averaged_samples_are_the_mean_age_of_a_sample_with_the_update_that_it_came_in():
    ages = sum(0.9**updates * 0.1 * (updates + 1) * 256 for updates in range(2000))
    assert window("pooled", 0.9, "update") == pytest.approx(ages)


@pytest.mark.parametrize(
    ("written", "decay"), [(None, 0.0), ("cosine", 0.0), (1, 1.0), (1e-4, 1e-4), (np.float32(0.5), 0.5)]
)
def test_a_weight_decay_that_is_no_number_counts_as_0(written, decay):
    assert written_weight_decay(SimpleNamespace(weight_decay=written)) == decay


def test_the_first_step_of_a_schedule_is_one_down():
    doubled = MultiStep(boundaries=(1.0, 2.0), factor=2.0)
    stages = SlowStart(boundaries=(3.0, 30.0), factors=(0.1, 1.0, 0.2))
    assert [first_step_of(it) for it in (Cosine(epochs=9.0), doubled, stages)] == [math.inf, math.inf, 30]
    inner = Product(factors=(stages, MultiStep(boundaries=(20.0,))))
    assert first_step_of(Product(factors=(doubled, inner))) == 20
