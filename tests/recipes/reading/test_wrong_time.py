"""Lengths, ramps, norm spans and warmups that cannot be: one line each."""

import pytest

# What is changed in the valid recipe -> place, path, a part of the cause, a part of the way out.
WRONG = {
    "wrong unit": ({"line_5": "epochs: 20epochs"}, "5:9", "epochs", "'epochs' is not a unit", "30ep"),
    "part of an update": ({"line_5": "epochs: 0.5up"}, "5:9", "epochs", "not a whole number of updates", "500up"),
    "a run of runs": ({"line_5": "epochs: 2run"}, "5:9", "epochs", "length of the run", "30ep"),
    "batch of 0": ({"line_6": "batch: {global: 0}"}, "6:17", "batch.global", "is 0", "at least 1"),
    "batch with a point": ({"line_6": "batch: {global: 96.0}"}, "6:17", "batch.global", "is 96.0", "whole number: 96"),
    "negative batch": ({"line_6": "batch: {global: -96}"}, "6:17", "batch.global", "is -96", "at least 1"),
    "run of 0 epochs": ({"line_5": "epochs: 0"}, "5:9", "epochs", "is 0", "longer than 0"),
    "run of more samples than anything counts": (
        {"line_5": "epochs: 1e300"},
        "5:9",
        "epochs",
        "more than 9,007,199,254,740,992 samples",
        "30ep",
    ),
    "so many updates": ({"line_5": "epochs: 1e99up"}, "5:9", "epochs", "1e99up is more than 9,007", "30ep"),
    "negative run": ({"line_5": "epochs: -1"}, "5:9", "epochs", "-1 lies before the start", "30ep"),
    "ramp going backwards": (
        {"line_6": "batch: {global: [{from: 0, size: 96}, {from: 9, size: 192}, {from: 5, size: 288}]}"},
        "6:68",
        "batch.global.2.from",
        "5 does not come after 9",
        "order of time",
    ),
    "ramp that begins late": (
        {"line_6": "batch: {global: [{from: 1, size: 96}]}"},
        "6:25",
        "batch.global.0.from",
        "begins at 1",
        "begins at 0",
    ),
    "ramp past the end": (
        {"line_6": "batch: {global: [{from: 0, size: 96}, {from: 20, size: 192}]}"},
        "6:46",
        "batch.global.1.from",
        "20 lies at or after the end of the run",
        "lengthen `epochs`",
    ),
    "step of a ramp without size": (
        {"line_6": "batch: {global: [{from: 0}]}"},
        "6:18",
        "batch.global.0.size",
        "is missing",
        "add `size: ...`",
    ),
    "empty ramp": ({"line_6": "batch: {global: []}"}, "6:17", "batch.global", "empty list", "one number"),
    "batch no multiple of its span": (
        {"line_6": "batch: {global: 96, norm_span: 36}"},
        "6:32",
        "batch.norm_span",
        "96 from 0 on is no multiple of 36",
        "32 would do",
    ),
    "batch of a ramp no multiple of the span of all": (
        {"line_6": "batch: {global: [{from: 0, size: 96}, {from: 2, size: 1500}], norm_span: 32}"},
        "6:74",
        "batch.norm_span",
        "1500 from 2 on is no multiple of 32",
        "12 would do",
    ),
    "batch of a ramp no multiple of its own span": (
        {
            "line_6": "batch: {global: [{from: 0, size: 96}, {from: 2, size: 1500}], "
            "norm_span: [{from: 0, size: 32}, {from: 2, size: 32}]}"
        },
        "6:74",
        "batch.norm_span",
        "1500 from 2 on is no multiple of 32",
        "30 would do",
    ),
    "span larger than the batch": (
        {"line_6": "batch: {global: 96, norm_span: 192}"},
        "6:32",
        "batch.norm_span",
        "no multiple of 192",
        "96 would do",
    ),
    "span that moves alone": (
        {"line_6": "batch: {global: 96, norm_span: [{from: 0, size: 32}, {from: 2, size: 96}]}"},
        "6:32",
        "batch.norm_span",
        "changes at 2, where `batch.global` does not",
        "steps of the batch: 0",
    ),
    "span of 0": ({"line_6": "batch: {global: 96, norm_span: 0}"}, "6:32", "batch.norm_span", "is 0", "at least 1"),
}

