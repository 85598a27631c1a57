"""Every rule: its `Fires` example breaks it and no other, its `Quiet` example breaks none."""

import re
from dataclasses import asdict

import pytest

from recipes.lint import entries, lint_recipe
from recipes.lint.handbook import entry_of
from trainers.launch.vocabulary import vocabulary

RULES = sorted(entries())


def options(text):
    """What the first comment of an example says lint is run with."""
    number = re.search(r"-n (\d+)", text)
    return {"workers": int(number[1])} if number else {}


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


RAMP = "batch: {global: [{from: 0, size: 4096}, {from: 30, size: 8192}]}\nevaluation: {norm_momentum: {per: 8192}}\n"
LATER = "batch: {global: [{from: 0, size: 8192}, {from: %s, size: 16384}]}\nevaluation: {norm_momentum: {per: 8192}}\n"
LARS = "optimizer: {kind: Lars, weight_decay: 1e-4, no_decay: [norm, bias]}\n"
ADAM = "optimizer: {kind: Adam, weight_decay: 0.0}\n"
OWN_WARMUP = "optimizer: {kind: %s, weight_decay: 1e-4, no_decay: [norm]}\nlearning_rate: {warmup: null, rule: %s}\n"
CYCLE = """\
learning_rate: {warmup: null, schedule: {kind: PiecewiseLinear, points: [[0, 0.04], [30, 1], [90, 0]]}}
schedules: {momentum: {kind: PiecewiseLinear, points: [[0, %s], [30, %s], [90, %s]]}}
"""
STEADY = """\
learning_rate: {schedule: {kind: Constant}}
schedules: {momentum: {kind: PiecewiseLinear, points: %s}}
"""
GAIN = "epochs: 20\noptimizer: {clock: %s}\nlearning_rate: {schedule: {epochs: 10}}\n"
SLOW = "learning_rate: {%sschedule: {kind: SlowStart, boundaries: [30, 60], factors: [%s, 1.0, 0.1]}}\n"
RISING = "learning_rate: {warmup: null, schedule: {kind: PiecewiseLinear, points: [[0, %s], [10, 1], [90, 0]]}}\n"
WARM = "learning_rate: {warmup: {kind: GradualWarmup, epochs: 2, start: reference, joins: multiply}}\n"
LOCAL = "updater: {local_steps: {every: %d, replicas: 2, from: %s}}\n"
MOVING = "schedules: {%s: {kind: MultiStep, boundaries: [%d], factor: 0.5}}\n"
LATE_STEP = """\
learning_rate:
  schedule: {kind: Product, factors: [{kind: Cosine, epochs: 90}, {kind: MultiStep, boundaries: [90]}]}
"""
AIMS = "learning_rate: {warmup: {target_batch: %d}%s}\n"
MUON = "learning_rate: {reference: %g}\noptimizer: {kind: Muon%s}\n"
FREE = """\
learning_rate:
  {reference: %g, rule: none, warmup: {kind: GradualWarmup, epochs: 5, start: 0}, schedule: {kind: Constant}}
batch: {global: %d}
optimizer: {kind: ScheduleFreeSGD}
"""
FACTORS = "learning_rate: {factors: [{parameters: [%s], factor: %d}]}\n"
DECAYING = "schedules: {weight_decay: {kind: PiecewiseLinear, points: [[0, 1], [20, %d], [90, 1]]}}\n"
RISES = "learning_rate: {warmup: null, schedule: {kind: PiecewiseLinear, points: [[%d, 0], [%d, 1], [90, 0.01]]}}\n"
NUMBER = "batch: {global: %d}\nlearning_rate: {%s}\nmodel: {zero_last_gamma: true}\n"
UNSCALED = "learning_rate: {rule: none}\n"
BY_HAND = "batch: {global: 4096}\nlearning_rate: {rule: none, per: %d, reference: 1.6, warmup: {start: {rate: 0.1}}}\n"
LINES = "learning_rate: {schedule: {kind: PiecewiseLinear, points: [[0, 1], %s]}}\n"
RESTARTS = "epochs: %d\nlearning_rate: {schedule: {kind: CosineRestarts, first: 10, times: 2}}\n"
LAGGING = "evaluation: {norm_momentum: {keep: 0.999}, norm_statistics: %s}\n"


