"""What a recipe's keys mean once it is open: units, rules, defaults, origins, what is not built."""

import re
from operator import attrgetter

import pytest
import yaml

from lr_schedules import Constant, Cosine, GradualWarmup, Polynomial, Product
from recipes.diff.recipes import effects
from recipes.errors import RecipeError
from recipes.lint.check import lint_recipe
from recipes.planning.rates import full_rate_at, weight_decay_at
from recipes.reading.load import resolved_text
from recipes.reading.open import open_recipe
from recipes.reports.curves import recipe_curves
from recipes.schema import Augmentation, Evaluation, NormMomentum, Updater
from recipes.schema.vocabulary import Unbuilt
from trainers.augmentations.mixing import CutMix, Mixup
from trainers.launch.vocabulary import vocabulary

N = 1500
LONG = "{reference: 0.05, per: 32, schedule: {kind: Cosine}, warmup: {kind: GradualWarmup, epochs: 5, joins: %s}}"


def test_what_is_left_out_is_a_default_with_that_origin(opened):
    result = opened()
    assert result.recipe.learning_rate.schedule == Constant()
    assert result.recipe.augmentation == Augmentation()
    assert result.recipe.evaluation == Evaluation(
        every=1.0, norm_statistics="moving_average", norm_momentum=NormMomentum(keep=0.9, per="update")
    )
    assert result.recipe.updater == Updater(double_buffering=False)
    assert result.origins["evaluation.norm_momentum.keep"] == "default"
    assert result.origins["learning_rate.schedule.kind"] == "default"
    assert result.origins["model.width"] == "default"
    assert result.origins["epochs"] == "mine.yaml:5"


def test_every_value_of_the_resolved_tree_has_an_origin(opened):
    result = opened("seed=3", line_6="batch: {global: [{from: 0, size: 96}, {from: 3, size: 192}]}")
    read = yaml.safe_load(resolved_text(result.tree, result.origins))
    assert read == result.tree
    assert result.origins["seed"] == "command line"
    assert result.origins["batch.global.1.size"] == "mine.yaml:6"
    assert result.origins["batch.norm_span"].startswith("rule: the largest number up to 32")
    assert all(result.origins.values())


def test_resolved_text_opens_to_the_same_recipe(opened, write):
    before = opened(
        line_5="epochs: 0.1ksp",
        line_6="batch: {global: [{from: 0, size: 8}, {from: 2up, size: 16}]}",
        line_7="learning_rate: {reference: 0.05, per: 8, every: 1up, schedule: {kind: Polynomial}}",
    )
    text = resolved_text(before.tree, before.origins)
    after = open_recipe(write(text, "again.yaml"), vocabulary=vocabulary())
    assert after.recipe == before.recipe
    assert after.tree == before.tree


def test_norm_span_is_the_largest_up_to_32_that_divides_every_batch(opened):
    spans = {"96": 32, "100": 25, "7": 7, "37": 1, "[{from: 0, size: 96}, {from: 3, size: 120}]": 24}
    for batch, span in spans.items():
        assert opened(line_6=f"batch: {{global: {batch}}}").recipe.batch.norm_span.sizes == (span,)


# 16 updates of 96 reach epoch 1, the last one with 36 samples of the second epoch; 4 more of 192.
END = (16 * 96 + 4 * 192) / N
RAMP = "batch: {global: [{from: 0, size: 96}, {from: 1, size: 192}]}"
IN_UPDATES = "batch: {global: [{from: 0, size: 96}, {from: 10up, size: 192}, {from: 15up, size: 288}]}"
STEPS = "learning_rate: {reference: 0.05, per: 32, schedule: {kind: MultiStep, boundaries: [16up, 20up]}}"
AIMED = "learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 5, target_batch: 192}}"


