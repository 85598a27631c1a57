"""A search is refused before anything starts, with the place of what is wrong."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from recipes.errors import RecipeError
from recipes.reading.registry import names
from recipes.search_space.open_search import open_search
from trainers.launch.vocabulary import search_vocabulary
from trainers.metrics import MacroF1

HEAD = """\
kilobatch: 1
recipe: digits/batch_256
sampler: {kind: RandomSampler}
budget: {trials: 6}
"""
SPACE = "space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.5, log: true}}\n"
OWN = "enqueue: [recipe, {learning_rate.reference: 0.1}]\n"

CONDITIONAL = "space:\n  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Lars]}\n"
RATE = "  optimizer.trust_coefficient: {kind: Float, low: 1e-4, high: 1e-2, when: {optimizer.kind: [Lars]}}\n"
REFUSED = """
# Keys and values of a search
space: {}
=> 5:8: space: holds no paths
space:
  learning_rate.warmup.epochs: {kind: Int, low: 1, high: 50}
=> 6:58: space.learning_rate.warmup.epochs.high: the recipe refuses this: 50 is longer than the run, 20; shorten the
space:
  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Momentum]}
=> 6:62: space.optimizer.kind.choices.1: the recipe refuses this: there is no optimizer called Momentum; did you mean
space:
  seed: {kind: Int, low: 3, high: 3}
=> 6:35: space.seed.high: is 3; must be above low
fixed:
  epochs: 0
