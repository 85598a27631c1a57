"""A way out, typed into the recipe in which its rule fired, silences the rule."""

import re
from copy import deepcopy

import pytest
import yaml

from recipes.lint import entries
from recipes.reading.load import load_tree

OUT = object()  # the key is left out
NORM = "evaluation.norm_momentum"
WARMUP = {"kind": "GradualWarmup", "epochs": 5, "start": "reference", "joins": "multiply"}
GRADUAL = f"`warmup: {{{', '.join(f'{key}: {value}' for key, value in WARMUP.items())}}}`"

# Of each rule: a part of the way out of its `Fires` example, and the keys that follow it.
TYPED = {
    "average-per-update": ("`per: 4096` beside `keep`", {f"{NORM}.per": 4096}),
    "batch-over-tenth": ("at most 143", {"batch.global": 143}),
    "constant-warmup": ("`kind: GradualWarmup`", {"learning_rate.warmup": WARMUP}),
    "decay-after-end": ("[10, 20, 26.7]", {"learning_rate.schedule.boundaries": [10, 20, 26.7]}),
    "decay-of-schedule-free": ("`schedule: {kind: Constant}`", {"learning_rate.schedule": {"kind": "Constant"}}),
    "decay-on-norm": ("`no_decay: [norm]`", {"optimizer.no_decay": ["norm"]}),
    "decay-with-batch": ("0.0001", {"optimizer.weight_decay": 0.0001}),
    "double-buffering": ("momentum 0.9", {"optimizer.momentum": 0.9}),
    "few-updates": ("at most 30", {"batch": {"global": 30, "norm_span": 30}}),
    "idle-after-end": ("such as 45", {"weight_average.start": 45}),
    "idle-gain": ("such as 256", {"learning_rate.per": 256}),
    "idle-loss-scale": ("leave loss_scale and double_after out", {"precision.loss_scale": OUT}),
    "lagging-average": ("`keep: 0.9, per: 1153050`", {"weight_average": {"keep": 0.9, "per": 1153050}}),
    "lagging-statistics": ("norm_momentum: {keep: 0.99, per: 8192}", {NORM: {"keep": 0.99, "per": 8192}}),
    "lars-on-vectors": ("`no_decay: [norm, bias]`", {"optimizer.no_decay": ["norm", "bias"]}),
    "linear-adam": ("`rule: sqrt`", {"learning_rate.rule": "sqrt"}),
    "live-last-gamma": ("`zero_last_gamma: true`", {"model.zero_last_gamma": True}),
    "long-steps": ("1.4 times smaller", {"learning_rate.reference": 0.4 / 1.4}),
    "mean-over-classes": ("`reduction: class_sum`", {"loss.reduction": "class_sum"}),
    "narrow-norm-span": ("32 to 256", {"batch.norm_span": 32}),
    "no-warmup": (GRADUAL, {"learning_rate.warmup": WARMUP}),
    "raised-momentum": ("a reference rate of 0.05", {"learning_rate.reference": 0.05}),
    "rate-near-zero": ("leave `epochs` out of `schedule`", {"learning_rate.schedule.epochs": OUT}),
    "scaled-lars": ("`rule: none`", {"learning_rate.rule": "none"}),
    "scaled-twice": ("write 0.1: the rule scales it", {"learning_rate.reference": 0.1}),
    "short-warmup": (GRADUAL, {"learning_rate.warmup": WARMUP}),
    "smoothing-under-threshold": ("`label_smoothing: 0.0`", {"loss.label_smoothing": 0.0}),
    "span-over-share": ("at most 32", {"batch.norm_span": 32}),
    "unscaled-rate": ("`per: 8192`", {"learning_rate.per": 8192}),
    "warmup-past-decay": ("`warmup: {epochs: 5}`", {"learning_rate.warmup.epochs": 5}),
    "warmup-read-once": ("`every: update`", {"learning_rate.every": "update"}),
    "warmup-to-other-batch": ("`target_batch: 4096`", {"learning_rate.warmup.target_batch": 4096}),
    "warmup-twice": ("`warmup: null`", {"learning_rate.warmup": None}),
    "wide-norm-span": ("32 to 256", {"batch.norm_span": 256}),
}
NO_VALUE = {"linear-beyond-8k", "updates-while-ramping"}


def followed(tree, changes):
    """The tree with the changes."""
    tree = deepcopy(tree)
    for key, value in changes.items():
        inner, (*parents, last) = tree, key.split(".")
        for parent in parents:
            inner = inner.setdefault(parent, {})
        if value is OUT:
            del inner[last]
        else:
            inner[last] = value
    return tree


def complete(text, folder):
    """The tree of a recipe that extends another as one that extends none."""
    file = folder / "whole.yaml"
    file.write_text(text)
    about = ("extends", "source", "claims", "card", "assumed")
    return {"kilobatch": 1} | {key: value for key, value in load_tree(file)[0].items() if key not in about}


def test_every_rule_has_a_way_out_to_type_or_one_without_a_value():
    assert {*TYPED, *NO_VALUE} == {*entries()}


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize("rule", sorted(TYPED))
def test_a_way_out_typed_into_the_recipe_silences_its_rule(rule, is_complete, lint, tmp_path):
    example = entries()[rule][1].fires
    tree = complete(example, tmp_path) if is_complete else yaml.safe_load(example)
    number = re.search(r"-n (\d+)", example)
    workers = int(number[1]) if number else None
    found = [finding for finding in lint(yaml.safe_dump(tree), workers=workers) if finding.rule == rule]
    if is_complete and not found:  # it compares with the recipe that is extended
        return
    words, changes = TYPED[rule]
    (finding,) = found
    assert words in finding.way_out
    after = lint(yaml.safe_dump(followed(tree, changes)), workers=workers)
    assert rule not in [finding.rule for finding in after], after


