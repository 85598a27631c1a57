"""Spaces some of whose ranges belong to some trials only."""

from pathlib import Path

import pytest

from recipes.errors import RecipeError
from recipes.search_space.open_search import open_search
from recipes.search_space.ranges import Categorical, Float, Int, combinations, condition_values, is_active, suggested
from trainers.launch.vocabulary import search_vocabulary

HEAD = """\
kilobatch: 1
recipe: digits/batch_256
sampler: {kind: Random}
budget: {trials: 6}
space:
  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Lars]}
"""
RATE = (
    "  optimizer.trust_coefficient: {kind: Float, low: 1e-4, high: 1e-2, log: true, when: {optimizer.kind: [Lars]}}\n"
)
SPACE = {
    "depth": Int(low=1, high=2, when={"word": ("b", "c")}),
    "word": Categorical(choices=("a", "b", "c")),
    "rate": Float(low=0.0, high=1.0, when={"depth": (2,)}),
}


class Lowest:
    """Stands for Optuna's trial: the first choice and the lowest number, but for what is given."""

    def __init__(self, **given):
        self.given, self.requests = given, []

    def _value(self, name, lowest):
        self.requests.append(name)
        return self.given.get(name, lowest)

    def suggest_float(self, name, low, high, **_):
        return self._value(name, low)

    def suggest_int(self, name, low, high, **_):
        return self._value(name, low)

    def suggest_categorical(self, name, choices):
        return self._value(name, choices[0])


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, {"word": "a"}),
        ({"word": "c"}, {"word": "c", "depth": 1}),
        ({"word": "b", "depth": 2}, {"word": "b", "depth": 2, "rate": 0.0}),
    ],
)
def test_a_trial_is_asked_for_what_it_has_and_in_the_order_of_the_conditions(given, values):
    trial = Lowest(**given)
    assert suggested(SPACE, trial) == values
    assert trial.requests == list(values)


def test_combinations_hold_each_trial_once():
    result = list(combinations(SPACE, 2))
    assert result == [
        {"word": "a"},
        {"word": "b", "depth": 1},
        *({"word": "b", "depth": 2, "rate": rate} for rate in (0.0, 1.0)),
        {"word": "c", "depth": 1},
        *({"word": "c", "depth": 2, "rate": rate} for rate in (0.0, 1.0)),
    ]


def test_circumstances_are_every_combination_of_the_named_values_and_what_these_need():
    assert condition_values(SPACE, "word") == [{}]
    assert condition_values(SPACE, "depth") == [{"word": "b"}, {"word": "c"}]
    assert condition_values(SPACE, "rate") == [{"word": "b", "depth": 2}]


def test_true_is_not_one():
    space = {"flag": Categorical(choices=(True, 1)), "more": Int(low=1, high=2, when={"flag": (1,)})}
    assert is_active(space, "more", {"flag": 1})
    assert not is_active(space, "more", {"flag": True})


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def open_text(text):
        Path("mine.yaml").write_text(text)
        return open_search("mine.yaml", vocabulary=search_vocabulary())

    return open_text


def test_a_range_is_tried_on_the_recipe_with_the_values_that_it_needs(opened):
    """MomentumSGD, the recipe's own, has no trust coefficient."""
    result = opened(HEAD + RATE)
    assert result.search.space["optimizer.trust_coefficient"].when == {"optimizer.kind": ("Lars",)}


def test_the_recipes_own_values_are_those_of_a_trial_like_it(opened):
    assert opened(HEAD + RATE + "enqueue: [recipe]\n").enqueued == ({"optimizer.kind": "MomentumSGD"},)


def test_a_conditional_range_may_have_a_fixed_value_for_all_other_trials(opened):
    text = HEAD + "  loss.label_smoothing: {kind: Float, low: 0.0, high: 0.2, when: {optimizer.kind: [Lars]}}\n"
    assert opened(text + "fixed: {loss.label_smoothing: 0.1}\n").base.recipe.loss.label_smoothing == 0.1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "  epochs: {kind: Int, low: 5, high: 9, when: {optimizer.sort: [Lars]}}\n",
            "mine.yaml:7:47: space.epochs.when.optimizer.sort: optimizer.sort is not in the space; name another path",
        ),
        (
            "  epochs: {kind: Int, low: 5, high: 9, when: {optimizer.kind: [MomentumSGD, Adam]}}\n",
            'mine.yaml:7:77: space.epochs.when.optimizer.kind.1: "Adam" is never the value of optimizer.kind',
        ),
        (
            "  epochs: {kind: Int, low: 5, high: 9, when: {optimizer.kind: []}}\n",
            "mine.yaml:7:63: space.epochs.when.optimizer.kind: holds no values",
        ),
        (
            "  epochs: {kind: Int, low: 5, high: 9, when: {seed: [1]}}\n"
            "  seed: {kind: Int, low: 0, high: 3, when: {epochs: [5]}}\n",
            "mine.yaml:7:40: space.epochs.when: depends on itself; remove one of these conditions",
        ),
        (
            "  loss.label_smoothing: {kind: Float, low: 0.0, high: 0.2}\n"
            "  epochs: {kind: Int, low: 5, high: 9, when: {loss.label_smoothing: [0.0]}}\n",
            "mine.yaml:8:47: space.epochs.when.loss.label_smoothing: loss.label_smoothing can be any number",
        ),
        (
            RATE.replace("[Lars]", "[MomentumSGD, Lars]"),
            "mine.yaml:7:3: space.optimizer.trust_coefficient: the recipe refuses this: is not a known key with "
            'optimizer.kind "MomentumSGD"',
        ),
        (
            RATE + "enqueue: [{optimizer.kind: MomentumSGD, optimizer.trust_coefficient: 1e-3}]\n",
            "mine.yaml:8:70: enqueue.0.optimizer.trust_coefficient: a trial has optimizer.trust_coefficient only with "
            'others; give optimizer.kind "Lars" beside it',
        ),
        (
            RATE + "enqueue: [{optimizer.trust_coefficient: 1e-3}]\n",
            "mine.yaml:8:41: enqueue.0.optimizer.trust_coefficient: a trial has optimizer.trust_coefficient only",
        ),
    ],
)
def test_refused_at_its_place(opened, text, problem):
    with pytest.raises(RecipeError) as refused:
        opened(HEAD + text)
    assert str(refused.value.problems[0]).startswith(problem)