@pytest.mark.parametrize(
    ("lines", "path", "value"),
    [
        ({"line_2": "title: unnamed"}, "name", "mine"),
        ({"line_6": IN_UPDATES}, "batch.global_.boundaries", (0.0, 960 / N, (960 + 5 * 192) / N)),
        (
            {"line_6": RAMP, "line_7": STEPS},
            "learning_rate.schedule.boundaries",
            (16 * 96 / N, (16 * 96 + 4 * 192) / N),
        ),
        ({"line_6": RAMP, "line_5": "epochs: 20up"}, "epochs", END),
        ({"line_6": RAMP, "line_7": AIMED}, "learning_rate.warmup.target_batch", 192),
        ({"line_7": "learning_rate: {reference: 0.05, rule: none}"}, "learning_rate.per", 96),
    ],
)
def test_updates_and_left_out_values_follow_from_the_rest_of_the_file(opened, lines, path, value):
    assert attrgetter(path)(opened(**lines).recipe) == value


def test_a_batch_that_grows_in_a_straight_line_is_its_steps(opened):
    """From 96 to 384 between 2 and 8: a step of 48 every epoch, none above the line."""
    line = "{from: 2, size: 96, until: 8, grow_to: 384, by: 48}"
    result = opened(line_6=f"batch: {{global: [{{from: 0, size: 48}}, {line}, {{from: 9, size: 480}}]}}")
    ramp = result.recipe.batch.global_
    assert ramp.boundaries == (0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    assert ramp.sizes == (48, 96, 144, 192, 240, 288, 336, 384, 480)
    for epoch in (2 + number * 6 / 97 for number in range(97)):
        assert 0 <= 96 + (384 - 96) * (epoch - 2) / 6 - ramp(epoch) < 48
    assert result.recipe.batch.norm_span.sizes == (24,)
    assert result.tree["batch"]["global"][1:3] == [{"from": 2, "size": 96}, {"from": 3, "size": 144}]
    assert result.origins["batch.global.2.size"] == "rule: the straight line of batch.global.1"
    assert result.origins["batch.global.0.size"] == result.origins["batch.global.8.from"] == "mine.yaml:6"


def test_a_straight_line_may_take_the_whole_run_and_its_resolved_text_is_the_same_recipe(opened, write):
    line = "{from: 0, size: 30, until: 1run, grow_to: 300, by: 30}"
    before = opened(line_6=f"batch: {{global: [{line}]}}")
    assert before.recipe.batch.global_.sizes == (*range(30, 300, 30),)  # 300 would begin where the run ends
    again = open_recipe(write(resolved_text(before.tree, before.origins), "again.yaml"), vocabulary=vocabulary())
    assert again.recipe == before.recipe
    assert again.tree == before.tree


def test_units_inside_nested_lists_and_schedules(opened):
    schedule = (
        "{kind: Product, factors: [{kind: PiecewiseLinear, points: [[0, 1], [0.5run, 0.1]]}, {kind: Polynomial}]}"
    )
    result = opened(line_7=f"learning_rate: {{reference: 0.05, per: 32, schedule: {schedule}}}")
    made = result.recipe.learning_rate.schedule
    assert isinstance(made, Product)
    assert made.factors[0].points == ((0.0, 1.0), (10.0, 0.1))
    assert made.factors[1] == Polynomial(epochs=20.0)


@pytest.mark.parametrize(("joins", "epochs"), [("multiply", 20.0), ("before", 15.0), ("over", 20.0)])
def test_a_schedule_without_length_fills_the_rest_of_the_run(opened, joins, epochs):
    result = opened(line_7=f"learning_rate: {LONG % joins}")
    assert result.recipe.learning_rate.schedule == Cosine(epochs=epochs)
    assert result.origins["learning_rate.schedule.epochs"] == "rule: the rest of the run"


@pytest.mark.parametrize(
    ("start", "factor"), [("reference", 1 / 3), ("0", 0.0), ("{rate: 0.03}", 0.2), ("{factor: 0.25}", 0.25)]
)
def test_warmup_starts_at_a_rate_or_a_factor(opened, start, factor):
    warmup = f"{{kind: GradualWarmup, epochs: 5, start: {start}}}"
    result = opened(line_7=f"learning_rate: {{reference: 0.05, per: 32, warmup: {warmup}}}")
    shape = result.recipe.learning_rate.warmup.shape
    assert (type(shape), shape.epochs, shape.start) == (GradualWarmup, 5.0, pytest.approx(factor))
    assert result.recipe.learning_rate.warmup.target_batch == 96
    assert result.tree["learning_rate"]["warmup"]["start"] == yaml.safe_load(start)


def test_evaluation_and_rate_may_be_read_every_update(opened):
    result = opened("evaluation.every=update", "learning_rate.every=2up")
    assert result.recipe.evaluation.every == "update"
    assert result.recipe.learning_rate.every == 2 * 96 / N


def test_what_is_not_built_is_accepted_by_its_name(opened):
    result = opened(
        "lacks=[Shampoo, RepeatedAugmentation, EMA]",
        "optimizer={kind: Shampoo, momentum: 0.9, trust: [1, 2]}",
        "augmentation.repeated_augmentation=3",
        "ema={half_life: 16}",
    )
    assert result.recipe.optimizer == Unbuilt(kind="Shampoo", fields={"momentum": 0.9, "trust": [1, 2]})
    assert result.tree["augmentation"]["repeated_augmentation"] == 3
    assert result.tree["ema"] == {"half_life": 16}


@pytest.mark.parametrize("value", ["high", "null", "[1]", "1", "-1", "true", "{kind: Cosine}"])
def test_a_coefficient_of_an_optimizer_that_is_not_built_may_be_anything(value, opened):
    keys = f"momentum: {value}, weight_decay: {value if value != '1' else '-1'}, no_decay: {value}, decay: times_rate"
    changes = ["lacks=[Sophia]", f"optimizer={{kind: Sophia, {keys}}}"]
    result = opened(*changes)
    assert recipe_curves(result.recipe).momentum is None
    assert weight_decay_at(result.recipe, 0.0) == 0.0
    assert "rate x decay / batch" not in effects(result)
    lint_recipe(result.path, vocabulary=vocabulary(), overrides=changes)


def test_schedule_cannot_be_lacking(opened, write, problem_of):
    path = write(line_7="learning_rate: {reference: 1, per: 1, schedule: {kind: Wave}}\nlacks: [Wave]")
    assert "no schedule called Wave" in problem_of(path).what


def test_data_set_beside_the_recipe_and_its_root(write, tmp_path):
    write("num_train: 999\nnum_eval: 3\nnum_classes: 2\nchannels: 1\nroot: pictures\n", "folder/few.yaml")
    path = write(line_3="dataset: few.yaml", name="folder/mine.yaml")
    dataset = open_recipe(path, vocabulary=vocabulary()).dataset
    assert (dataset.name, dataset.num_train, dataset.root) == ("few", 999, tmp_path / "folder" / "pictures")
    elsewhere = open_recipe(path, vocabulary=vocabulary(), data_root=tmp_path)
    assert elsewhere.dataset.root == tmp_path


def test_recipe_and_problem_can_be_sent_to_another_process(opened, write):
    import pickle

    from recipes.errors import RecipeError

    result = opened()
    assert pickle.loads(pickle.dumps(result.recipe)) == result.recipe
    with pytest.raises(RecipeError) as caught:
        open_recipe(write(line_5="epochs: 0"), vocabulary=vocabulary())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_left_out_nothing_is_mixed_and_nothing_repeated(opened):
    recipe = opened().recipe
    assert recipe.augmentation.mix == ()
    assert recipe.stream.repeats == 1


def test_mixes_and_repeats_are_read_in_order(opened):
    result = opened("augmentation.mix=[{kind: Mixup, alpha: 0.2}, {kind: CutMix, alpha: 1}]", "stream.repeats=3")
    assert result.recipe.augmentation.mix == (Mixup(alpha=0.2), CutMix(alpha=1.0))
    assert result.recipe.stream.repeats == 3
    assert result.tree["augmentation"]["mix"][1] == {"kind": "CutMix", "alpha": 1, "probability": 1.0}


def test_a_mix_that_is_not_built_is_named_in_lacks(opened):
    result = opened("augmentation.mix=[{kind: PuzzleMix, alpha: 1}]", "lacks=[PuzzleMix]")
    assert result.recipe.augmentation.mix == (Unbuilt(kind="PuzzleMix", fields={"alpha": 1}),)


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("exchange.wire=float16", "cluster.exchange=..."),
        ("wire=float16", "cluster.exchange.wire="),
        ("nodes=2", "cluster.nodes="),
    ],
)
def test_a_key_of_the_cluster_is_sent_there(override, place):
    with pytest.raises(RecipeError, match=f"it belongs to the cluster: .* take --set {re.escape(place)}"):
        open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=[override])


