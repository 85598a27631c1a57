"""Where findings are placed, what comments let through, and what is wrong with a comment."""

import pytest

from recipes.errors import RecipeError
from recipes.lint import entries, handbook

BEYOND = "kilobatch: 1\nextends: goyal2017\nbatch: {global: 16384}\n"
NO_WARMUP = "learning_rate: {warmup: null}\n"


def test_finding_stands_in_the_file_that_gives_the_key(lint):
    base = BEYOND
    mine = "kilobatch: 1\nextends: ./base.yaml\n\nseed: 1\n"
    (finding,) = lint(mine, base=base)
    assert (finding.file, finding.line, finding.column) == ("base.yaml", 3, 9)
    assert (finding.rule, finding.path) == ("linear-beyond-8k", "batch.global")
    assert str(finding).startswith("base.yaml:3:9: linear-beyond-8k: batch.global: linear scaling from 256 to 16,384, ")
    assert "27.55 % at 32,768" in finding.source


def test_finding_stands_at_the_key_that_the_outermost_file_gives(lint):
    base = "kilobatch: 1\nextends: goyal2017\nlearning_rate: {warmup: null}\nbatch: {global: 512}\n"
    (finding,) = lint("kilobatch: 1\nextends: ./base.yaml\nbatch: {global: 4096}\n", base=base)
    assert (finding.rule, finding.file, finding.path) == ("no-warmup", "mine.yaml", "batch.global")


def test_finding_of_an_override_stands_on_the_command_line(lint):
    (finding,) = lint("kilobatch: 1\nextends: goyal2017\nseed: 1\n", "seed=2", "batch.global=16384")
    assert (finding.file, finding.line, finding.column) == ("command line", 2, 1)


def test_findings_come_in_the_order_of_the_file(lint, marks):
    text = BEYOND + "optimizer: {no_decay: []}\n" + NO_WARMUP
    result = [("linear-beyond-8k", 3, 9), ("decay-on-norm", 4, 13), ("no-warmup", 5, 1)]
    assert marks(lint(text)) == result


@pytest.mark.parametrize(
    "text",
    [
        BEYOND.replace("384}", "384}   # lint: ignore linear-beyond-8k figure 1"),
        BEYOND.replace("batch: {", "# lint: ignore linear-beyond-8k figure 1\nbatch: {"),
        BEYOND.replace("batch: {", "# lint: ignore linear-beyond-8k figure 1\n# and more\n\nbatch: {"),
        BEYOND.replace("batch: {global: 16384}", "batch:\n  # lint: ignore linear-beyond-8k y\n  global: 16384"),
    ],
    ids=["beside", "above", "above with more", "above the inner key"],
)
def test_comment_lets_its_rule_through(text, lint):
    assert lint(text) == []


def test_one_comment_names_several_rules(lint):
    both = "learning_rate: {warmup: null, reference: 0.2}"
    rules = "no-warmup, scaled-twice"
    text = f"kilobatch: 1\nextends: goyal2017\nbatch: {{global: 16384}}  # lint: ignore linear-beyond-8k x\n{both}"
    assert {finding.rule for finding in lint(text + "\n")} == {"no-warmup", "scaled-twice"}
    assert lint(f"{text}  # lint: ignore {rules} both on purpose\n") == []


IGNORED = BEYOND.replace("384}", "384}   # lint: ignore linear-beyond-8k figure 1")
GOYAL, MINE = "kilobatch: 1\nextends: goyal2017\n", "kilobatch: 1\nextends: ./base.yaml\n"


@pytest.mark.parametrize(
    ("text", "base", "overrides", "expected"),
    [
        pytest.param(MINE + "seed: 1\n", IGNORED, [], [], id="goes with its key"),
        pytest.param(MINE + "batch: {global: 32768}\n", IGNORED, [], [("linear-beyond-8k", 3, 9)], id="another key"),
        pytest.param(MINE + "batch: {global: 8192}\n", IGNORED, [], [], id="unused in a base is not reported"),
        pytest.param(
            MINE.replace("base.yaml", "base.yaml   # lint: ignore linear-beyond-8k their choice"),
            BEYOND, [], [], id="at extends: all that it brings",
        ),
        pytest.param(
            GOYAL.replace("2017", "2017   # lint: ignore linear-beyond-8k their choice"),
            GOYAL, ["batch.global=16384"], [("linear-beyond-8k", 1, 1), ("unused-ignore", 2, 22)],
            id="at extends: no override",
        ),
        pytest.param(
            BEYOND + "seed: 1   # lint: ignore linear-beyond-8k here\n",
            GOYAL, [], [("linear-beyond-8k", 3, 9), ("unused-ignore", 4, 11)], id="of another line",
        ),
        pytest.param(
            BEYOND.replace("384}", "384}   # lint: ignore no-warmup there"),
            GOYAL, [], [("linear-beyond-8k", 3, 9), ("unused-ignore", 3, 26)], id="of another rule",
        ),
        pytest.param(
            BEYOND.replace("384}", "384}  # lint: ignore linear-beyond-8k"),
            GOYAL, [], [("bare-ignore", 3, 25)], id="without a reason",
        ),
        pytest.param(GOYAL + "seed: 1  # lint: ignore\n", GOYAL, [], [("bare-ignore", 3, 10)], id="without a rule"),
        pytest.param(
            BEYOND + 'title: "x # lint: ignore linear-beyond-8k y"\n',
            GOYAL, [], [("linear-beyond-8k", 3, 9)], id="inside a text",
        ),
    ],
)  # fmt: skip
def test_which_findings_a_comment_ignores(text, base, overrides, expected, lint, marks):
    assert marks(lint(text, *overrides, base=base)) == expected


