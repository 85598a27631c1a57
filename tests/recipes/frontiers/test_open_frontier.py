"""A frontier is refused before anything starts, with the place of what is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from recipes.errors import RecipeError
from recipes.frontiers.open_frontier import open_frontier
from recipes.reading.registry import names
from recipes.schema import FrontierGoal, Ladder
from trainers.launch.vocabulary import search_vocabulary

HEAD = """\
kilobatch: 1
recipe: digits/batch_256
goal: {accuracy: 0.9}
batches: [64, 256]
budget: {trials: 4}
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.5, log: true}}
"""
REFUSED = """
gaol: {accuracy: 0.9}
=> 7:1: gaol: is not a known key; did you mean goal?
goal: {accuracy: 90}
=> 3:18: goal.accuracy: is 90.0; must be in (0, 1]
goal: {accuracy: 0.9, error: 0.1}
=> 3:7: goal: FrontierGoal must have one of accuracy, error, epochs and updates, got accuracy and error
goal: {epochs: 0}
=> 3:16: goal.epochs: is 0.0; must be above 0 and finite
goal: {updates: 0}
=> 3:17: goal.updates: is 0; must be at least 1
batches: {from: 64, to: 32}
=> 4:25: batches.to: is 32; must be above from
batches: {from: 64, too: 256}
=> 4:21: batches.too: is not a known key; did you mean to?
batches: [64, 64]
=> 4:10: batches: is [64, 64]; must be different and at least 1
batches: [64, 1000000]
=> 4:10: fixed.batch.global: the recipe refuses this:
budget: {trials: 4, updates: 0}
=> 5:30: budget.updates: is 0; must be at least 1
budget: {trials: 4, epochs: 0}
=> 5:29: budget.epochs: is 0.0; must be above 0 and finite
space:
  learning_rate.referenec: {kind: Float, low: 0.1, high: 1}
=> 7:3: space.learning_rate.referenec: the recipe refuses this: is not a known key; did you mean reference?
seeds: 1
=> 7:8: seeds: is 1; must be 0 or at least 2
spacing: 1
=> 7:10: spacing: is 1.0; must be in (0, 1)
methods: {}
=> 7:10: methods: holds no methods
methods: {a/b: {fixed: {}}}
=> 7:16: methods.a/b: 'a/b' cannot name a folder
methods:
  sgd: {fixed: {optimizer.momentun: 0}}
=> 8:37: fixed.optimizer.momentun: the recipe refuses this: is not a known key
methods:
  momentum:
    space: {1 - optimizer.momentum: {kind: Float, low: 0.01, high: 2, log: true}}
=> 9:68: space.1 - optimizer.momentum.high: the recipe refuses this: optimizer.momentum
methods:
  momentum:
    fixed: {optimizer.momentum: 0.9}
    space: {1 - optimizer.momentum: {kind: Float, low: 0.01, high: 0.5, log: true}}
