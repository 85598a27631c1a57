"""The page of a search."""

import io
import math
import re
import time
from dataclasses import replace
from datetime import datetime

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from rich.console import Console

from recipes.schema import Objective
from recipes.search_space.ranges import Categorical, Float, Int
from trainers.search.page import search_charts, write_search_page
from trainers.search.results import Confirmed, row_of
from trainers.search.status import Display
from trainers.search.study import begun, best_trials

RATE = Float(low=0.01, high=1.0, log=True)
MARKED = "<b>x</b>"
SPACE = {"rate": RATE, "word": Categorical(choices=("a", MARKED))}
BOTH = (Objective(), Objective(metric="device_hours"))


def trial(state, values, rate, word, *, constraints=None, reports=None, **attributes):
    single = values is not None and len(values) == 1
    return create_trial(
        state=state,
        values=values,
        params={"rate": rate, "word": word},
        distributions={"rate": FloatDistribution(0.01, 1.0, log=True), "word": CategoricalDistribution(("a", MARKED))},
        intermediate_values=reports or ({1: values[0] / 2, 2: values[0]} if single else {}),
        user_attrs={"seconds": 61.0, **attributes},
        constraints=constraints,
    )


@pytest.fixture
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study(direction="maximize")
    made.add_trials(
        [
            trial(TrialState.COMPLETE, [0.9], 0.1, "a"),
            trial(TrialState.PRUNED, [0.2], 0.01, MARKED, pruned_at=2),
            trial(TrialState.FAIL, None, 1.0, "a", reason="the loss <is> not finite"),
            trial(TrialState.COMPLETE, [0.95], 0.2, "a", constraints={"loss <= 1": 0.1}),
        ]
    )
    return made


@pytest.fixture
def search(made):
    return made(title="Rates <and> words", space=SPACE)


@pytest.fixture
def page(tmp_path, opened_as):
    """`page(study, search, **how)`: the text of the page."""

    def page(study, search, **how):
        rows = [row_of(trial, search) for trial in begun(study)]
        write_search_page(tmp_path, study, opened_as(search), rows, **how)
        return (tmp_path / "report.html").read_text()

    return page


@pytest.fixture(scope="module")
def charts_of(opened_as):
    """`charts_of(study, search)`: title -> chart, and the places of all points."""

    def charts_of(study, search):
        data = search_charts(study, opened_as(search), best=best_trials(study))
        return {chart["title"]: chart for chart in data["charts"]}, data["points"]

    return charts_of


def by_label(chart):
    return {curve["label"]: curve for curve in chart["curves"]}


def test_every_trial_has_a_row_and_a_curve_and_words_are_escaped(study, page, search, charts_of):
    text = page(study, search)
    assert MARKED not in text
    assert "the loss &lt;is&gt; not finite" in text
    assert "Trial 0 is best, with 90.00&nbsp;%." in text
    assert re.findall(r'<tr data-name="trial (\d)">', text) == list("0123")
    assert "trials: 4 of 4 ended (1 complete, 1 failed, 1 infeasible, 1 pruned); 0.0678 device-hours" in text
    assert "not better than the best, at report 2" in text
    assert "<td>not loss &lt;= 1</td>" in text
    assert "<td>infeasible</td>" in text
    assert "1 min 01 s" in text
    assert 'href="trials/trial-0000/"' in text
    curves = charts_of(study, search)[0]["accuracy (%) on the way"]["curves"]
    assert {curve["names"]: curve["group"] for curve in curves} == {
        "trial 0": "best", "trial 1": "pruned", "trial 3": "infeasible"}  # fmt: skip


def test_curves_lie_over_the_part_of_their_run_and_over_its_own_epochs(study, search, charts_of):
    search = replace(search, space={**SPACE, "epochs": Int(low=2, high=40)}, reports=4)
    kinds = {"epochs": IntDistribution(2, 40)}
    study.add_trial(create_trial(value=0.5, params={"epochs": 8}, distributions=kinds, intermediate_values={1: 0.5}))
    _, points = charts_of(study, search)
    assert points["way 0"] == {"part of the run": [0.25, 0.5], "epochs": [5, 10]}
    assert points["way 4"] == {"part of the run": [0.25], "epochs": [2]}
    own = {"params": {"epochs": 8}, "distributions": kinds, "user_attrs": {"every": 1 / 64}}  # as with `spacing`
    study.add_trial(create_trial(value=0.5, intermediate_values={2: 0.5}, **own))
    assert charts_of(study, search)[1]["way 5"] == {"part of the run": [1 / 32], "epochs": [0.25]}