=> 7:11: fixed.epochs: the recipe refuses this:
fixed: {learning_rate.reference: 0.1}
=> 6:9: fixed.learning_rate.reference: is given by learning_rate.reference of this search too
space: {1 - optimizer.momentum: {kind: Categorical, choices: [0.1, none]}}
=> 5:9: space.1 - optimizer.momentum: takes numbers only; write optimizer.momentum, without `1 - `
fixed: {1 - optimizer.momentum: true}
=> 6:9: fixed.1 - optimizer.momentum: takes numbers only; write optimizer.momentum, without `1 - `
space: {1 - loss.kind: {kind: Float, low: 0.1, high: 0.5}}
enqueue: [recipe]
=> 5:9: space.1 - loss.kind: the recipe refuses this: loss has no `kind`
space: {learning_rate.warmup.epochs: {kind: Int, low: 4, high: 9}}
fixed: {epochs: 3}
=> 5:55: space.learning_rate.warmup.epochs.low: the recipe refuses this: 4 is longer than the run, 3; shorten the
space: {evaluation.held_out: {kind: Float, low: 0.1, high: 0.5}}
=> 5:9: space.evaluation.held_out: cannot be part of a search: it decides by which samples trials are scored; `fixed`
fixed: {evaluation.every: 1}
=> 6:9: fixed.evaluation.every: cannot be part of a search: a trial is evaluated at its `reports`
enqueue: [recipe, {learning_rate.reference: 0.9}]
=> 6:45: enqueue.1.learning_rate.reference: 0.9 of learning_rate.reference is outside its range
enqueue: [{epochs: 3}]
=> 6:20: enqueue.0.epochs: epochs is not in the space
objective: {metric: macro_f1}
=> 6:21: objective.metric: 'macro_f1' is no score of an evaluation; write one of accuracy, loss, train_loss,
objective: [{metric: accuracy}, {metric: device_hour}]
=> 6:42: objective.1.metric: 'device_hour' is no score of an evaluation
constraints: [{metric: acuracy, at_least: 0.5}]
=> 6:24: constraints.0.metric: 'acuracy' is no score of an evaluation
constraints: [{metric: updates_to, at_most: 100}]
=> 6:24: constraints.0.metric: is updates_to; must be a score or device_hours
objective: {metric: loss, higher_is_better: true}
=> 6:45: objective.higher_is_better: is True; must be null for loss
n_trials: 6
=> 6:1: n_trials: is not a known key; it belongs one level down: budget.trials
space: {epochs: {low: 1, high: 9}}
=> 5:17: space.epochs: has no `kind`; give the range its `kind`: Categorical or Float or Int
space: {1-optimizer.momentum: {kind: Float, low: 0.1, high: 0.5}}
=> 5:9: space.1-optimizer.momentum: is no path of a recipe; write 1 - optimizer.momentum, with a blank on each side
recipe: digits/batch_257
=> 2:9: recipe: there is no recipe called 'digits/batch_257'
recipe: gone.yaml
=> 2:9: recipe: there is no file gone.yaml
objective: {metric: updates_to, target: 90}
=> 6:41: objective.target: is 90.0; must be an accuracy in (0, 1] for updates_to
objective: {metric: epochs_to, target: 0.9, spacing: 0.1}
=> 6:54: objective.spacing: is 0.1; must be in (0, 1), and null but for updates_to
objective: {metric: updates_to, target: 0.9, at_most: 5}
=> 6:55: objective.at_most: is 5; must be at least 1, and null without spacing
objective: {metric: accuracy, target: 0.9}
=> 6:39: objective.target: is 0.9; must be null for accuracy
objective: [{metric: accuracy}, {metric: accuracy}]
=> 6:12: objective: is ['accuracy', 'accuracy']; must name each metric once
objective: [{metric: accuracy}, {metric: loss}]
confirm: {top: 3}
=> 6:12: objective: is not possible; must be one where there is a target, `confirm` or `patience`
rungs: {at: [3, 1]}
=> 6:13: rungs.at: is [3, 1]; must be reports in ascending order, from 1
rungs: {at: [0]}
=> 6:13: rungs.at: is [0]; must be reports in ascending order, from 1
rungs: {at: []}
=> 6:13: rungs.at: is []; must be reports in ascending order, from 1
rungs: {at: [20]}
=> 6:8: rungs: is 20; must lie before the last report, 20
rungs: {at: [1, 2]}
=> 4:9: budget: is 6; must be 9 trials or more to pass all rungs
rungs: {at: [1]}
seeds_per_trial: 2
=> 6:8: rungs: is not possible; must be null where there are several seeds a trial, or `patience`
rungs: {at: [1]}
objective: {metric: updates_to, target: 0.9}
=> 6:8: rungs: is not possible; must be null unless the objective is one score at the end
budget: {trials: 6, device_hours: 0}
=> 4:35: budget.device_hours: is 0.0; must be > 0
constraints: [{metric: accuracy}]
=> 6:15: constraints.0: give `at_most` or `at_least`
constraints: [{value: epochs ** 2, at_most: 3}]
=> 6:23: constraints.0.value: is epochs ** 2; must be paths and numbers: Pow is none of + - * /
constraints: [{value: optimizer.momentun, at_most: 3}]
=> 6:23: constraints.0.value: the recipe has no value at optimizer.momentun; name a path
constraints: [{value: optimizer.kind, at_most: 3}]
=> 6:23: constraints.0.value: optimizer.kind is 'MomentumSGD', which is no number
pruner: null
=> 6:1: pruner: is not a known key
reports: 0
=> 6:10: reports: is 0; must be at least 1
name: a/b
=> 6:7: name: 'a/b' cannot name a folder
# Conditions: below a space that has optimizer.kind
  epochs: {kind: Int, low: 5, high: 9, when: {optimizer.sort: [Lars]}}
=> 7:47: space.epochs.when.optimizer.sort: optimizer.sort is not in the space; name another path
  epochs: {kind: Int, low: 5, high: 9, when: {optimizer.kind: [MomentumSGD, Adam]}}
=> 7:77: space.epochs.when.optimizer.kind.1: "Adam" is never the value of optimizer.kind
  epochs: {kind: Int, low: 5, high: 9, when: {optimizer.kind: []}}
=> 7:63: space.epochs.when.optimizer.kind: holds no values
  epochs: {kind: Int, low: 5, high: 9, when: {seed: [1]}}
  seed: {kind: Int, low: 0, high: 3, when: {epochs: [5]}}
=> 7:40: space.epochs.when: depends on itself; remove one of these conditions
  loss.label_smoothing: {kind: Float, low: 0.0, high: 0.2}
  epochs: {kind: Int, low: 5, high: 9, when: {loss.label_smoothing: [0.0]}}
