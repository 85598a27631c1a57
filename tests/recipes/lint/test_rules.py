"""Every rule: its own example fires it, at the right key, and nothing else; the other stays just inside."""

import re

import pytest

from recipes.lint import entries
from recipes.lint import rules as rules_package

# rule -> line and column of the key to blame in the example of its docstring.
PLACES = {
    "average-per-update": (3, 9),
    "batch-over-tenth": (4, 9),
    "constant-warmup": (4, 12),
    "decay-on-norm": (3, 13),
    "decay-with-batch": (4, 13),
    "double-buffering": (4, 11),
    "float16-sum": (4, 9),
    "idle-loss-scale": (3, 32),
    "lagging-statistics": (3, 30),
    "lars-on-vectors": (4, 45),
    "linear-adam": (4, 13),
    "linear-beyond-8k": (3, 9),
    "live-last-gamma": (3, 9),
    "mean-over-classes": (3, 34),
    "no-warmup": (3, 1),
    "scaled-lars": (3, 13),
    "scaled-twice": (4, 17),
    "smoothing-under-threshold": (3, 34),
    "span-over-share": (4, 9),
    "unscaled-rate": (3, 17),
    "updates-while-ramping": (5, 26),
    "warmup-past-decay": (3, 26),
    "warmup-twice": (4, 13),
    "wide-norm-span": (3, 9),
}


def options(text):
    """What the first comment of an example says lint is run with."""
    number, wire = re.search(r"-n (\d+)", text), re.search(r"--wire (\w+)", text)
    return {"workers": int(number[1])} | ({"wire": wire[1]} if wire else {}) if number else {}


def test_every_rule_has_a_place_here_and_is_sorted():
    assert sorted(PLACES) == list(entries())
    assert sorted(rules_package.__all__) == rules_package.__all__


@pytest.mark.parametrize("rule", PLACES)
def test_example_fires_its_rule_alone_at_the_key_to_blame(rule, lint):
    entry = entries()[rule][1]
    findings = lint(entry.fires, **options(entry.fires))
    assert [finding.rule for finding in findings] == [rule], findings
    assert (findings[0].line, findings[0].column) == PLACES[rule]
    assert findings[0].what
    assert findings[0].way_out


@pytest.mark.parametrize("rule", PLACES)
def test_example_just_inside_is_clean(rule, lint):
    entry = entries()[rule][1]
    assert lint(entry.quiet, **options(entry.quiet)) == []


@pytest.mark.parametrize("rule", PLACES)
def test_entry_says_what_why_source_and_way_out(rule):
    entry = entries()[rule][1]
    assert all(len(text) > 15 for text in (entry.what, entry.why, entry.way_out, entry.source))
    assert entry.what.endswith(".")
    assert "\n" not in entry.why


@pytest.mark.parametrize(("batch", "rules"), [(1631, []), (1632, ["no-warmup"])])
def test_lars_without_a_warmup_is_reported_from_the_smallest_published_batch(batch, rules, lint):
    text = (
        "kilobatch: 1\nextends: mlperf/lars_1632\nlearning_rate: {warmup: null}\n"
        f"batch: {{global: {batch}, norm_span: 1}}\n"
    )
    assert [finding.rule for finding in lint(text)] == rules


def test_a_batch_that_grows_where_the_rate_falls_is_not_beyond_8k(lint, marks):
    text = (
        "kilobatch: 1\nextends: goyal2017\nevaluation: {norm_momentum: {per: 8192}}\n"
        "batch: {global: [{from: 0, size: 8192}, {from: 30, size: 16384}]}\n"
    )
    assert lint(text) == []
    assert marks(lint(text.replace("30", "29"))) == [("linear-beyond-8k", 4, 9)]


def test_rules_about_scaling_are_quiet_where_nothing_is_scaled_that_way(lint):
    root = "kilobatch: 1\nextends: goyal2017\nbatch: {global: 16384}\nlearning_rate: {rule: sqrt}\n"
    assert "linear-beyond-8k" not in [finding.rule for finding in lint(root)]
    lars = "kilobatch: 1\nextends: goyal2017/256\noptimizer: {kind: Lars, weight_decay: 1e-4, no_decay: [norm, bias]}\n"
    assert "scaled-lars" not in [finding.rule for finding in lint(lars)]