=> 9:13: fixed.optimizer.momentum: is given by optimizer.momentum of this search too; keep one
fixed: {batch.global: 512}
=> 7:9: fixed.batch.global: the frontier sets the batch; give `batches`
fixed: {stop_at: {accuracy: 0.9}}
=> 2:9: recipe: ends at its `stop_at`
accuracy_at: {epochs: [0]}
=> 7:23: accuracy_at.epochs: is [0.0]; must be above 0
accuracy_at: {epochs: [5, 30]}
=> 7:27: accuracy_at.epochs.1: is 30, and no trial is longer than 20 epochs; give less, or a larger `budget`
accuracy_at: {updates: [469, 470]}
=> 7:30: accuracy_at.updates.1: is 470, and no trial is longer than 469 updates
"""


def cases():
    text = ""
    for line in REFUSED.strip().splitlines():
        if line.startswith("=> "):
            yield pytest.param(text, line.removeprefix("=> "), id=text.splitlines()[-1].strip()[:40])
            text = ""
        else:
            text += f"{line}\n"


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def open_text(text, **how):
        Path("mine.yaml").write_text(text)
        return open_frontier("mine.yaml", vocabulary=search_vocabulary(), **how)

    return open_text


def with_key(text):
    """The head with a key in place of its own, or after it."""
    lines, key = HEAD.splitlines(keepends=True), text.partition(":")[0] + ":"
    own = [line for line in lines if line.startswith(key)]
    return HEAD.replace(own[0], text) if own else HEAD + text


@pytest.mark.parametrize(("text", "expected"), [*cases()])
def test_what_is_wrong_is_refused_at_its_place(opened, text, expected):
    with pytest.raises(RecipeError) as caught:
        opened(with_key(text))
    assert f"mine.yaml:{expected}" in str(caught.value)


@pytest.mark.parametrize("name", names("frontiers"))
def test_frontiers_of_the_library_open(name):
    assert open_frontier(name, vocabulary=search_vocabulary()).frontier.sizes


def test_an_error_is_strict_and_an_accuracy_is_not():
    assert FrontierGoal(accuracy=0.9).target <= 4500 / 5000
    for error in (0.01, 0.05, 0.07, 0.1, 0.13, 0.3):
        of_1000 = [right for right in range(1001) if right / 1000 >= FrontierGoal(error=error).target]
        assert of_1000[0] == 1000 - round(1000 * error) + 1, error


def test_ladders_go_up_to_their_end():
    assert Ladder(from_=16, to=16384).sizes == tuple(2**power for power in range(4, 15))
    assert Ladder(from_=10, to=1000, factor=10**0.5).sizes == (10, 32, 100, 316, 1000)


def test_a_point_is_a_search_of_its_batch(opened):
    text = HEAD.replace("batch_256", "baseline") + "methods: {sgd: {fixed: {optimizer.momentum: 0}}}\n"
    made = opened(text, overrides=["budget.updates=20", "budget.trials=6"])
    tree = made.search_tree("sgd", 64)
    assert tree["fixed"] == {"optimizer.momentum": 0, "batch.global": 64, "batch.norm_span": 32, "epochs": "20up"}
    assert tree["objective"] == {"metric": "updates_to", "target": 0.9, "spacing": 0.05}
    assert (tree["budget"], tree["confirm"]) == ({"trials": 6}, {"top": 1, "seeds": 3})
    assert made.longest("sgd", 64) == ("20up", 20)
    assert opened(HEAD).longest("recipe", 256) == (20.0, 118)


def test_a_goal_of_one_length_sets_that_of_all_trials(opened):
    made = opened(HEAD.replace("{accuracy: 0.9}", "{epochs: 6}"))
    assert made.search_tree("recipe", 64)["objective"] == {"metric": "accuracy"}
    assert made.longest("recipe", 64) == (6.0, 141)
    assert str(replace(made.frontier.goal, epochs=1)) == "the best accuracy after 1 epoch"
    assert opened(HEAD.replace("{accuracy: 0.9}", "{updates: 500}")).longest("recipe", 256) == ("500up", 500)
    with pytest.raises(RecipeError, match="budget: .*the goal has a length"):
        opened(HEAD.replace("{accuracy: 0.9}", "{epochs: 6}").replace("{trials: 4}", "{trials: 4, epochs: 6}"))


def test_norm_groups_are_the_nearest_that_divide_the_batch(opened):
    made = opened(HEAD.replace("batch_256", "baseline").replace("[64, 256]", "[8, 48, 64, 100]"))
    spans = {8: 8, 48: 24, 64: 32, 100: 25}  # of 32, as `recipes scale` makes them
    assert {batch: made.search_tree("recipe", batch)["fixed"]["batch.norm_span"] for batch in spans} == spans
    made = opened(HEAD + "fixed: {batch.norm_span: 128}\n")
    assert [made.search_tree("recipe", batch)["fixed"]["batch.norm_span"] for batch in (64, 256)] == [64, 128]


def test_an_optimizer_that_compares_norm_groups_has_two_in_every_batch_but_its_own(opened):
    text = HEAD.replace("batch_256", "baseline").replace("[64, 256]", "[40, 64]")
    made = opened(text + "fixed: {optimizer: {kind: AdaScale}, learning_rate.rule: none, learning_rate.per: 32}\n")
    assert [made.norm_span("recipe", batch) for batch in (32, 40, 64)] == [32, 20, 32]


def test_a_method_can_be_taken_away(opened):
    text = HEAD + "methods: {sgd: {fixed: {optimizer.momentum: 0}}, momentum: {}}\n"
    assert list(opened(text, overrides=["methods.sgd=null"]).frontier.all_methods) == ["momentum"]