WARMUPS = {
    "past the end": ("{kind: GradualWarmup, epochs: 25}", "epochs", "25 is longer than the run, 20", "shorten"),
    "of no length": ("{kind: GradualWarmup, epochs: 0}", "epochs", "is 0", "must be > 0"),
    "start that may mean two things": (
        "{kind: GradualWarmup, epochs: 5, start: 0.1}",
        "start",
        "0.1 may be a rate or a factor",
        "{rate: 0.1} or {factor: 0.1}",
    ),
    "start above its aim": (
        "{kind: GradualWarmup, epochs: 5, start: {rate: 0.2}}",
        "start",
        "0.2 does not lie between 0 and the full rate of batch 96, 0.15",
        "start lower",
    ),
    "start that is a word": ("{kind: GradualWarmup, epochs: 5, start: refrence}", "start", "not where", "reference"),
    "start of true": ("{kind: GradualWarmup, epochs: 5, start: true}", "start", "not where", "reference"),
    "join of another name": ("{kind: GradualWarmup, epochs: 5, joins: add}", "joins", "'add'", "before or over"),
    "constant at 0": ("{kind: ConstantWarmup, epochs: 5, start: 0}", "start", "is 0", "must be > 0"),
    "of another kind": ("{kind: GradualWarmap, epochs: 5}", "kind", "no warmup called", "GradualWarmup"),
    "that aims at 0": ("{kind: GradualWarmup, epochs: 5, target_batch: 0}", "target_batch", "is 0", "at least 1"),
    "unknown key": ("{kind: GradualWarmup, epochs: 5, strat: 0}", "strat", "not a known key", "did you mean start?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_time_is_one_line_with_place_cause_and_way_out(case, write, problem_of):
    lines, position, path, cause, way_out = WRONG[case]
    problem = problem_of(write(**lines))
    assert f"{problem.file}:{problem.line}:{problem.column}" == f"mine.yaml:{position}"
    assert problem.path == path
    assert cause in problem.what
    assert way_out in problem.way_out


@pytest.mark.parametrize("case", WARMUPS)
def test_wrong_warmup_is_one_line(case, write, problem_of):
    warmup, key, cause, way_out = WARMUPS[case]
    line = f"learning_rate: {{reference: 0.05, per: 32, warmup: {warmup}}}"
    problem = problem_of(write(line_7=line))
    assert (problem.file, problem.line) == ("mine.yaml", 7)
    assert line[problem.column - 1 :].startswith(tuple(warmup.split(f"{key}: ")[1][:3]) + (f"{key}: ",))
    assert problem.path == f"learning_rate.warmup.{key}"
    assert cause in problem.what
    assert way_out in problem.way_out


def test_ramp_inside_the_warmup_needs_to_know_its_aim(write, problem_of):
    warmup = "{kind: GradualWarmup, epochs: 5}"
    problem = problem_of(
        write(
            line_6="batch: {global: [{from: 0, size: 96}, {from: 3, size: 192}]}",
            line_7=f"learning_rate: {{reference: 0.05, per: 32, warmup: {warmup}}}",
        )
    )
    assert problem.path == "learning_rate.warmup"
    assert "the batch moves at 3, inside the warmup of 5" in problem.what
    assert "`target_batch: 192`" in problem.way_out


def test_warmup_before_a_decay_leaves_it_some_time(write, problem_of):
    problem = problem_of(
        write(
            line_7="learning_rate: {reference: 0.05, per: 32, schedule: {kind: Cosine}, "
            "warmup: {kind: GradualWarmup, epochs: 20, joins: before}}"
        )
    )
    assert (problem.line, problem.path) == (7, "learning_rate.schedule.epochs")
