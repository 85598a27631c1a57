"""Every rule: its own example fires it, at the right key, and nothing else; the other stays just inside."""

import re

import pytest

from recipes.families import ADAPTIVE, LAYERWISE, MOMENTUM_SGD
from recipes.lint import entries
from recipes.lint import rules as rules_package
from trainers.vocabulary import vocabulary

# rule -> line and column of the key to blame in the example of its docstring.
PLACES = {
    "average-per-update": (3, 9),
    "batch-over-tenth": (4, 9),
    "constant-warmup": (4, 12),
    "decay-on-norm": (3, 13),
    "decay-with-batch": (4, 13),
    "double-buffering": (4, 11),
    "float16-sum": (4, 9),
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


def test_families_are_disjoint_names_of_the_vocabulary():
    known = {*vocabulary().optimizers, "Lars", "Lamb"}
    assert {*MOMENTUM_SGD, *ADAPTIVE, *LAYERWISE} <= known
    assert not set(MOMENTUM_SGD) & {*ADAPTIVE, *LAYERWISE}