def test_trials_are_shown_when_they_ended(search, charts_of):
    """Over time and device-hours they stand in the order of their ends; over `trial` by their numbers."""
    study = optuna.create_study(direction="maximize")
    for number, end in enumerate((50, 30, 40)):
        one = trial(TrialState.COMPLETE, [0.5 + number / 10], 0.1, "a")
        one.datetime_start = datetime(2026, 1, 1, 0, 0, number)
        one.datetime_complete = datetime(2026, 1, 1, 0, 0, end)
        study.add_trial(one)
    points = charts_of(study, replace(search, ranks_per_trial=2))[1]["best"]
    assert points["trial"] == [1, 2, 0]
    assert points["time"] == [30, 40, 50]
    assert points["device-hours"] == pytest.approx([2 * 61 / 3600, 4 * 61 / 3600, 6 * 61 / 3600], rel=1e-5)


def test_the_best_so_far_keeps_the_constraints_and_slices_have_the_axis_of_their_range(study, search, charts_of):
    """An infeasible one (0.95) is never the best."""
    made, points = charts_of(study, search)
    history, rate, word = (made[f"accuracy (%){by}"] for by in ("", " by rate", " by word"))
    curves = by_label(history)
    assert sorted(curves) == ["best so far", "complete", "infeasible"]
    assert curves["best so far"]["look"] == "highest"
    assert [value for value in curves["best so far"]["values"] if value is not None] == [90]
    assert curves["infeasible"]["names"] == ["trial 3"]
    assert history["axes"] == ["trial", "time", "device-hours"]
    assert (rate["logarithmic"], rate["ticks"]) == ("x", ())
    assert (word["mayBe"], word["ticks"]) == ("y", ["a", MARKED])
    assert points["accuracy (%) by word complete"]["word"] == [0]


@pytest.mark.parametrize(("direction", "worst", "edge"), [("maximize", 0.0, "bottom"), ("minimize", math.inf, "top")])
def test_a_diverged_trial_is_at_the_bad_edge_scales_no_axis_and_is_in_the_table(
    direction, worst, edge, page, search, charts_of
):
    metric = {"maximize": "accuracy", "minimize": "loss"}[direction]
    search = replace(search, objective=(Objective(metric=metric),))
    study = optuna.create_study(direction=direction)
    for number in range(3):
        study.add_trial(trial(TrialState.COMPLETE, [0.9 + number / 100], 0.01 + number / 1000, "a"))
    way = {1: 1e6, 2: math.inf} if direction == "minimize" else {1: 1e-3, 2: 0.0}
    study.add_trial(trial(TrialState.COMPLETE, [worst], 1.0, "a", reports=way, diverged=17))
    text = page(study, search)
    assert f"<td>{'inf' if math.isinf(worst) else '0.00&nbsp;%'}</td><td>diverged</td>" in text
    assert "the loss or a weight is not finite at update 17" in text
    made, points = charts_of(study, search)
    title = {"accuracy": "accuracy (%)", "loss": "loss"}[metric]
    for name in (title, f"{title} by rate", f"{title} by word"):
        assert by_label(made[name])["diverged"]["look"] == edge
    assert points[f"{title} by rate diverged"] == {"rate": [1]}  # its value is shown
    (way,) = [curve for curve in made[f"{title} on the way"]["curves"] if curve["names"] == "trial 3"]
    assert way["scales"] is False
    assert {curve["names"] for curve in made[f"{title} and values"]["curves"]} == {f"trial {at}" for at in range(3)}


def test_parallel_coordinates_lead_each_trial_through_its_own_values(search, charts_of):
    space = {"rate": RATE, "batch.global": Categorical(choices=(512, 64))}
    study = optuna.create_study(direction="maximize")
    kinds = {"rate": FloatDistribution(0.01, 1.0, log=True), "batch.global": CategoricalDistribution((512, 64))}
    for number, batch in enumerate((512, 64, 512, 64)):
        values = {"rate": 0.01 * 2**number, "batch.global": batch}
        study.add_trial(create_trial(value=0.5 + number / 10, params=values, distributions=kinds))
    chart = charts_of(study, replace(search, space=space))[0]["accuracy (%) and values"]
    assert chart["ticks"] == ("accuracy (%)\n50 – 80", "rate\n0.01 – 0.08", "global\n512 – 64")
    lines = {curve["names"]: curve for curve in chart["curves"]}
    for number in range(4):
        assert lines[f"trial {number}"]["values"] == pytest.approx([number / 3, number / 3, number % 2], rel=1e-5)
    assert [name for name, line in lines.items() if line["group"] == "best fifth"] == ["trial 3"]


