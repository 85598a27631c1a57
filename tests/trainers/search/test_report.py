"""The page of a search."""

import json
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from recipes.schema import Budget, Objective, Search
from recipes.search_space.ranges import Categorical, Float
from trainers.search.report import _figures, batch_and_rate, drawn_by_optuna, search_page_text, write_search_page
from trainers.search.samplers import Random

RATE = Float(low=0.01, high=1.0, log=True)
MARKED = "<b>x</b>"
SEARCH = Search(
    name="mine",
    title="Rates <and> words",
    recipe="digits/baseline",
    space={"rate": RATE, "word": Categorical(choices=("a", MARKED))},
    sampler=Random(),
    budget=Budget(trials=4),
)
BOTH = replace(SEARCH, objective=(Objective(), Objective(metric="device_hours", direction="minimize")))


def trial(state, values, rate, word, *, constraints=None, **attributes):
    single = values is not None and len(values) == 1
    return create_trial(
        state=state,
        values=values,
        params={"rate": rate, "word": word},
        distributions={"rate": FloatDistribution(0.01, 1.0, log=True), "word": CategoricalDistribution(("a", MARKED))},
        intermediate_values={1: values[0] / 2, 2: values[0]} if single else {},
        user_attrs={"folder": "trials/trial-0000", "seconds": 61.0, **attributes},
        constraints=constraints,
    )


@pytest.fixture
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study(direction="maximize")
    made.add_trials(
        [
            trial(TrialState.COMPLETE, [0.9], 0.1, "a"),
            trial(TrialState.PRUNED, [0.2], 0.01, MARKED, reason="pruned at report 2 of 20"),
            trial(TrialState.FAIL, None, 1.0, "a", reason="the loss <is> not finite"),
            trial(TrialState.COMPLETE, [0.95], 0.2, "a", constraints={"loss <= 1": 0.1}),
        ]
    )
    return made


def test_every_trial_has_a_row_and_every_value_a_picture(study, tmp_path):
    text = write_search_page(tmp_path, study, SEARCH).read_text()
    assert "Trial 0 is best, with 90.00&nbsp;%." in text
    assert text.count("<tr>") == 1 + 4
    assert text.count("<figure>") == 2 + 2
    assert "4 trials: 1 complete, 1 failed, 1 infeasible, 1 pruned; 0.0678 device-hours." in text
    assert "pruned at report 2 of 20" in text
    assert "<td>not loss &lt;= 1</td>" in text
    assert "<td>infeasible</td>" in text
    assert "1 min 01 s" in text
    assert 'href="trials/trial-0000/"' in text


def test_words_of_a_search_are_escaped(study):
    text = search_page_text(study, SEARCH)
    assert MARKED not in text
    assert "the loss &lt;is&gt; not finite" in text


def test_a_search_without_a_score_has_a_page():
    text = search_page_text(optuna.create_study(), SEARCH)
    assert "No trial is complete." in text
    assert "<figure>" not in text


def test_with_enough_trials_what_matters_is_drawn_by_optuna_and_leaves_no_style_behind(study):
    import matplotlib
    from matplotlib import pyplot

    for number in range(12):
        study.add_trial(trial(TrialState.COMPLETE, [number / 12], 0.01 * 1.4**number, ("a", MARKED)[number % 2]))
    before = dict(matplotlib.rcParams)
    text = search_page_text(study, SEARCH)
    assert text.count("<figure>") == 2 + 2 + 2
    assert "(PED-ANOVA)" in text
    assert "by the two values that matter most" in text
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def figures(study, search):
    with drawn_by_optuna():
        return list(_figures(study, search, None))