OWN = "kilobatch: 1\nextends: base.yaml\nepochs: 30\n"
BASE = "kilobatch: 1\nextends: goyal2017\nlearning_rate: {schedule: %s}\n"
COSINE, LATE, FALLEN = "{kind: Cosine, epochs: %s}", "decay-after-end", "rate-near-zero"
DECAY = "{kind: StableDecay, decay_from: %s, epochs: 90}"


@pytest.mark.parametrize(
    ("base", "own", "rule", "way_out", "followed"),
    [
        # a base gives `epochs`, and null removes it; the file itself gives it, and then it is left out
        (COSINE % 90, "{}", LATE, "write `epochs: null` in", "{epochs: null}"),
        (COSINE % 90, "{kind: Cosine, epochs: 15}", FALLEN, "write `epochs: null` in", "{epochs: null}"),
        (COSINE % "1run", "{kind: Polynomial, epochs: 15}", FALLEN, "leave `epochs` out of", "{kind: Polynomial}"),
        # a decay that would begin after the run
        (DECAY % 80, "{}", LATE, "write `decay_from: 24`, and `epochs: null` in", "{decay_from: 24, epochs: null}"),
        (DECAY % 20, "{}", LATE, "write `epochs: null` in", "{epochs: null}"),
    ],
)
def test_a_schedule_that_ends_with_the_run_gives_no_epochs(base, own, rule, way_out, followed, lint):
    text = OWN + "learning_rate: {schedule: %s}\n"
    (finding,) = lint(text % own, base=BASE % base)
    assert finding.rule == rule
    assert finding.way_out == f"{way_out} `schedule`, which then ends with the run"
    assert lint(text % followed, base=BASE % base) == []


@pytest.mark.parametrize("rule", ["linear-adam", "scaled-lars"])
def test_a_rate_that_a_rule_scaled_can_be_kept_without_one(rule, lint, tmp_path):
    tree = complete(entries()[rule][1].fires, tmp_path)
    (finding,) = lint(yaml.safe_dump(tree))
    kept, factor = re.search(r"or keep this one: `(.*)`, with `start: (.*)` in `warmup`", finding.way_out).groups()
    rate = yaml.safe_load(f"{{{kept}}}")
    rate["warmup"] = tree["learning_rate"]["warmup"] | {"start": yaml.safe_load(factor)}
    assert lint(yaml.safe_dump(tree | {"learning_rate": tree["learning_rate"] | rate})) == []


def test_a_new_warmup_begins_below_half_of_the_rate_also_where_the_rule_is_0(lint):
    text = "kilobatch: 1\nextends: goyal2017\nlearning_rate: {rule: 0, per: 8192, reference: 3.2, warmup: %s}\n"
    for warmup in ("null", "{start: reference}"):
        (finding,) = lint(text % warmup)
        assert finding.rule == "no-warmup"
        assert "start: 0," in finding.way_out
    assert lint(text % finding.way_out.partition("warmup: ")[2].strip("`")) == []


def test_a_rate_of_this_batch_that_a_rule_scales_once_more_is_kept_without_the_rule(lint):
    text = "kilobatch: 1\nextends: goyal2017\nbatch: {global: 2048}\nlearning_rate: {reference: %g%s}\n"
    (finding,) = lint(text % (0.7, ""))
    assert finding.rule == "long-steps"
    assert finding.way_out.endswith(", or, if 0.7 was found at batch 2,048: `rule: none, per: 2048`")
    assert lint(text % (0.7, ", rule: none, per: 2048, warmup: {start: 0}")) == []
    assert "was found" not in lint(text % (8, ""))[0].way_out


EARLY = """\
kilobatch: 1
extends: goyal2017
learning_rate: {schedule: {boundaries: %s}, warmup: %s}
"""


@pytest.mark.parametrize("warmup", ["null", "{epochs: 0.666}", "{epochs: 0.9}", "{epochs: 50}"])
def test_a_first_step_within_an_epoch_is_moved_where_a_warmup_is_added_or_longer(warmup, lint):
    moved = "and move the schedule's first step down from 0.667 to 5 or later"
    found = lint(EARLY % ("[0.6667, 60, 80]", warmup))
    assert found
    assert all("epochs: 5" in each.way_out and moved in each.way_out for each in found)
    assert lint(EARLY % ("[5, 60, 80]", "{epochs: 5}")) == []


def test_a_quarter_of_a_run_of_an_epoch_is_long_enough_for_a_warmup(lint):
    text = "kilobatch: 1\nextends: goyal2017\nepochs: 0.95\nlearning_rate: {schedule: {kind: Cosine}, warmup: %s}\n"
    for warmup, rules in (("null", ["no-warmup"]), ("{epochs: 0.1}", ["short-warmup"]), ("{epochs: 0.237}", [])):
        found = [each for each in lint(text % warmup) if "warmup" in each.rule]
        assert [each.rule for each in found] == rules
        assert all("epochs: 0.237," in each.way_out for each in found)
