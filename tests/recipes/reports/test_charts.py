import json

import numpy as np
import pytest

from recipes.reports.charts import charts, charts_markup, run_style
from recipes.reports.page import page_text
from recipes.reports.record import open_run


def by_title(runs):
    made = charts(runs, [f"run {index}" for index in range(len(runs))])
    return {chart["title"]: chart for chart in made["charts"]}, made["points"]


def test_curves_are_what_was_measured(write_run):
    run = open_run(write_run())
    made, points = by_title([run])
    assert list(made)[:2] == ["Accuracy (%)", "Loss"]
    assert made["Accuracy (%)"]["curves"][0]["values"] == pytest.approx(100 * run.evaluations.accuracy)
    assert [title for title, chart in made.items() if chart["percent"]] == ["Accuracy (%)"]
    training, evaluation = made["Loss"]["curves"]
    assert training["values"][:-1] == pytest.approx(run.updates.loss, rel=1e-5)
    assert evaluation["values"] == pytest.approx(run.evaluations.loss, rel=1e-5)
    assert made["Learning rate"]["curves"][0]["values"][:-1] == pytest.approx(run.updates.learning_rate, rel=1e-5)
    assert made["Global batch (samples)"]["curves"][0]["values"][:-1] == run.updates.global_batch_size.tolist()
    assert points["0 updates"]["epochs"][:-1] == pytest.approx(run.updates.epoch, rel=1e-5)


def test_each_metric_has_a_chart_with_no_point_where_it_is_no_number(write_run, metric_lines):
    reached = {"time_ms": 0, "update": 3, "epoch": 1.5, "samples": 640}
    lines = [{"key": "eval_macro_f1", "value": value, **reached} for value in (0.25, float("nan"), 0.5)]
    made, points = by_title([open_run(write_run("a", lines=metric_lines() + lines)), open_run(write_run("b"))])
    (curve,) = made["Metric macro_f1"]["curves"]
    assert (curve["values"], points[curve["at"]]["epochs"]) == ([0.25, None, 0.5], [1.5] * 3)
    assert [title for title in made if title.startswith("Metric")] == ["Metric macro_f1"]


def test_numbers_that_an_extension_wrote_have_charts(write_run, metric_lines):
    place = {"time_ms": 0, "update": 3, "epoch": 1.5}
    values = {"sharpness": 0.25, "updates": 3, "eval_own": -1.0, "never": float("nan")}
    others = {"norms": {"/conv": 1.0}, "words": "none", "is_done": True, "goal": 0.9, "rank": 1}
    lines = [{"key": key, "value": value, **place} for key, value in (values | others).items()]
    lines[-1]["epoch"] = "one"
    runs = [open_run(write_run("a", lines=metric_lines() + lines)), open_run(write_run("b"))]
    for shown in (runs[:1], runs):
        made, points = by_title(shown)
        found = {title.removeprefix("Extension: "): chart["curves"] for title, chart in made.items()}
        assert [key for key in found if key in values | others] == ["sharpness", "updates", "eval_own"]
        for key in ("sharpness", "updates", "eval_own"):
            (curve,) = found[key]
            assert (curve["values"], points[curve["at"]]["epochs"]) == ([values[key]], [1.5])


def test_a_number_that_an_extension_wrote_at_each_update_is_drawn_by_means(write_run, metric_lines):
    places = ({"time_ms": 0, "update": update, "epoch": update / 1000} for update in range(4000))
    lines = [{"key": "own", "value": place["update"] % 2, **place} for place in places]
    made, _ = by_title([open_run(write_run(lines=metric_lines() + lines))])
    assert made["Extension: own"]["curves"][0]["values"] == [0.5] * 2000


def test_the_last_update_reaches_to_the_end_of_the_run_where_all_charts_end(write_run):
    runs = [open_run(write_run(name)) for name in ("a", "b")]
    data = charts(runs, ["a", "b"])
    rates = next(chart for chart in data["charts"] if chart["title"] == "Learning rate")["curves"][0]["values"]
    assert rates[-1] == rates[-2]
    assert data["ends"]["epochs"] == data["points"]["0 updates"]["epochs"][-1] == pytest.approx(runs[0].epochs_done)
    assert data["ends"]["updates"] == len(runs[0].updates)


def test_of_several_runs_a_diverged_one_does_not_flatten_the_losses_of_others(write_run, metric_lines):
    diverged = metric_lines(stop="failed", num_updates=20)
    for line in diverged:
        if line["key"] in ("train_loss", "eval_loss"):
            line["value"] = 1e20
    runs = [open_run(write_run("good")), open_run(write_run("bad", lines=diverged))]
    made, _ = by_title(runs)
    for title in ("Loss", "Evaluation loss"):
        assert [curve.get("scales", True) for curve in made[title]["curves"]] == [True, False]
    alone, _ = by_title(runs[:1])
    assert made["Loss"]["logarithmic"] == alone["Loss"]["logarithmic"]
    assert by_title(runs[1:])[0]["Loss"]["curves"][0].get("scales", True)