def test_the_history_has_every_trial_and_its_best_is_a_whole_one(study):
    """A run of fewer epochs (0.97) and an infeasible one (0.95) are never the best, and the first trial failed."""
    history = optuna.create_study(direction="maximize")
    history.add_trial(trial(TrialState.FAIL, None, 1.0, "a", reason="gone"))
    history.add_trial(trial(TrialState.COMPLETE, [0.97], 0.1, "a", rung={"whole": False}))
    history.add_trials(study.get_trials())
    (figure, _), (reports, _), *_ = figures(history, SEARCH)
    (axes,) = figure.axes
    (best,) = axes.lines
    assert [value for value in best.get_ydata() if np.isfinite(value)] == [0.9] * 4
    dots = {points.get_label(): len(points.get_offsets()) for points in axes.collections}
    assert dots == {"complete": 1, "infeasible": 1, "pruned": 1, "short": 1}
    assert sorted(line.get_linestyle() for line in reports.axes[0].lines) == ["-", "-", "-", "--"]


def test_importances_are_of_each_objective_in_its_own_direction():
    """The rate decides the accuracy, the more the better; the word decides the hours."""
    study = optuna.create_study(directions=["maximize", "minimize"])
    for number in range(40):
        values = [number // 2 / 20, number % 2 + number // 2 % 4 / 10]
        study.add_trial(trial(TrialState.COMPLETE, values, 0.01 * 1.12**number, ("a", MARKED)[number % 2]))
    drawn = [figure.axes[0] for figure, words in figures(study, BOTH) if "PED-ANOVA" in words]
    assert [axes.get_title(loc="left") for axes in drawn] == ["importance for accuracy", "importance for device-hours"]
    labels = [[label.get_text() for label in axes.get_yticklabels()] for axes in drawn]
    assert labels == [["word", "rate"], ["rate", "word"]]  # the largest last, which is on top


def test_several_objectives_have_a_front_and_a_table_of_it():
    study = optuna.create_study(directions=["maximize", "minimize"])
    for values in ([0.9, 3.0], [0.8, 1.0], [0.7, 2.0]):
        study.add_trial(trial(TrialState.COMPLETE, values, 0.1, "a"))
    study.add_trial(trial(TrialState.FAIL, None, 1.0, "a", reason="gone"))
    text = search_page_text(study, BOTH)
    assert "2 trials are beaten by no other one in everything." in text
    assert text.count("<tr>") == (1 + 2) + (1 + 4)
    assert text.count("<figure>") == 1 + 2
    assert "Not beaten in everything" in text


def test_rates_are_drawn_against_batches_where_these_differ(tmp_path):
    study = optuna.create_study(direction="maximize")
    for number, (batch, rate, score) in enumerate([(64, 0.1, 0.9), (64, 0.4, 0.8), (256, 0.4, 0.85)]):
        folder = f"trials/trial-{number}"
        study.add_trial(trial(TrialState.COMPLETE, [score], 0.1, "a", folder=folder))
        (tmp_path / folder).mkdir(parents=True)
        plan = {"segments": [{"global_batch_size": 32}, {"global_batch_size": batch}]}
        formula = {"reference": rate, "rule": "linear", "per": 32}
        run = {"plan": plan, "recipe": {"learning_rate": formula}}
        (tmp_path / folder / "run.yaml").write_text(json.dumps(run))
    space = {**SEARCH.space, "batch.global": Categorical(choices=(64, 256))}
    text = search_page_text(study, replace(SEARCH, space=space), folder=tmp_path)
    assert "The full rate of every trial at its batch" in text
    assert "full learning rate" in text
    assert "square root" in text


def test_a_rate_is_that_of_its_batch_before_warmup_and_schedule(tmp_path):
    """0.1 at 32 samples is 0.8 at the 256 to which the batch grows."""
    (tmp_path / "one").mkdir()
    plan = {"segments": [{"global_batch_size": 64}, {"global_batch_size": 256}]}
    recipe = {"learning_rate": {"reference": 0.1, "rule": "linear", "per": 32}}
    (tmp_path / "one" / "run.yaml").write_text(json.dumps({"plan": plan, "recipe": recipe}))
    complete = trial(TrialState.COMPLETE, [0.9], 0.1, "a", folder="one")
    assert batch_and_rate(complete, tmp_path) == (256, pytest.approx(0.8))
    assert batch_and_rate(complete, tmp_path / "elsewhere") is None
