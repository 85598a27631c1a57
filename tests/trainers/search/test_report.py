"""The page of a search."""

import re
import time
from dataclasses import replace

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from recipes.schema import Budget, Objective, Search
from recipes.search_space.ranges import Categorical, Float
from trainers.search.best import Confirmed
from trainers.search.report import LivePage, _figures, write_search_page
from trainers.search.samplers import RandomSampler

RATE = Float(low=0.01, high=1.0, log=True)
MARKED = "<b>x</b>"
SEARCH = Search(
    name="mine",
    title="Rates <and> words",
    recipe="digits/baseline",
    space={"rate": RATE, "word": Categorical(choices=("a", MARKED))},
    sampler=RandomSampler(),
    budget=Budget(trials=4),
)
BOTH = replace(SEARCH, objective=(Objective(), Objective(metric="device_hours")))


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
            trial(TrialState.PRUNED, [0.2], 0.01, MARKED, reason="pruned at report 2 of 20", pruned_at=2),
            trial(TrialState.FAIL, None, 1.0, "a", reason="the loss <is> not finite"),
            trial(TrialState.COMPLETE, [0.95], 0.2, "a", constraints={"loss <= 1": 0.1}),
        ]
    )
    return made


@pytest.fixture
def page(tmp_path):
    """`page(study, search, **how)`: the text of the page."""
    return lambda study, search, **how: write_search_page(tmp_path, study, search, **how).read_text()


def test_every_trial_has_a_row_a_curve_and_every_value_a_picture_and_words_are_escaped(study, page):
    """Parallel coordinates need two complete trials; each curve and each of their lines names its trial."""
    study.add_trial(trial(TrialState.COMPLETE, [0.8], 0.3, "a"))
    text = page(study, SEARCH)
    assert sorted(re.findall(r'<g data-trial="(\d)">', text)) == ["0", "0", "1", "3", "4", "4"]
    assert MARKED not in text
    assert "the loss &lt;is&gt; not finite" in text
    assert "Trial 0 is best, with 90.00&nbsp;%." in text
    assert re.findall(r'<tr data-trial="(\d)">', text) == list("01234")
    assert text.count("<figure>") == 2 + 1 + 2
    assert "5 trials: 2 complete, 1 failed, 1 infeasible, 1 pruned; 0.0847 device-hours." in text
    assert "pruned at report 2 of 20" in text
    assert "<td>not loss &lt;= 1</td>" in text
    assert "<td>infeasible</td>" in text
    assert "1 min 01 s" in text
    assert 'href="trials/trial-0000/"' in text


def test_a_search_without_a_score_has_a_page(page):
    text = page(optuna.create_study(), SEARCH)
    assert "No trial is complete." in text
    assert "<figure>" not in text


def test_with_enough_trials_what_matters_is_drawn_by_optuna_and_leaves_no_style_behind(study, page):
    import matplotlib
    from matplotlib import pyplot

    for number in range(12):
        values = [number / 12], 0.01 * 1.4**number, ("a", MARKED)[number % 2]
        study.add_trial(trial(TrialState.COMPLETE, *values, batch_and_rate=[64 * 2 ** (number % 3), 0.1 + number]))
    before = dict(matplotlib.rcParams)
    text = page(study, SEARCH)
    assert text.count("<figure>") == 3 + 3 + 2
    assert "The full rate of every trial at its batch" in text
    assert "square root" in text
    assert "(PED-ANOVA)" in text
    assert "by the two values that matter most" in text
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def figures(study, search):
    return list(_figures(study, search))


def dots_of(axes):
    """How many dots of each state."""
    counts = {dots.get_label(): len(dots.get_offsets()) for dots in axes.collections}
    return counts | {line.get_label(): len(line.get_xdata()) for line in axes.lines if line.get_marker() == "x"}


def test_the_history_has_every_trial_and_its_best_keeps_the_constraints(study):
    """An infeasible one (0.95) is never the best, and the first trial failed."""
    history = optuna.create_study(direction="maximize")
    history.add_trial(trial(TrialState.FAIL, None, 1.0, "a", reason="gone"))
    history.add_trials(study.get_trials())
    (reports, _), (figure, _), *_ = figures(history, SEARCH)
    (axes,) = figure.axes
    (best,) = axes.lines
    assert list(best.get_ydata()) == [0.9, 0.9]
    assert dots_of(axes) == {"complete": 1, "infeasible": 1, "pruned": 1}
    lines = {line.get_gid(): line.get_linestyle() for line in reports.axes[0].lines if line.get_gid()}
    assert {gid: dashes for gid, dashes in lines.items() if dashes != "-"} == {"trial-2": "--"}