def test_a_key_that_another_kind_left_has_a_way_out(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("kilobatch: 1\nextends: digits/baseline\noptimizer: {kind: Adam, momentum: 0.9}\n")
    way_out = "`optimizer: {kind: Adam}` begins without it, and so does --set 'optimizer={...}'"
    with pytest.raises(RecipeError, match=f"3:25: optimizer.momentum: is not a known key; .*{re.escape(way_out)}"):
        open_recipe(file, vocabulary=vocabulary())


def test_a_mistyped_first_step_of_a_ramp_is_refused_at_its_key(tmp_path):
    file = tmp_path / "mine.yaml"
    steps = "[{frm: 0, size: 96}, {from: 1, size: 192}, {from: 2, size: 384}]"
    file.write_text(f"kilobatch: 1\nextends: digits/baseline\nbatch: {{global: {steps}}}\n")
    with pytest.raises(RecipeError, match=r":3:19: batch.global.0.frm: is not a known key; did you mean from"):
        open_recipe(file, vocabulary=vocabulary())


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


@pytest.mark.parametrize("rate", ["scale_with: initial", "rule: none", "rule: 0"])
def test_a_rate_that_does_not_follow_the_batch_needs_no_aim_of_its_warmup(opened, rate):
    moved = f"learning_rate: {{reference: 0.05, per: 32, {rate}, warmup: {{kind: GradualWarmup, epochs: 5}}}}"
    recipe = opened(line_6="batch: {global: [{from: 0, size: 96}, {from: 3, size: 192}]}", line_7=moved).recipe
    assert recipe.learning_rate.warmup.target_batch == 96
    assert full_rate_at(recipe, 4.9) == full_rate_at(recipe, 5)


def test_of_the_many_steps_of_a_line_inside_the_warmup_the_first_are_named(write, problem_of):
    problem = problem_of(
        write(
            line_6="batch: {global: [{from: 0, size: 96, grow_to: 1440, until: 10, by: 96}]}",
            line_7="learning_rate: {reference: 0.05, per: 32, warmup: {kind: GradualWarmup, epochs: 10}}",
        )
    )
    assert problem.what.count(",") == 8
    assert problem.what.endswith(" and 5 more, inside the warmup of 10")


def test_warmup_before_a_decay_leaves_it_some_time(write, problem_of):
    problem = problem_of(
        write(
            line_7="learning_rate: {reference: 0.05, per: 32, schedule: {kind: Cosine}, "
            "warmup: {kind: GradualWarmup, epochs: 20, joins: before}}"
        )
    )
    assert (problem.line, problem.path) == (7, "learning_rate.warmup.epochs")
    assert "leaves Cosine no time" in problem.what


def test_warmup_before_a_constant_rate_may_take_the_whole_run(opened):
    opened(line_7="learning_rate: {reference: 1, per: 32, warmup: {kind: GradualWarmup, epochs: 20, joins: before}}")


@pytest.mark.parametrize(
    ("line", "text", "way_out"),
    [
        (4, "model: yes", "give the model its `kind`"),
        (8, "optimizer: None", "give the optimizer its `kind`"),
        (7, "learning_rate: {reference: 0.05, per: 32, warmup: Yes}", "give the warmup its `kind`"),
        (10, "stream: None", "must be `key: value` pairs"),
        (10, "weight_average: None", "write `null`"),
    ],
)
def test_null_and_true_are_proposed_only_where_they_may_stand(write, problem_of, line, text, way_out):
    assert problem_of(write(**{f"line_{line}": text})).way_out == way_out