=> 8:47: space.epochs.when.loss.label_smoothing: loss.label_smoothing can be any number
  optimizer.trust_coefficient: {kind: Float, low: 1e-4, high: 1e-2, when: {optimizer.kind: [MomentumSGD, Lars]}}
=> 7:3: space.optimizer.trust_coefficient: the recipe refuses this: is not a known key with optimizer.kind
  optimizer.trust_coefficient: {kind: Float, low: 1e-4, high: 1e-2, when: {optimizer.kind: [Lars]}}
enqueue: [{optimizer.kind: MomentumSGD, optimizer.trust_coefficient: 1e-3}]
=> 8:70: enqueue.0.optimizer.trust_coefficient: a trial has optimizer.trust_coefficient only with others; give
"""


@pytest.fixture
def opened(write):
    return lambda text: open_search(write(text).name, vocabulary=search_vocabulary())


def test_searches_of_the_library_open():
    for name in names("searches"):
        assert open_search(name, vocabulary=search_vocabulary()).search.space


ADAM_OR_LAMB = """\
space:
  optimizer.kind: {kind: Categorical, choices: [Adam, Lamb]}
  optimizer.beta2: {kind: Float, low: 0.9, high: 0.99, when: {optimizer.kind: [Lamb]}}
  learning_rate.reference: {kind: Float, low: 0.001, high: 0.01}
"""


def test_fixed_values_that_are_valid_only_with_the_space_are_tried_with_its_first_ends(opened):
    """MomentumSGD, the recipe's own, has no beta1."""
    result = opened(f"{HEAD}{ADAM_OR_LAMB}fixed: {{optimizer.beta1: 0.8}}\n")
    assert result.valid_point == {"optimizer.kind": "Adam", "learning_rate.reference": 0.001}
    assert result.base.tree["optimizer"]["beta1"] == 0.8
    assert opened(f"{HEAD}{ADAM_OR_LAMB}fixed: {{epochs: 9}}\n").valid_point == {}


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("fixed: {optimizer.beta3: 0.8}\n", "9:26: fixed.optimizer.beta3: the recipe refuses this: is not a known key"),
        ("fixed: {optimizer.beta1: 0.8}\nenqueue: [recipe]\n", "10:11: enqueue.0: the recipe is not valid with `fix"),
        ("fixed: {optimizer.trust_coefficient: 0.1}\n", "9:38: fixed.optimizer.trust_coefficient: the recipe refuses"),
    ],
)
def test_fixed_values_that_are_not_valid_with_the_whole_space_are_refused(opened, more, problem):
    with pytest.raises(RecipeError) as refused:
        opened(f"{HEAD}{ADAM_OR_LAMB}{more}")
    assert str(refused.value.problems[0]).startswith(f"mine.yaml:{problem}")


def test_what_is_left_out_is_filled_in_and_fixed_values_are_in_the_recipe(opened):
    text = HEAD.replace("sampler: {kind: RandomSampler}\n", "") + SPACE + OWN
    result = opened(text + "fixed: {epochs: 3, learning_rate.warmup.epochs: 1}\n")
    search, recipe = result.search, result.base.recipe
    assert (search.name, search.ranks_per_trial, search.reports, search.retries) == ("mine", 1, 20, 2)
    assert (search.objective.metric, search.objective.direction) == ("accuracy", "maximize")
    assert (type(search.sampler).__name__, result.tree["sampler"]["n_startup_trials"]) == ("TPESampler", 10)
    assert result.tree["space"]["learning_rate.reference"]["step"] is None
    assert (recipe.learning_rate.reference, recipe.epochs) == (0.05, 3)
    assert result.enqueued == ({"learning_rate.reference": 0.05}, {"learning_rate.reference": 0.1})