def test_a_page_refreshes_while_the_search_runs_and_takes_a_small_share_of_time(
    page, tmp_path, monkeypatch, search, charts_of, opened_as
):
    study = optuna.create_study()
    text = page(study, search)  # before there is a score
    assert "No trial is complete." in text
    assert 'http-equiv="refresh"' not in text
    assert "data-live=" not in text
    assert charts_of(study, search)[0] == {}
    text = page(study, search, live=5)
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in text
    assert 'data-live="5"' in text
    shown = Display(opened_as(search), study, tmp_path, Console(file=io.StringIO()), groups=1)
    began = time.monotonic()
    shown.show()
    took = time.monotonic() - began
    (tmp_path / "report.html").unlink()
    shown.show()
    assert not (tmp_path / "report.html").exists()
    monkeypatch.setattr(time, "monotonic", lambda: began + 34 * took + 5.0)
    shown.show()
    assert (tmp_path / "report.html").exists()


def test_confirmed_trials_stand_above_the_trials_and_decide_the_best(study, page, search):
    confirmed = [Confirmed(trial=4, values=(0.9, 0.92), mean=0.91, low=0.9, high=0.92)]
    confirmed.append(Confirmed(trial=0, values=(0.8, 0.9), mean=0.85, low=0.81, high=0.89))
    study.add_trial(trial(TrialState.COMPLETE, [0.85], 0.1, "a"))
    note = "confirmation: 1 of 4 runs"
    assert f"is best, with 90.00&nbsp;%; {note}." in page(study, search, note=note)
    text = page(study, search, confirmed=confirmed)
    assert "Best on fresh seeds is trial 4." in text
    assert re.findall(r"<b>([^<]*)</b>", text.partition("<h2>Trials</h2>")[2]) == ["85.00&nbsp;%"]
    assert text.index("trial 0: 85.00&nbsp;% (95&nbsp;%: 81.00&nbsp;% to 89.00&nbsp;%)") < text.index("<h2>Trials</h2>")


def test_device_hours_against_accuracy_are_not_in_percent(search, charts_of):
    study = optuna.create_study(directions=["minimize", "maximize"])
    study.add_trial(trial(TrialState.COMPLETE, [300.0, 0.9], 0.1, "a"))
    made, _ = charts_of(study, replace(search, objective=BOTH[::-1]))
    assert not made["device-hours against accuracy (%)"]["percent"]


def test_importances_are_of_each_objective_in_its_own_direction(page, search):
    """The rate decides the accuracy, the more the better; the word decides the hours."""
    study = optuna.create_study(directions=["maximize", "minimize"])
    both = replace(search, objective=BOTH)
    for number in range(40):
        values = [number // 2 / 20, number % 2 + number // 2 % 4 / 10]
        study.add_trial(trial(TrialState.COMPLETE, values, 0.01 * 1.12**number, ("a", MARKED)[number % 2]))
    _, accuracy, hours = page(study, both).split("<h2>Importance for ")
    assert "(PED-ANOVA)" in accuracy
    for section, order in ((accuracy, ["rate", "word"]), (hours, ["word", "rate"])):
        assert re.findall(r"<td>(rate|word)</td><td><progress", section) == order


def test_trials_with_equal_scores_have_equal_importances_and_no_warning(page, search):
    study = optuna.create_study(direction="maximize")
    for number in range(10):
        study.add_trial(trial(TrialState.COMPLETE, [0.5], 0.01 * 1.12**number, ("a", MARKED)[number % 2]))
    assert page(study, search).count('<progress value="0.500">') == 2


def test_several_objectives_have_a_front_and_a_table_of_it(page, search, charts_of):
    study = optuna.create_study(directions=["maximize", "minimize"])
    both = replace(search, objective=BOTH)
    for values in ([0.9, 3.0], [0.8, 1.0], [0.7, 2.0]):
        study.add_trial(trial(TrialState.COMPLETE, values, 0.1, "a"))
    study.add_trial(trial(TrialState.FAIL, None, 1.0, "a", reason="gone"))
    text = page(study, both)
    assert "2 trials that no other one beats in everything." in text
    assert re.findall(r'<tr data-name="trial (\d)">', text) == ["0", "1", "0", "1", "2", "3"]
    made, points = charts_of(study, both)
    assert list(made) == ["accuracy (%) by rate", "accuracy (%) by word", "accuracy (%) against device-hours",
                          "device-hours by rate", "device-hours by word"]  # fmt: skip
    assert [chart["percent"] for chart in made.values()] == [True, True, True, False, False]
    assert points["accuracy (%) against device-hours best"] == {"device-hours": [1, 3]}
    assert "Not beaten in everything" in text