@pytest.mark.parametrize(
    ("base", "changes", "rules"),
    [
        # LARS is reported without a warmup from the smallest published batch on
        ("mlperf/lars_1632", "learning_rate: {warmup: null}\nbatch: {global: 1624, norm_span: 8}\n", []),
        ("mlperf/lars_1632", "learning_rate: {warmup: null}\nbatch: {global: 1632, norm_span: 8}\n", ["no-warmup"]),
        # a batch that grows where the rate falls
        ("goyal2017", LATER % 30, []),
        ("goyal2017", LATER % 29, ["linear-beyond-8k"]),
        # nothing is scaled that way
        ("goyal2017", "batch: {global: 16384}\nlearning_rate: {rule: sqrt}\n", []),
        ("goyal2017/256", LARS, []),
        # a rule that is written as a power
        ("digits/baseline", NUMBER % (64, "rule: 1.0, reference: 0.1"), ["scaled-twice"]),
        ("digits/baseline", NUMBER % (128, "rule: 0.95, reference: 0.001") + ADAM, ["linear-adam"]),
        ("digits/baseline", NUMBER % (128, "rule: 0.75, reference: 0.001") + ADAM, []),
        ("digits/baseline", NUMBER % (128, "rule: 0, per: 8"), ["unscaled-rate"]),
        ("goyal2017", "learning_rate: {rule: 0.95}\nbatch: {global: 8192}\n", []),
        ("goyal2017", "learning_rate: {rule: 0.95}\nbatch: {global: 16384}\n", ["linear-beyond-8k"]),
        # a clock that starts after the warmup
        ("goyal2017", "epochs: 120\nlearning_rate: {warmup: {epochs: 31, joins: before}}\n", []),
        ("goyal2017", "learning_rate: {warmup: {epochs: 31, joins: over}}\n", ["warmup-past-decay"]),
        ("goyal2017", "epochs: 85\nlearning_rate: {warmup: {joins: before}}\n", ["decay-after-end"]),
        ("goyal2017", "epochs: 86\nlearning_rate: {warmup: {joins: before}}\n", []),
        # lines and periods that the run cuts
        ("goyal2017", "epochs: 20\n" + LINES % "[90, 0]", ["decay-after-end"]),
        ("goyal2017", "epochs: 80\n" + LINES % "[90, 0.09]", ["decay-after-end"]),
        ("goyal2017", "epochs: 83\n" + LINES % "[90, 0]", []),
        ("goyal2017", "epochs: 30\n" + LINES % "[90, 1]", []),
        ("goyal2017", RESTARTS % 90, ["decay-after-end"]),
        ("goyal2017", RESTARTS % 70, []),
        ("goyal2017", RESTARTS % 65, []),
        # a warmup of half of the run, and of more
        ("goyal2017", "learning_rate: {schedule: {kind: Cosine}, warmup: {epochs: 45}}\n", []),
        ("goyal2017", "learning_rate: {schedule: {kind: Cosine}, warmup: {epochs: 46}}\n", ["warmup-past-decay"]),
        # a schedule that begins low, and one that begins at 9.6 times the reference rate
        ("goyal2017", RISING % 0.1, []),
        ("goyal2017", RISING % 0.3, ["no-warmup"]),
        # a decay that grows with the batch, beside a rate that does and beside one that stays
        ("fashion/baseline", "batch: {global: 512}\noptimizer: {weight_decay: 4e-4}\n" + WARM, ["decay-with-batch"]),
        ("fashion/baseline", "batch: {global: 512}\noptimizer: {weight_decay: 4e-4}\n" + UNSCALED, []),
        # statistics that move by group or not at all
        ("goyal2017", LAGGING % "pooled", ["lagging-statistics"]),
        ("goyal2017", LAGGING % "by_group", []),
        ("goyal2017", LAGGING % "last_batch", []),
        # optimizers with a warmup or a gain of their own
        ("goyal2017", OWN_WARMUP % ("AdaScale", "none"), []),
        ("goyal2017", OWN_WARMUP % ("RmspropWarmup", "linear"), []),
        ("goyal2017", OWN_WARMUP % ("AdaScale", "linear"), ["scaled-twice"]),
        # a batch that hardly differs from the base's
        ("goyal2017", "batch: {global: 8160}\n", []),
        # a schedule that steps up where the batch does
        ("goyal2017", RAMP + SLOW % ("", "0.5"), ["scaled-twice"]),
        ("goyal2017", RAMP + SLOW % ("", "1.0"), []),
        ("goyal2017", RAMP + SLOW % ("scale_with: initial, ", "0.5"), []),
        # a whole epoch of warmup, of which a tenth is near the full rate
        ("goyal2017", "learning_rate: {schedule: {kind: Cosine}, warmup: {epochs: 1}}\n", []),
        ("goyal2017", "learning_rate: {schedule: {kind: Cosine}, warmup: {epochs: 0.9}}\n", ["short-warmup"]),
        # positions at the end of the run, and just before
        ("goyal2017", "learning_rate: {schedule: {kind: Cosine}, every: 90ep}\n", ["idle-after-end"]),
        ("goyal2017", "learning_rate: {schedule: {kind: Cosine}, every: 89}\n", ["warmup-read-once"]),
        # warmups that are read twice and three times
        ("goyal2017", "learning_rate: {every: 2.5}\n", ["warmup-read-once"]),
        ("goyal2017", "learning_rate: {every: 2.4}\n", []),
        ("goyal2017/256", "learning_rate: {schedule: {kind: Constant}, every: 1run}\n", []),
        ("goyal2017", "learning_rate: {schedule: {kind: Constant}, every: 1run}\n", ["idle-after-end"]),
        ("goyal2017", "updater: {local_steps: {every: 4, replicas: 2, from: 1run}}\n", ["idle-after-end"]),
        ("goyal2017", "updater: {local_steps: {every: 4, replicas: 2, from: 0.9run}}\n", []),
        ("goyal2017", LOCAL % (14_077, "0ep"), ["idle-after-end"]),  # of 14,076 updates
        ("goyal2017", LOCAL % (14_076, "0ep"), []),
        ("goyal2017", LOCAL % (1001, "0.999run"), ["idle-after-end"]),  # update 13,936
        ("goyal2017", LOCAL % (14_000, "0.99run"), []),
        ("goyal2017", MOVING % ("weight_decay", 90), ["decay-after-end"]),
        ("goyal2017", MOVING % ("momentum", 89), []),
        ("goyal2017", LATE_STEP, ["decay-after-end"]),
        # a warmup that aims at another batch than the one it ends in; a step of the batch at its end is none of that
        ("goyal2017", RAMP.replace("30", "2") + AIMS % (8192, ""), []),
        ("goyal2017", RAMP.replace("30", "5") + AIMS % (4096, ""), []),
        ("goyal2017", RAMP.replace("30", "5") + AIMS % (8192, ""), []),
        ("goyal2017", RAMP.replace("30", "6") + AIMS % (4096, ", every: 3"), ["warmup-read-once"]),
        ("goyal2017", RAMP.replace("30", "2") + AIMS % (4096, ""), ["warmup-to-other-batch"]),
        ("goyal2017", RAMP.replace("30", "2") + AIMS % (8192, ", scale_with: initial"), ["warmup-to-other-batch"]),
        ("mlperf/lars_4096", "learning_rate: {warmup: {target_batch: 32}}\n", []),
        ("goyal2017", "batch: {global: 1024}\n" + AIMS % (8192, ""), ["warmup-to-other-batch"]),
        # a momentum that moves against the rate, and with it
        ("goyal2017/1024", "optimizer: {momentum: 0.95}\n" + CYCLE % (1, 0.89, 1), []),
        ("goyal2017/1024", CYCLE % (1, 1.06, 1), ["raised-momentum"]),
        # a momentum that is high where the batch is large, and where it is small
        ("fashion/ramp_4096", STEADY % "[[0, 1], [8, 1], [8.1, 1.088]]", ["raised-momentum"]),
        ("fashion/ramp_4096", STEADY % "[[0, 1.088], [8, 1]]", ["long-steps", "raised-momentum"]),
        # a schedule that the gain makes longer
        ("fashion/adascale_4096", GAIN % "samples", ["rate-near-zero"]),
        ("fashion/adascale_4096", GAIN % "gain", []),
        ("fashion/adascale_4096", GAIN.replace("10", "30") % "samples", ["decay-after-end"]),
        ("fashion/adascale_4096", GAIN.replace("10", "30") % "gain", []),
        # rates of SGD with other optimizers, and a decay that shrinks the weights to nothing
        ("goyal2017", "learning_rate: {rule: sqrt}\n" + ADAM, ["long-steps"]),
        ("goyal2017", "learning_rate: {rule: sqrt, reference: 0.01}\n" + ADAM, []),
        ("goyal2017/256", LARS.replace("{", "{trust_coefficient: 1.1, "), ["long-steps"]),
        ("goyal2017", "optimizer: {weight_decay: 4e-3}\n", ["long-steps"]),
        ("goyal2017", "optimizer: {weight_decay: 3e-3}\n", []),
        ("goyal2017", "optimizer: {weight_decay: 3e-2, decay: times_rate}\n", []),
        ("goyal2017", "optimizer: {weight_decay: 4e-2, decay: times_rate}\n", ["long-steps"]),
        ("goyal2017", DECAYING % 40, ["long-steps"]),
        ("goyal2017", DECAYING % 30, []),
        ("goyal2017", "learning_rate: {rule: sqrt, reference: 0.017677}\n" + ADAM, []),
        ("goyal2017/256", "learning_rate: {reference: 0.1, schedule: {kind: Cosine}}\n" + ADAM, ["long-steps"]),
        # Muon, whose decay follows the rate
        ("digits/baseline", MUON % (1.0, ""), []),
        ("digits/baseline", MUON % (1.1, ""), ["long-steps"]),
        ("digits/baseline", MUON % (0.02, ", weight_decay: 5"), []),
        ("digits/baseline", MUON % (0.02, ", weight_decay: 6"), ["long-steps"]),
        ("digits/baseline", MUON % (0.09, ", scale: largest"), []),
        ("digits/baseline", MUON % (0.1, ", scale: largest"), ["long-steps"]),
        # schedule-free SGD, whose rate is 10 to 50 times larger
        ("digits/baseline", FREE % (5, 32), []),
        ("digits/baseline", FREE % (5.1, 32), ["long-steps"]),
        ("digits/baseline", FREE % (40, 256), ["batch-over-tenth"]),
        ("digits/baseline", FREE % (41, 256), ["long-steps", "batch-over-tenth"]),
        # a factor on the rate of all parameters, and of some
        ("goyal2017", FACTORS % ("'/*'", 100), ["long-steps"]),
        ("goyal2017", FACTORS % ("/fc/*", 100), []),
        ("goyal2017", FACTORS % ("'/*'", 0), []),
        # a rate that stays at 0 before it rises
        ("goyal2017", RISES % (45, 50), ["rate-near-zero"]),
        ("goyal2017", RISES % (4, 9), []),
        ("goyal2017", RISES % (0, 5), []),
        # models without batch normalisation
        ("fashion/simple_cnn", "batch: {norm_span: 4}\noptimizer: {weight_decay: 1e-4}\n", []),
        ("fashion/simple_cnn", "batch: {global: 1024, norm_span: 1024}\nlearning_rate: {per: 1024}\n", []),
        ("goyal2017", "batch: {norm_span: 1024}\nmodel: {kind: VGG16}\n", []),
        ("goyal2017", "batch: {norm_span: 1024}\nmodel: {kind: VGG16, batch_norm: true}\n", ["wide-norm-span"]),
        # gradients one update late
        ("goyal2017", RAMP + "updater: {double_buffering: true}\n", ["double-buffering"]),
        ("goyal2017", LATER.replace("16384", "4096") % 30 + "updater: {double_buffering: true}\n", []),
    ],
)
def test_rules_that_fire(base, changes, rules, lint):
    assert [finding.rule for finding in lint(f"kilobatch: 1\nextends: {base}\n{changes}")] == rules


