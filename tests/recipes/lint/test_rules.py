"""Every rule: its `Fires` example breaks it and no other, its `Quiet` example breaks none."""

import re
from dataclasses import asdict

import pytest

from recipes.lint import entries
from recipes.lint.handbook import entry_of

RULES = sorted(entries())


def options(text):
    """What the first comment of an example says lint is run with."""
    number, wire = re.search(r"-n (\d+)", text), re.search(r"--wire (\w+)", text)
    return {"workers": int(number[1])} | ({"wire": wire[1]} if wire else {}) if number else {}


@pytest.mark.parametrize("rule", RULES)
def test_docstring_of_a_rule_is_complete(rule):
    entry = entries()[rule][1]
    lacking = [part for part, text in asdict(entry).items() if not text]
    assert not lacking, f"the docstring of the lint rule {rule} lacks: {', '.join(lacking)}"


@pytest.mark.parametrize("rule", RULES)
def test_example_fires_its_rule_alone_at_a_key_of_its_own(rule, lint):
    example = entries()[rule][1].fires
    findings = lint(example, **options(example))
    assert [finding.rule for finding in findings] == [rule], findings
    (finding,) = findings
    text = example.splitlines()[finding.line - 1][finding.column - 1 :]
    assert text.partition(":")[0] in finding.path.split(".")
    assert finding.what
    assert finding.way_out


@pytest.mark.parametrize("rule", RULES)
def test_example_just_inside_is_clean(rule, lint):
    example = entries()[rule][1].quiet
    assert lint(example, **options(example)) == []


def test_a_rule_without_a_docstring_has_an_entry_with_empty_texts():
    def bare_rule(case):
        yield from ()

    def half_rule(case):
        """Only a headline.

        Way out: none.
        """
        yield from ()

    assert entry_of(bare_rule).rule == "bare-rule"
    assert entry_of(bare_rule).why == entry_of(bare_rule).fires == ""
    assert (entry_of(half_rule).what, entry_of(half_rule).way_out) == ("Only a headline.", "none.")


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