@pytest.mark.parametrize(("direction", "worst", "edge"), [("maximize", 0.0, 0.0), ("minimize", float("inf"), 1.0)])
def test_a_diverged_trial_is_a_cross_at_the_edge_and_scales_no_axis(direction, worst, edge):
    """Its loss went through a million, and its rate is a hundred times that of the others."""
    metric = {"maximize": "accuracy", "minimize": "loss"}[direction]
    search = replace(SEARCH, objective=(Objective(metric=metric),))
    study = optuna.create_study(direction=direction)
    for number in range(3):
        study.add_trial(trial(TrialState.COMPLETE, [0.9 + number / 100], 0.01 + number / 1000, "ab"[0]))
    way = {1: 1e6, 2: float("inf")} if direction == "minimize" else {1: 1e-3, 2: 0.0}
    study.add_trial(trial(TrialState.COMPLETE, [worst], 1.0, "a", reports=way, diverged=17))
    curves, history, parallel, *slices = [figure.axes[0] for figure, _ in figures(study, search)]
    for axes in (curves, history, *slices):
        (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
        assert (list(cross.get_ydata()), cross.get_color()) == ([edge], "#cc79a7")
        low, high = axes.get_ylim()
        assert 0.4 < low < high < 1.0
    assert slices[0].get_xlim()[1] >= 1.0  # its value is shown
    assert len(parallel.lines) == 3


def test_a_diverged_trial_has_its_update_in_the_table_and_infinity_as_score(page):
    study = optuna.create_study(direction="minimize")
    study.add_trial(trial(TrialState.COMPLETE, [float("inf")], 0.1, "a", diverged=17))
    text = page(study, replace(SEARCH, objective=(Objective(metric="loss"),)))
    assert "<td>inf</td><td>diverged</td>" in text
    assert "the loss or a weight is not finite at update 17" in text


def test_parallel_coordinates_draw_each_trial_through_its_own_values():
    """Choices that are numbers would be sorted by Optuna, and its lines with them."""
    space = {"rate": RATE, "batch.global": Categorical(choices=(512, 64))}
    study = optuna.create_study(direction="maximize")
    kinds = {"rate": FloatDistribution(0.01, 1.0, log=True), "batch.global": CategoricalDistribution((512, 64))}
    for number, batch in enumerate((512, 64, 512, 64)):
        values = {"rate": 0.01 * 2**number, "batch.global": batch}
        study.add_trial(create_trial(value=0.5 + number / 10, params=values, distributions=kinds))
    drawn = figures(study, replace(SEARCH, space=space))
    figure = next(figure for figure, words in drawn if "orange" in words)
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names == ["accuracy", "global", "rate"]
    lines = {line.get_gid(): list(line.get_ydata()) for line in figure.axes[0].lines}
    for number in range(4):
        score, batch, rate = lines[f"trial-{number}"]
        assert (score, batch) == (pytest.approx(0.5 + number / 10), pytest.approx((0.5, 0.8)[number % 2]))
        assert rate == pytest.approx(0.5 + number / 10)


def test_a_page_refreshes_while_the_search_runs_and_takes_a_small_share_of_the_time(page, tmp_path, monkeypatch):
    study = optuna.create_study()
    assert 'http-equiv="refresh"' not in page(study, SEARCH)
    assert "data-refresh" not in page(study, SEARCH).partition("<script>")[0]
    live = LivePage(tmp_path, study, SEARCH, every_seconds=5.0)
    began = time.monotonic()
    live.write_if_due()
    took = time.monotonic() - began
    text = (tmp_path / "report.html").read_text()
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in text
    assert 'data-refresh="5"' in text
    (tmp_path / "report.html").unlink()
    live.write_if_due()
    assert not (tmp_path / "report.html").exists()
    monkeypatch.setattr(time, "monotonic", lambda: began + 34 * took + 5.0)
    live.write_if_due()
    assert (tmp_path / "report.html").exists()


def test_confirmed_trials_stand_above_the_trials_and_decide_the_best(page):
    confirmed = [Confirmed(trial=3, values=(0.9, 0.92), mean=0.91, low=0.9, high=0.92)]
    confirmed.append(Confirmed(trial=0, values=(0.8, 0.9), mean=0.85, low=0.81, high=0.89))
    text = page(optuna.create_study(), SEARCH, confirmed=confirmed)
    assert "Trial 3 is best, with 91.00&nbsp;% in the mean of 2 fresh seeds." in text
    assert text.index("81.00&nbsp;% to 89.00&nbsp;%") < text.index("<h2>Trials</h2>")


@pytest.mark.parametrize("ends", [(0.2, 8), (0.3, 0.9)])
def test_a_logarithmic_axis_has_two_ticks_or_more(ends):
    study = optuna.create_study(direction="maximize")
    for rate in ends:
        kinds = {"rate": FloatDistribution(1e-6, 10.0, log=True)}
        study.add_trial(create_trial(value=0.5, params={"rate": rate}, distributions=kinds))
    search = replace(SEARCH, space={"rate": Float(low=1e-6, high=10.0, log=True)})
    axes = next(figure for figure, words in figures(study, search) if "by its rate" in words).axes[0]
    low, high = axes.get_xlim()
    assert 2 <= sum(low <= tick <= high for tick in axes.get_xticks()) <= 6


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


def test_several_objectives_have_a_front_and_a_table_of_it(page):
    study = optuna.create_study(directions=["maximize", "minimize"])
    for values in ([0.9, 3.0], [0.8, 1.0], [0.7, 2.0]):
        study.add_trial(trial(TrialState.COMPLETE, values, 0.1, "a"))
    study.add_trial(trial(TrialState.FAIL, None, 1.0, "a", reason="gone"))
    text = page(study, BOTH)
    assert "2 trials are beaten by no other one in everything." in text
    assert re.findall(r'<tr data-trial="(\d)">', text) == ["0", "1", "0", "1", "2", "3"]
    assert text.count("<figure>") == 1 + 2 * 2  # the front, and for each objective its slices
    assert "Not beaten in everything" in text


@pytest.mark.slow
def test_a_page_of_a_thousand_trials_is_drawn_in_seconds(page):
    study = optuna.create_study(direction="maximize")
    for number in range(1000):
        score = number % 97 / 97
        reports = {report: score * report / 20 for report in range(1, 21)}
        rate, word = 0.01 * 10 ** (2 * number / 1000), ("a", MARKED)[number % 2]
        study.add_trial(trial(TrialState.COMPLETE, [score], rate, word, reports=reports))
    page(study, SEARCH)  # imports
    began = time.monotonic()
    text = page(study, SEARCH)
    took = time.monotonic() - began
    print(f"{took:.2f} s, {len(text) / 1e6:.2f} MB")
    assert took < 20
    assert len(text) < 5e6