@pytest.mark.parametrize(
    ("workers", "way_out"),
    [(512, "write at most 16, or use at most 128 workers"), (513, "use at most 128 workers")],
)
def test_the_way_out_of_a_shared_span_is_never_a_narrow_one(lint, workers, way_out):
    text = "kilobatch: 1\nextends: goyal2017\nbatch: {norm_span: %d}\n"
    (finding,) = lint(text % 64, workers=workers)
    assert finding.way_out == way_out
    assert lint(text % 64, workers=128) == lint(text % 16, workers=512) == []


def test_what_is_written_against_a_lagging_average_is_quiet(lint):
    text = "kilobatch: 1\nextends: digits/baseline\nepochs: 8\nweight_average: {%s}\n"
    (finding,) = lint(text % "keep: 0.9999, per: 8192")
    assert finding.way_out == "write `keep: 0.9, per: 120`, a tenth of the run"
    assert lint(text % "keep: 0.9, per: 120") == []


@pytest.mark.parametrize(
    ("batch", "per", "way_out"),
    [
        (96, "update", "{keep: 0.93, per: 96}"),
        (96, 8192, "{keep: 0.93, per: 96}"),
        (1472, "update", "{keep: 0.01, per: 1472}"),
        (150, "update", "{keep: 0.9, per: 150}"),  # a tenth of all samples
    ],
)
def test_what_is_written_against_statistics_that_lag_is_quiet(batch, per, way_out, lint):
    text = f"kilobatch: 1\nextends: digits/baseline\nbatch: {{global: {batch}, norm_span: {batch}}}\n"
    before = lint(f"{text}evaluation: {{norm_momentum: {{keep: 0.95, per: {per}}}}}\n")
    (finding,) = [finding for finding in before if finding.rule == "lagging-statistics"]
    written = f"evaluation: {{norm_momentum: {way_out}}}"
    assert finding.way_out == f"write `{written}`"
    after = lint(f"{text}{written}\n")
    assert "lagging-statistics" not in [finding.rule for finding in after]


