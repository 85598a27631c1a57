"""`evaluation.held_out` of a recipe and `validation` of a data set: counts, epochs, record and refusals."""

import json
from dataclasses import replace

import pytest
import yaml

from recipes.errors import RecipeError
from recipes.planning.timeline import timeline_of
from recipes.reading.open import open_dataset, open_recipe
from trainers.launch.vocabulary import vocabulary
from trainers.runs.run_folder import dataset_facts

HELD_OUT = "evaluation.held_out=0.1"
FACTS = "channels: 1\nreader: {kind: Digits}\nvalidation: {fraction: 0.1}\n"


def opened_again(write, opened):
    """A recipe and its data set opened from their resolved trees, as those in a run's folder are."""
    write(yaml.safe_dump(opened.dataset_tree), "run/dataset.yaml")
    recipe = write(yaml.safe_dump({**opened.tree, "dataset": "dataset.yaml"}), "run/recipe.yaml")
    return open_recipe(recipe, vocabulary=vocabulary())


def test_an_epoch_is_a_pass_over_the_samples_that_are_left(opened):
    whole, held_out = opened("epochs=3"), opened("epochs=3", HELD_OUT)
    assert (held_out.dataset.num_train, held_out.dataset.num_eval) == (1350, 150)
    timelines = [timeline_of(one.recipe, one.dataset) for one in (whole, held_out)]
    assert [made.num_updates for made in timelines] == [47, 43]  # of 96: 4500 / 96 and 4050 / 96, rounded up
    assert held_out.recipe.seed == whole.recipe.seed
    assert held_out.dataset_tree == whole.dataset_tree, "the facts of the data stay what they are"


def test_the_share_is_rounded_down_as_it_is_written(opened):
    for share, count in (("0.29", 435), ("0.001", 1), ("0.0019", 2), ("0.9", 1350)):  # 0.29 * 1500 < 435 as floats
        assert opened(f"evaluation.held_out={share}").dataset.num_eval == count


def test_an_assumed_share_may_be_taken_back(opened):
    """As `evaluate --split test` does; the key is younger, and is not in the recipe where it has its default."""
    taken_back = opened("assumed=[evaluation.held_out]", "evaluation.held_out=null")
    assert taken_back.recipe.assumed == ("evaluation.held_out",)
    with pytest.raises(RecipeError, match="there is no value at evaluation.heldout"):
        opened("assumed=[evaluation.heldout]")


def test_without_the_keys_nothing_new_is_recorded(opened, write):
    for one in (opened(), opened("evaluation.held_out=null")):
        assert "held_out" not in json.dumps(one.tree)
        assert "evaluation.held_out" not in one.origins
        assert "validation" not in {**one.dataset_tree, **dataset_facts(one.dataset)}


def test_a_run_opens_again_with_what_it_held_out(opened, write):
    before = opened(HELD_OUT)
    after = opened_again(write, before)
    assert after.tree["evaluation"] == before.tree["evaluation"]
    assert after.tree["evaluation"]["held_out"] == 0.1
    assert dataset_facts(after.dataset) == dataset_facts(before.dataset)
    assert dataset_facts(after.dataset)["validation"] == {"fraction": 0.1}
    named = replace(after.dataset, classes=tuple("abcdefghij"))  # as a newer version's file has it
    assert dataset_facts(named) == dataset_facts(before.dataset)
    by_class = replace(after.dataset, validation=replace(after.dataset.validation, by_class=True))
    assert dataset_facts(by_class) != dataset_facts(before.dataset)


def test_diff_names_it_among_what_moves_the_schedule(run, tmp_path):
    (tmp_path / "mine.yaml").write_text("kilobatch: 1\nextends: digits/baseline\nevaluation: {held_out: 0.1}\n")
    code, out = run("diff", "digits/baseline", "mine.yaml", "--json")
    assert code == 1
    assert "evaluation.held_out" in out
    code, shown = run("show", "mine.yaml")
    assert "held_out: 0.1" in shown


def test_shares_that_hold_out_nothing_or_everything_are_refused(problem_of, write):
    path = write()
    for share, words in (
        ("0", "is 0.0; must be above 0 and below 1"),
        ("1.0", "is 1.0; must be above 0 and below 1"),
        ("much", "is the text 'much'; must be a number or null"),
        ("0.0006", "is less than one of the 1,500 training samples of digits; hold out more"),
    ):
        problem = problem_of(path, f"evaluation.held_out={share}")
        assert problem.path == "evaluation.held_out"
        assert words in str(problem)


def test_a_batch_larger_than_what_is_left_is_refused(problem_of, write):
    problem = problem_of(write(), "evaluation.held_out=0.99", "batch.norm_span=1")
    assert "an update of 96 samples is more than the 15 of digits" in str(problem)


def test_a_data_set_may_hold_out_what_it_scores(write):
    write(FACTS, "own.yaml")
    dataset = open_dataset("own.yaml", vocabulary=vocabulary())
    assert (dataset.num_train, dataset.num_eval, dataset.num_classes) == (1350, 150, 10)
    opened = open_recipe(write(line_3="dataset: own.yaml"), vocabulary=vocabulary())
    assert opened.dataset_tree["validation"] == {"fraction": 0.1}
    assert dataset_facts(opened_again(write, opened).dataset) == {**dataset_facts(opened.dataset), "name": "own"}


def test_recipe_and_data_set_do_not_both_hold_out(problem_of, write):
    write(FACTS, "own.yaml")
    problem = problem_of(write(line_3="dataset: own.yaml"), HELD_OUT)
    assert problem.path == "evaluation.held_out"
    assert "what own scores is held out already: its file has `validation`, 0.1; remove one of both" in str(problem)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("validation: {fraction: 1}", r"validation.fraction: is 1.0; must be above 0 and below 1"),
        ("validation: 0.1", r"validation: is 0.1; must be"),
        (
            "validation: {fraction: 0.1}\nnum_eval: 100",
            r"num_eval: is 100; must be 149, 0.1 of it and num_train together",
        ),
        (
            "reader: {kind: ImageFolder, eval: null, channels: 1}\nnum_eval: 3",
            "validation: .*the reader has `eval: null`",
        ),
    ],
)
def test_wrong_shares_of_a_data_set_are_refused(write, lines, message):
    known = {"num_train": 1399, "num_classes": 2, "channels": 1}
    known |= {} if "num_eval" in lines else {"num_eval": 155}
    write("\n".join([*(f"{key}: {value}" for key, value in known.items()), lines]), "own.yaml")
    with pytest.raises(RecipeError, match=rf"own.yaml:\d+:\d+: {message}"):
        open_dataset("own.yaml", vocabulary=vocabulary())
