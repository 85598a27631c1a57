"""The page of a search."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from recipes.ranges import Categorical, Float
from recipes.schema import Budget, Search
from trainers.samplers import Random
from trainers.search.page import search_page_text, write_search_page

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


def trial(state, value, rate, word, **attributes):
    return create_trial(
        state=state,
        value=value,
        params={"rate": rate, "word": word},
        distributions={"rate": FloatDistribution(0.01, 1.0, log=True), "word": CategoricalDistribution(("a", MARKED))},
        intermediate_values={} if value is None else {1: value / 2, 2: value},
        user_attrs={"folder": "trials/trial-0000", "seconds": 61.0, **attributes},
    )


@pytest.fixture
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study(direction="maximize")
    made.add_trials(
        [
            trial(TrialState.COMPLETE, 0.9, 0.1, "a"),
            trial(TrialState.PRUNED, 0.2, 0.01, MARKED, reason="pruned at report 2 of 20"),
            trial(TrialState.FAIL, None, 1.0, "a", reason="the loss <is> not finite"),
        ]
    )
    return made


def test_every_trial_has_a_row_and_every_value_a_picture(study, tmp_path):
    text = write_search_page(tmp_path, study, SEARCH).read_text()
    assert "Trial 0 is best, with 90.00&nbsp;%." in text
    assert text.count("<tr>") == 1 + 3
    assert text.count("<figure>") == 2 + 2
    assert "pruned at report 2 of 20" in text
    assert "1 min 01 s" in text
    assert 'href="trials/trial-0000/report.html"' in text


def test_words_of_a_search_are_escaped(study):
    text = search_page_text(study, SEARCH)
    assert MARKED not in text
    assert "the loss &lt;is&gt; not finite" in text


def test_a_search_without_a_score_has_a_page():
    text = search_page_text(optuna.create_study(), SEARCH)
    assert "No trial is complete." in text
    assert "<figure>" not in text
