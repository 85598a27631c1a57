"""The warmup of SGD where a recipe is scaled up: added unless the schedule rises by itself."""

import pytest

from recipes.lint import lint_recipe
from recipes.planning.rates import learning_rate_at
from trainers.launch.vocabulary import vocabulary

BASE = "kilobatch: 1\nextends: goyal2017/256\nlearning_rate: "
STAIRS = "{kind: SlowStart, boundaries: [1, 3, 5, 30], factors: [0.1, 0.25, 0.5, 1, 0.1]}"
DOUBLED = "{kind: MultiStep, boundaries: [1, 2, 3, 4, 5], factor: 2}"


def points(text):
    return f"{{kind: PiecewiseLinear, points: {text}}}"


@pytest.mark.parametrize(
    ("schedule", "until"),
    [
        (STAIRS, "5"),
        (f"{{kind: Product, factors: [{{kind: Constant, factor: 0.03125}}, {DOUBLED}]}}", "5"),
        (points("[[0, 0.1], [2, 1], [90, 0]]"), "2"),
    ],
)
def test_a_schedule_that_rises_by_itself_gets_no_warmup_on_top(schedule, until, scale):
    made, opened = scale("mine.yaml", 8192, text=f"{BASE}{{schedule: {schedule}}}\n")
    assert opened.recipe.learning_rate.warmup is None
    (change,) = [change for change in made.changes if change.key == "learning_rate.warmup"]
    assert change.reason.endswith(f"until epoch {until}")


@pytest.mark.parametrize(
    "schedule",
    [
        points("[[0, 0.9], [40, 1], [90, 0]]"),  # hardly rises
        points("[[0, 0.1], [0.1, 1], [90, 0]]"),  # within a few updates
        points("[[0, 0.4], [40, 1], [90, 0]]"),  # from 12.8 times the rate of batch 256
        f"{{kind: Product, factors: [{{kind: Cosine}}, {points('[[0, 0.5], [45, 1], [90, 0.5]]')}]}}",
    ],
)
def test_a_rise_that_lint_does_not_take_for_a_warmup_gets_one(schedule, scale):
    made, opened = scale("mine.yaml", 8192, text=f"{BASE}{{schedule: {schedule}}}\n")
    assert opened.recipe.learning_rate.warmup.shape.epochs == 5
    assert learning_rate_at(opened.recipe, 0.0) <= 0.1
    assert not lint_recipe(made.file, vocabulary=vocabulary())


def test_a_new_warmup_does_not_end_at_a_step_up(scale):
    steps = "{kind: SlowStart, boundaries: [2, 60], factors: [0.8, 1, 0.1]}"
    _, opened = scale("mine.yaml", 8192, text=f"{BASE}{{schedule: {steps}}}\n")
    assert opened.recipe.learning_rate.warmup.shape.epochs == 5


@pytest.mark.parametrize(("every", "read"), [("5ep", "update"), ("20ep", "update"), ("1ep", 1)])
def test_a_rate_that_is_read_too_seldom_for_a_new_warmup_is_read_at_every_update(every, read, scale, change_of):
    made, opened = scale("mine.yaml", 8192, text=f"{BASE}{{every: {every}, schedule: {{kind: Cosine}}}}\n")
    assert opened.recipe.learning_rate.every == read
    assert learning_rate_at(opened.recipe, 4.0) == pytest.approx(2.58, rel=0.01)  # 0.1 + 3.1 * 4 / 5
    if read == "update":
        assert change_of(made, "learning_rate.every")[1] == "update"
    assert not lint_recipe(made.file, vocabulary=vocabulary())


def test_lambs_shorter_warmup_is_not_read_once(scale):
    text = "kilobatch: 1\nextends: you2019\nlearning_rate: {every: 1ep}\n"
    made, opened = scale("mine.yaml", 512, text=text)
    formula = opened.recipe.learning_rate
    assert (formula.warmup.shape.epochs, formula.every) == (pytest.approx(0.3125, rel=1e-3), "update")
    assert not lint_recipe(made.file, vocabulary=vocabulary())


@pytest.mark.parametrize(
    ("keys", "epochs"),
    [
        ("epochs: 2\nlearning_rate: {schedule: {kind: Cosine}}\n", 1),
        ("learning_rate: {schedule: {boundaries: [3, 60, 80]}}\n", 3),
    ],
)
def test_lint_and_scale_write_the_same_new_warmup(keys, epochs, scale, tmp_path, change_of):
    made, _ = scale("mine.yaml", 8192, text=f"kilobatch: 1\nextends: goyal2017/256\n{keys}")
    assert change_of(made, "learning_rate.warmup")[1]["epochs"] == epochs
    (tmp_path / "large.yaml").write_text("kilobatch: 1\nextends: mine.yaml\nbatch: {global: 8192}\n")
    findings = {finding.rule: finding.way_out for finding in lint_recipe("large.yaml", vocabulary=vocabulary())}
    assert f"GradualWarmup, epochs: {epochs}," in findings["no-warmup"]
    assert not [each.rule for each in lint_recipe(made.file, vocabulary=vocabulary()) if "warmup" in each.rule]


def test_a_new_warmup_does_not_end_after_the_schedules_first_step(scale, change_of):
    keys = "learning_rate: {schedule: {boundaries: [640587sp, 60, 80]}}"  # at 0.50000273 epochs
    made, opened = scale("mine.yaml", 8192, text=f"kilobatch: 1\nextends: goyal2017/256\n{keys}\n")
    formula = opened.recipe.learning_rate
    assert formula.warmup.shape.epochs == 0.5 < formula.schedule.boundaries[0]
    (change,) = [change for change in made.changes if change.key == "learning_rate.warmup"]
    assert "up to the schedule's first step down" in change.reason
    assert "warmup-past-decay" not in [each.rule for each in lint_recipe(made.file, vocabulary=vocabulary())]