def cases():
    """(text of a search, its first problem): rows replace those of `HEAD` with their key, or follow `SPACE`."""
    rows = []
    for row in filter(None, REFUSED.splitlines()):
        if row.startswith("=> "):
            lines = {line.partition(":")[0]: line for line in HEAD.splitlines()}
            lines |= {line.partition(":")[0]: line for line in rows if line.partition(":")[0] in lines}
            more = [line for line in rows if line not in lines.values()]
            space = "" if more[:1] and more[0].startswith("space") else SPACE
            text = "\n".join([*lines.values(), CONDITIONAL if more[:1] and more[0][0] == " " else space])
            yield pytest.param(text + "\n".join(more), row[3:], id=" ".join(rows))
            rows = []
        elif not row.startswith("#"):
            rows.append(row)


def test_the_momentum_of_the_recipe_at_the_end_of_its_range_can_be_tried_first(opened):
    """1 - 0.9 is 0.09999999999999998."""
    text = HEAD + "space: {1 - optimizer.momentum: {kind: Float, low: 0.1, high: 0.5}}\nenqueue: [recipe]\n"
    assert opened(text).enqueued == ({"1 - optimizer.momentum": 0.1},)


@pytest.mark.parametrize(("text", "problem"), [*cases()])
def test_refused_at_its_position(opened, text, problem):
    with pytest.raises(RecipeError) as refused:
        opened(text)
    assert str(refused.value.problems[0]).startswith(f"mine.yaml:{problem}")


def test_a_recipe_beside_the_search_is_found_from_anywhere_with_its_own_problems(opened, write, tmp_path, monkeypatch):
    text = HEAD.replace("digits/batch_256", "own.yaml") + SPACE
    write("kilobatch: 1\nextends: digits/batch_256\nepochs: no\n", "own.yaml")
    with pytest.raises(RecipeError, match=r"own\.yaml:3:9: epochs: "):
        opened(text)
    write("kilobatch: 1\nextends: digits/batch_256\nstop_at: {accuracy: 0.9}\nepochs: 7\n", "own.yaml")
    with pytest.raises(RecipeError, match="recipe: ends at its `stop_at`"):
        opened(text)
    opened(text + "fixed: {stop_at: null}\n")
    monkeypatch.chdir("/")
    recipe = open_search(tmp_path / "mine.yaml", vocabulary=search_vocabulary()).base.recipe
    assert (recipe.epochs, recipe.stop_at) == (7, None)


@dataclass(frozen=True, kw_only=True)
class CalibrationError:
    higher_is_better: ClassVar[bool] = False


def test_a_metric_of_the_recipe_says_which_of_its_values_are_better_unless_the_search_does(write):
    words = replace(search_vocabulary(), metrics={"CalibrationError": CalibrationError, "MacroF1": MacroF1})

    def direction(objective):
        fixed = "fixed: {evaluation.metrics: [{kind: CalibrationError}, {kind: MacroF1}]}\n"
        path = write(HEAD + SPACE + fixed + f"objective: {objective}\n").name
        return [it.direction for it in open_search(path, vocabulary=words).search.objectives]

    assert direction("[{metric: macro_f1}, {metric: calibration_error}]") == ["maximize", "minimize"]
    assert direction("{metric: calibration_error}") == ["minimize"]
    assert direction("{metric: calibration_error, higher_is_better: true}") == ["maximize"]
    assert direction("[{metric: macro_f1, higher_is_better: false}, {metric: loss}]") == ["minimize", "minimize"]


def test_a_range_is_tried_with_the_values_that_it_needs_and_may_have_a_fixed_value_for_all_other_trials(opened):
    """MomentumSGD, the recipe's own, has no trust coefficient, and its trial none of these values."""
    smoothing = "  loss.label_smoothing: {kind: Float, low: 0.0, high: 0.2, when: {optimizer.kind: [Lars]}}\n"
    result = opened(HEAD + CONDITIONAL + RATE + smoothing + "fixed: {loss.label_smoothing: 0.1}\nenqueue: [recipe]\n")
    assert result.search.space["optimizer.trust_coefficient"].when == {"optimizer.kind": ("Lars",)}
    assert result.enqueued == ({"optimizer.kind": "MomentumSGD"},)
    assert result.base.recipe.loss.label_smoothing == 0.1