def test_each_point_has_its_place_on_every_axis(write_run):
    run = open_run(write_run())
    scored = by_title([run])[1]["0 scored"]
    assert scored["updates"] == pytest.approx(run.evaluations.update, rel=1e-5)
    assert scored["samples"] == pytest.approx(run.evaluations.samples, rel=1e-5)
    assert scored["time"][-1] == pytest.approx(run.seconds, abs=1.0)
    assert np.all(np.diff(scored["time"]) > 0)


def test_time_of_a_resumed_run_has_no_pause(write_run, metric_lines):
    lines = metric_lines(stop=None)
    later = [{"key": "run_start", "value": "x", "time_ms": lines[30]["time_ms"]}, *lines[30:]]
    resumed = [*lines[:30], *({**line, "time_ms": line["time_ms"] + 3_600_000} for line in later)]
    whole, cut = (open_run(write_run(name, lines=each)) for name, each in (("a", lines), ("b", resumed)))
    gap = (lines[30]["time_ms"] - lines[29]["time_ms"]) / 1000
    assert whole.updates.elapsed_seconds[-1] - cut.updates.elapsed_seconds[-1] == pytest.approx(gap)


def test_ranks_and_their_memory_have_curves(write_run, metric_lines):
    lines = metric_lines()
    for index, epoch in enumerate((4.0, 8.0)):
        seconds = [[0.01, 0.1, 0.2, 0.0, 0.01, 0.1], [0.02, 0.1, 0.2 + 0.1 * index, 0.0, 0.01, 0.0]]
        line = {"key": "rank_seconds", "value": 3, "time_ms": 0, "epoch": epoch, "seconds": seconds}
        lines.append({**line, "time_ms": lines[-1]["time_ms"], "resident_bytes": [2_000_000_000 + index, 10**9]})
    run = open_run(write_run(lines=lines))
    curves = {chart["title"]: chart["curves"] for chart in charts([run], ["a"])["charts"]}
    own, memory = curves["Own work of each rank (ms an update)"], curves["Peak memory of each rank so far (GB)"]
    assert [curve["label"] for curve in own] == ["rank 0", "rank 1"]
    assert own[1]["values"] == pytest.approx([330, 430])
    assert memory[1]["values"] == [1, 1]


def test_runs_over_each_other_have_colours_and_names_of_their_own(write_run):
    made, _ = by_title([open_run(write_run(name)) for name in ("a", "b", "c")])
    curves = made["Accuracy (%)"]["curves"]
    assert [(curve["label"], curve["colour"]) for curve in curves] == [
        (f"run {index}", run_style(index)[0]) for index in range(3)
    ]
    assert len({str(run_style(index)) for index in range(20)}) == 20


def test_run_without_updates_or_evaluations_has_no_charts_of_them(write_run, metric_lines):
    empty = open_run(write_run("empty", lines=[{"key": "run_start", "value": "x", "time_ms": 5}]))
    assert charts([empty], ["x"])["charts"] == []
    young = open_run(write_run("young", lines=metric_lines(stop=None, num_updates=1)))
    titles = [chart["title"] for chart in charts([young], ["x"])["charts"]]
    assert titles == ["Loss", "Learning rate", "Samples per second"]


def test_what_is_not_finite_is_null(write_run, metric_lines):
    lines = metric_lines(stop="failed", num_updates=20)
    for line in lines[12:]:
        if line["key"] == "train_loss":
            line["value"] = float("nan")
    run = open_run(write_run(lines=lines))
    assert by_title([run])[0]["Loss"]["curves"][0]["values"][-2] is None
    assert "NaN" not in charts_markup(charts([run], ["x"]))


def test_a_block_of_data_cannot_be_ended_by_a_name():
    text = charts_markup({"label": "</script><script>alert(1)</script>&"})
    assert text.count("<") == 2
    assert json.loads(text[text.index(">") + 1 : text.rindex("<")])["label"].startswith("</script>")


def test_page_of_a_long_run_stays_small(write_run, metric_lines):
    first = [line for line in metric_lines() if line["key"] == "train_loss"][0]
    lines = [{"key": "run_start", "value": "x", "time_ms": 0}]
    for update in range(20_000):
        place = {"update": update, "epoch": update / 200, "samples": 240 * update, "time_ms": 10 * update}
        lines.append({**first, **place, "value": 1 / (1 + update)})
    page = page_text([open_run(write_run(lines=lines))])
    assert len(page) < 300_000