def test_a_schedule_whose_clock_starts_after_the_warmup_steps_down_behind_it(lint):
    text = "kilobatch: 1\nextends: goyal2017\nlearning_rate: {warmup: {epochs: 31, joins: before}}\n"
    assert lint(text) == []
    assert [finding.rule for finding in lint(text.replace("before", "over"))] == ["warmup-past-decay"]


def test_statistics_that_move_by_group_or_not_at_all_do_not_lag(lint):
    text = "kilobatch: 1\nextends: goyal2017\nevaluation: {norm_momentum: {keep: 0.999}}\n"
    for statistics, rules in (("pooled", ["lagging-statistics"]), ("by_group", []), ("last_batch", [])):
        assert [finding.rule for finding in lint(text, f"evaluation.norm_statistics={statistics}")] == rules


@pytest.mark.parametrize(
    ("batch", "per", "way_out"),
    [
        (96, "update", "{keep: 0.93, per: 96}"),
        (96, 8192, "{keep: 0.93, per: 96}"),
        (1504, "update", "{keep: 0, per: 1504}"),
    ],
)
def test_what_is_written_against_statistics_that_lag_is_quiet(batch, per, way_out, lint):
    text = (
        f"kilobatch: 1\nextends: digits/baseline\nbatch: {{global: {batch}}}\n"
        "evaluation: {norm_momentum: {keep: 0.95, per: %s}}\n"
    )
    (finding,) = [finding for finding in lint(text % per) if finding.rule == "lagging-statistics"]
    assert finding.way_out == f"write `norm_momentum: {way_out}`"
    after = lint(text.replace("{keep: 0.95, per: %s}", way_out))
    assert "lagging-statistics" not in [finding.rule for finding in after]


@pytest.mark.parametrize("kind", ["AdaScale", "RmspropWarmup"])
def test_an_optimizer_with_a_warmup_of_its_own_needs_none(kind, lint):
    rule = {"AdaScale": "none", "RmspropWarmup": "linear"}[kind]
    text = (
        f"kilobatch: 1\nextends: goyal2017\nlearning_rate: {{warmup: null, rule: {rule}}}\n"
        f"optimizer: {{kind: {kind}, weight_decay: 1e-4, no_decay: [norm]}}\n"
    )
    assert lint(text) == []


def test_a_schedule_that_steps_up_where_the_batch_does_is_scaled_twice(lint, marks):
    text = (
        "kilobatch: 1\nextends: goyal2017\nbatch: {global: [{from: 0, size: 4096}, {from: 30, size: 8192}]}\n"
        "evaluation: {norm_momentum: {per: 8192}}\n"
        "learning_rate: {schedule: {kind: SlowStart, boundaries: [30, 60], factors: [0.5, 1.0, 0.1]}}\n"
    )
    assert marks(lint(text)) == [("scaled-twice", 5, 17)]
    assert lint(text.replace("[0.5, 1.0, 0.1]", "[1.0, 1.0, 0.1]")) == []
    assert lint(text.replace("{schedule", "{scale_with: initial, schedule")) == []


def test_adascale_under_a_rule_is_scaled_twice(lint, marks):
    text = (
        "kilobatch: 1\nextends: goyal2017\nlearning_rate: {warmup: null}\n"
        "optimizer: {kind: AdaScale, weight_decay: 1e-4, no_decay: [norm]}\n"
    )
    assert marks(lint(text)) == [("scaled-twice", 4, 13)]


def test_double_buffering_with_a_ramp_down_is_let_through(lint, marks):
    text = (
        "kilobatch: 1\nextends: goyal2017\nupdater: {double_buffering: true}\n"
        "evaluation: {norm_momentum: {per: 8192}}\nbatch: {global: [{from: 0, size: 4096}, {from: 30, size: 8192}]}\n"
    )
    assert marks(lint(text)) == [("double-buffering", 3, 11)]
    assert lint(text.replace("size: 4096", "size: 8192").replace("from: 30, size: 8192", "from: 30, size: 4096")) == []