def test_unknown_rule_in_a_comment_is_reported_with_the_nearest(lint):
    (finding,) = lint("kilobatch: 1\nextends: goyal2017\nseed: 1   # lint: ignore no-warmups why\n")
    assert (finding.rule, finding.what) == ("unused-ignore", "there is no rule no-warmups")
    assert finding.way_out == "did you mean no-warmup or short-warmup?"


def test_comment_of_a_rule_that_did_not_run_is_left_alone(lint, marks):
    text = "kilobatch: 1\nextends: goyal2017\nbatch: {norm_span: 64}   # lint: ignore span-over-share a team of two\n"
    assert lint(text) == []
    assert lint(text, workers=256) == []
    assert marks(lint(text, workers=2)) == [("unused-ignore", 3, 26)]


def test_wrong_recipe_is_refused_and_not_linted(lint):
    with pytest.raises(RecipeError):
        lint("kilobatch: 1\nextends: goyal2017\nepocs: 3\n")


def test_what_is_extended_need_not_be_a_recipe_by_itself(lint, marks):
    part = "kilobatch: 1\nextends: goyal2017\noptimizer: null\n"
    optimizer = "optimizer: {kind: NesterovAG, momentum: 0.9, weight_decay: 1e-4, no_decay: []}\n"
    mine = f"kilobatch: 1\nextends: ./part.yaml\nbatch: {{global: 4096}}\n{optimizer}"
    assert marks(lint(mine, part=part)) == [("decay-on-norm", 4, 66)]


def test_handbook_has_every_rule_with_its_examples():
    page = handbook()
    for rule, (_, entry) in entries().items():
        assert f"## `{rule}`" in page
        assert entry.fires in page
        assert entry.quiet in page


def test_a_warmup_that_begins_at_the_full_rate_is_none_and_what_lint_writes_in_its_place_rises(lint):
    """With `rule: none` the reference is the full rate."""
    text = "kilobatch: 1\nextends: goyal2017\nlearning_rate: {reference: 3.2, per: 8192, rule: none, warmup: WARMUP}\n"
    for given in ("null", "{start: reference}"):
        (finding,) = lint(text.replace("WARMUP", given))
        assert finding.rule == "no-warmup"
        assert "start: 0, joins" in finding.way_out
    assert lint(text.replace("WARMUP", "{kind: GradualWarmup, epochs: 5, start: 0, joins: multiply}")) == []


def test_the_rate_of_the_recipe_that_is_extended_at_a_larger_batch_is_unscaled_although_no_per_is_written(lint):
    base = "kilobatch: 1\nextends: goyal2017/256\nlearning_rate: {rule: none, per: null}\n"
    mine = "kilobatch: 1\nextends: ./base.yaml\nbatch: {global: 4096}\n"
    (finding,) = lint(mine, base=base)
    assert (finding.rule, finding.path) == ("unscaled-rate", "batch.global")
    assert "the rate of batch 256 at batch 4,096, 16 times larger" in str(finding)
    assert lint(mine + "learning_rate: {reference: 0.7}\n", base=base) == []


def test_an_inherited_aim_of_the_warmup_is_found_at_the_batch_that_no_longer_fits_it(lint):
    base = "kilobatch: 1\nextends: goyal2017\nbatch: {global: 4096}\nlearning_rate: {warmup: {target_batch: 4096}}\n"
    mine = "kilobatch: 1\nextends: ./base.yaml\nbatch: {global: 2048}\n%s"
    (finding,) = lint(mine % "", base=base)
    assert (finding.rule, finding.file, finding.line) == ("warmup-to-other-batch", "mine.yaml", 3)
    assert "from 1.6 to 0.8" in finding.what
    assert finding.way_out == "write `target_batch: 2048` in `learning_rate.warmup`"
    assert lint(mine % "learning_rate: {warmup: {target_batch: 2048}}\n", base=base) == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ("learning_rate: {rule: 2}", "long-steps"),
        ("learning_rate: {schedule: {kind: Constant, factor: 4}}", "long-steps"),
        ("schedules: {momentum: {kind: Constant, factor: 1.06}}", "raised-momentum"),
        ("batch: {global: [{from: 0, size: 4096}, {from: 30, size: 8192}]}", "updates-while-ramping"),
        ("learning_rate: {reference: 3.2, rule: none}", "no-warmup"),
    ],
)
def test_a_finding_stands_at_the_cause_in_the_own_file_and_a_comment_ignores_it_there(changes, rule, lint):
    base = "kilobatch: 1\nextends: goyal2017\nlearning_rate: {warmup: %s}\n"
    base %= "{epochs: 1000up}" if rule == "updates-while-ramping" else "null" if rule == "no-warmup" else "{epochs: 5}"
    mine = "kilobatch: 1\nextends: ./base.yaml\n%s\n"
    (finding,) = [each for each in lint(mine % changes, base=base) if each.rule == rule]
    assert (finding.file, finding.line) == ("mine.yaml", 3)
    kept = lint(mine % f"{changes}   # lint: ignore {rule} wanted", base=base)
    assert not [each for each in kept if each.rule in (rule, "unused-ignore")]


def test_a_ramp_of_equal_steps_does_not_move(lint):
    steps = "batch: {global: [{from: 0, size: 8192}, {from: 30, size: 8192}]}\n"
    assert lint(f"kilobatch: 1\nextends: goyal2017\n{steps}learning_rate: {{warmup: {{epochs: 1000up}}}}\n") == []


def test_a_decay_that_its_schedule_scales_with_the_batch_is_found(lint):
    moved = "batch: {global: 4096}\nschedules: {weight_decay: {kind: Constant, factor: 0.5}}\n"
    (finding,) = lint(f"kilobatch: 1\nextends: goyal2017\n{moved}")
    assert (finding.rule, finding.line) == ("decay-with-batch", 4)