@pytest.mark.parametrize(
    ("text", "rule", "way_out"),
    [
        (
            "extends: digits/batch_256\nepochs: 20\n"
            "learning_rate: {warmup: {epochs: 20, joins: before}, schedule: {kind: MultiStep, boundaries: [1, 2]}}\n",
            "decay-after-end",
            "shorten the warmup",
        ),
        (
            "extends: digits/batch_256\nepochs: 20\n"
            "learning_rate:\n  warmup: {epochs: 10, joins: before}\n"
            "  schedule: {kind: MultiStep, boundaries: [10, 10.001]}\n",
            "decay-after-end",
            "[8.888, 8.889]",
        ),
        (
            "extends: digits/baseline\nepochs: 0.5\nbatch: {global: 512}\n",
            "no-warmup",
            "epochs: 0.125, start: reference, joins: multiply}",
        ),
        (
            "extends: digits/baseline\nbatch: {global: [{from: 0, size: 512}, {from: 2, size: 1024}]}\n",
            "no-warmup",
            "epochs: 5, start: reference, joins: multiply, target_batch: 1024}",
        ),
        ("extends: digits/baseline\nepochs: 0.01\n", "few-updates", "write more epochs"),
        ("extends: digits/baseline\nbatch: {global: 160}\n", "batch-over-tenth", "write at most 128"),
        ("extends: digits/baseline\nepochs: 10\nbatch: {global: 512}\n", "few-updates", "at most 128, or"),
    ],
)
def test_ways_out_are_recipes_that_open(lint, text, rule, way_out):
    (finding,) = (each for each in lint(f"kilobatch: 1\n{text}") if each.rule == rule)
    assert way_out in str(finding), finding


