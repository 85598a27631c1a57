"""What values come to, by hand, and the equality of schedules."""

import pytest

import trainers.compat  # noqa: F401
from recipes.diff.recipes import differing, effects, same_schedule
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary


def library(name, *overrides):
    return open_recipe(name, vocabulary=vocabulary(), overrides=overrides)


def test_quantities_of_goyal_by_hand():
    assert effects(library("goyal2017")) == {
        "can be trained": "yes",
        "global batch": "8,192",
        "norm span": "32",
        "epochs": "90",
        "updates": "14,076",  # 90 * 1,281,167 / 8,192, rounded up
        "warmup, samples": "6,406,144",  # 782 * 8,192, the first to reach 5 epochs
        "warmup, updates": "782",
        "full rate": "3.2",
        "rate, first update": "0.1",
        "rate, largest": "3.2",
        "rate, last update": "0.0032",
        "rate x decay / batch": "3.90625e-08",  # 3.2 * 1e-4 / 8,192
    }


def test_a_ramp_has_the_full_rate_of_every_step():
    result = effects(library("suzuki2018"))
    assert (result["global batch"], result["full rate"]) == ("2,048, from epoch 30 4,096", "0.8, from epoch 30 1.6")
    ramp = "batch.global=[{from: 0, size: 2048}, {from: 45, size: 4096}]"
    assert effects(library("goyal2017", ramp, "learning_rate.scale_with=initial"))["full rate"] == "0.8"


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ("optimizer={kind: Adam, weight_decay: 0.1, decay: times_rate}", "0.00015625"),  # 0.05 * 0.1 / 32
        ("optimizer={kind: Adam, weight_decay: 0.1}", None),
        ("optimizer={kind: MomentumSGD, momentum: 0.9, weight_decay: 0.1, decay: times_relative_rate}", None),
        ("optimizer.weight_decay=0", None),
    ],
)
def test_decay_is_shown_where_it_follows_the_rate(changed, shown):
    assert effects(library("digits/baseline", changed)).get("rate x decay / batch") == shown


def test_only_what_differs_is_left():
    rows = [{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1", "b": "2", "c": "4"}]
    assert differing(rows) == {"b": ("2", "3", "2"), "c": ("-", "-", "4")}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        (("learning_rate.reference=0.1", "learning_rate.per=64"), True),
        (("learning_rate.reference=0.7", "learning_rate.per=448"), True),  # rounded apart
        (("evaluation.every=2",), True),
        (("batch.norm_span=16",), True),
        (("learning_rate.reference=0.1",), False),
        (("learning_rate.factors=[{parameters: ['/fc/*'], factor: 0.1}]",), False),
        (("batch.global=64",), False),
        (("epochs=21",), False),
        (("learning_rate.schedule={kind: MultiStep, boundaries: [19.99], factor: 0.1}",), False),
        (("batch.global=[{from: 0, size: 32}, {from: 10, size: 64}]", "learning_rate.rule=none"), False),
    ],
)
def test_schedules_are_the_same_when_every_update_is(changed, same):
    assert same_schedule(library("digits/baseline"), library("digits/baseline", *changed)) is same


def test_a_schedule_that_parts_late_or_in_the_batch_alone_is_another():
    late = [library("digits/baseline", f"learning_rate.schedule={{kind: MultiStep, boundaries: [{at}], factor: 0.1}}")
            for at in (15, 15.1)]  # fmt: skip
    assert not same_schedule(*late)
    constant = ("learning_rate.rule=none", "learning_rate.schedule={kind: Constant}", "batch.norm_span=8")
    ramp = "batch.global=[{from: 0, size: 24}, {from: 7.5, size: 40}]"
    one, other = library("digits/baseline", *constant), library("digits/baseline", *constant, ramp)
    assert effects(one)["updates"] == effects(other)["updates"] == "938"
    assert effects(one)["rate, first update"] == effects(other)["rate, last update"]
    assert not same_schedule(one, other)


def test_the_gain_of_ada_scale_follows_per():
    ada = ("optimizer={kind: AdaScale, weight_decay: 1e-4, no_decay: [norm]}", "batch.norm_span=16")
    ada += ("learning_rate.rule=none",)
    one, other = library("digits/baseline", *ada), library("digits/baseline", *ada, "learning_rate.per=16")
    assert same_schedule(one, library("digits/baseline", *ada))
    assert not same_schedule(one, other)


def test_a_strangers_run_of_any_length_is_compared_at_once():
    long = ("batch.global=1", "batch.norm_span=1", "epochs=1e6", "learning_rate.schedule=null")
    one, other = library("digits/baseline", *long), library("digits/baseline", *long, "seed=1")
    assert same_schedule(one, other) is None
    assert effects(one)["updates"] == "1,500,000,000"


def test_decay_for_each_sample_counts_the_schedule_of_the_decay():
    moved = ("schedules.weight_decay={kind: Constant, factor: 0.1}", "optimizer.weight_decay=1e-3")
    same, other = (open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=each) for each in ((), moved))
    assert effects(same)["rate x decay / batch"] == effects(other)["rate x decay / batch"]