@pytest.mark.parametrize(
    ("changes", "rule", "way_out", "followed"),
    [
        (
            "epochs: 5\n",
            "decay-after-end",
            "write boundaries such as [1.67, 3.33, 4.44] and `warmup: {epochs: 1.25}`",
            "epochs: 5\nlearning_rate: {schedule: {boundaries: [1.67, 3.33, 4.44]}, warmup: {epochs: 1.25}}\n",
        ),
        (
            "learning_rate: {warmup: {epochs: 31}}\n",
            "warmup-past-decay",
            "write `warmup: {epochs: 5}`",
            "learning_rate: {warmup: {epochs: 5}}\n",
        ),
        (
            "epochs: 120\nlearning_rate: {warmup: {epochs: 31}}\n",
            "warmup-past-decay",
            "write `warmup: {epochs: 5}`, or `joins: before`",
            "epochs: 120\nlearning_rate: {warmup: {epochs: 31, joins: before}}\n",
        ),
        ("learning_rate: {every: 1run}\n", "idle-after-end", "write `every: update`", "seed: 1\n"),
        (
            "learning_rate: {warmup: {joins: before}, schedule: {kind: Polynomial, power: 5}}\n",
            "rate-near-zero",
            "write a smaller `power`, or an `end` above 0",
            "learning_rate: {schedule: {kind: Polynomial, power: 5, end: 0.001}}\n",
        ),
        (
            LINES % "[80, 0], [90, 0]",
            "rate-near-zero",
            "put the point with factor 0 at the end of the run, or write a factor above 0",
            LINES % "[90, 0]",
        ),
        (
            BY_HAND % 256,
            "unscaled-rate",
            "write `per: 4096` if this is the rate of that batch",
            BY_HAND % 4096,
        ),
        (
            "learning_rate: {rule: none, warmup: null}\n",
            "unscaled-rate",
            "write `per: 8192` if this is the rate of that batch, or `rule: linear, per: 256` and a warmup",
            "learning_rate: {rule: none, per: 8192, warmup: null}\n",
        ),
    ],
)
def test_a_way_out_leads_to_a_clean_recipe(changes, rule, way_out, followed, lint):
    (finding,) = (each for each in lint(f"kilobatch: 1\nextends: goyal2017\n{changes}") if each.rule == rule)
    assert finding.way_out == way_out
    assert lint(f"kilobatch: 1\nextends: goyal2017\n{followed}") == []


def test_a_recipe_that_begins_with_given_weights_may_make_few_updates(lint):
    text = "kilobatch: 1\nextends: digits/baseline\nepochs: 1\n"
    (finding,) = (each for each in lint(text) if each.rule == "few-updates")
    assert "47 updates in all" in str(finding)
    assert "few-updates" not in {each.rule for each in lint(text + f"init: {{weights: w, sha256: {'0' * 64!r}}}\n")}


def test_an_own_model_without_batch_normalisation_is_told_how_to_quiet_the_narrow_span(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net_to_lint.py").write_text("from trainers.models import SmallResNet\n")
    text = "kilobatch: 1\nextends: digits/baseline\nmodel: {kind: KIND}\nbatch: {norm_span: 1}\n"
    for kind, told in (("SmallResNet", False), ("net_to_lint.SmallResNet", True)):
        (tmp_path / "mine.yaml").write_text(text.replace("KIND", kind))
        findings = lint_recipe("mine.yaml", vocabulary=vocabulary(allow_code=True), allow_code=True)
        (narrow,) = [finding for finding in findings if finding.rule == "narrow-norm-span"]
        assert ("# lint: ignore narrow-norm-span" in narrow.way_out) == told
