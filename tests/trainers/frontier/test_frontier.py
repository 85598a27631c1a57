"""A frontier of the digits, as a user measures it: its searches, what it says, and how it goes on."""

import json
import math
import re
import shutil
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from optuna.trial import TrialState
from scipy.stats import ttest_ind

from recipes.errors import RecipeError
from recipes.frontiers.open_frontier import open_frontier
from recipes.reading.open import open_recipe
from recipes.reading.yaml import block_text
from recipes.search_space.ranges import Int
from trainers.frontier import report, run
from trainers.frontier.page import write_report
from trainers.frontier.report import rows_of
from trainers.frontier.results import difference, fit_of, read_point
from trainers.frontier.run import _best, _needed, _next_search, _own_tree, _require_same, frontier, read_points
from trainers.launch.vocabulary import search_vocabulary, vocabulary
from trainers.runs.run_folder import FolderRefused
from trainers.search.outcome import SearchRequest, metrics_lines
from trainers.search.study import state_of

pytestmark = pytest.mark.mpi
TEXT = """\
kilobatch: 1
recipe: digits/baseline
goal: {accuracy: 0.5}
batches: [128, 256, 512]
fixed:
  learning_rate.rule: none
  learning_rate.schedule: {kind: Constant}
  model: {kind: SmallCNN, width: 4}
space: {learning_rate.reference: {kind: Float, low: 0.05, high: 5, log: true}}
budget: {trials: 3, epochs: 10}
seeds: 2
spacing: 0.1
accuracy_at: {epochs: [1], updates: [10]}
"""


@pytest.fixture(scope="module")
def measured(measuring):
    made = measuring(TEXT)
    made.first = made.run()
    assert made.first.returncode == 0, made.first.stdout + made.first.stderr
    return made


def test_a_frontier_that_was_begun_before_the_rule_that_refuses_its_recipe_is_refused_with_these_words(tmp_path):
    twice = "extensions: [{kind: CSV}, {kind: CSV}]\n"
    (tmp_path / "own.yaml").write_text(f"kilobatch: 1\nextends: digits/baseline\n{twice}")
    own = TEXT.replace("digits/baseline", "own.yaml").replace("[128, 256, 512]", "[128]")
    (tmp_path / "mine.yaml").write_text(own)
    request = SearchRequest(search=str(tmp_path / "mine.yaml"), out=tmp_path / "out")
    opened = open_frontier(request.search, vocabulary=search_vocabulary(), of_run=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "frontier.yaml").write_text(block_text(_own_tree(opened)))
    with pytest.raises(RecipeError, match=r"and so does `extensions.0`; .*/out was begun by an older version, "):
        frontier(request)
    assert frontier(SearchRequest(search=str(tmp_path / "out"))) == 0  # only shown
    (tmp_path / "out" / "frontier.yaml").write_text("")
    with pytest.raises(RecipeError, match="out/frontier.yaml:1:1: "):
        _require_same(opened, tmp_path / "out")


def test_what_the_first_search_would_refuse_is_refused_before_there_is_a_folder(tmp_path):
    (tmp_path / "mine.yaml").write_text(f"{TEXT}ranks_per_trial: 2\n")
    with pytest.raises(RecipeError, match="-n: 1 ranks are fewer than the 2 of a trial"):
        frontier(SearchRequest(search=str(tmp_path / "mine.yaml"), workers=1, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_every_point_has_its_trials_and_seeds(measured):
    for point in measured.points:
        assert len(point.parts[0].trials) == 3
        assert point.reached >= 1
        assert len(point.best_part.seeds) == 2
        assert point.updates == sum(point.best_part.seeds) / 2
        assert point.epochs == pytest.approx(point.updates * point.batch / 1500, rel=0.1)


def test_updates_are_those_of_an_evaluation(measured):
    for point in measured.points:
        for trial in point.parts[0].trials:
            lines = metrics_lines(point.parts[0].folder / f"trials/trial-{trial.number:04d}")
            scores = [(line["update"], line["value"]) for line in lines if line["key"] == "eval_accuracy"]
            reached = [update for update, value in scores if value >= 0.5]
            assert (state_of(trial) == "complete") == bool(reached)
            assert not reached or trial.values[0] == reached[0] == scores[-1][0]  # and the run ends there


def test_a_trial_ends_where_it_cannot_beat_the_best(measured):
    ended_early = 0
    for point in measured.points:
        best = None
        for trial in point.parts[0].trials:
            lines = metrics_lines(point.parts[0].folder / f"trials/trial-{trial.number:04d}")
            made, ended = max(line["update"] for line in lines), lines[-1]
            if best is not None:
                assert made < best
                ended_early += ended["reason"] == "--stop-after"
            if state_of(trial) == "complete":
                best = trial.values[0]
    assert ended_early


def test_neighbours_optima_are_tried_first(measured):
    small, large = (point.parts[0] for point in measured.points[:2])
    rate = small.best.params["learning_rate.reference"]
    tried = [values["learning_rate.reference"] for values in large.tree["enqueue"]]
    assert tried[:2] == pytest.approx([min(2 * rate, 5), min(2**0.5 * rate, 5)], rel=1e-5)
    assert large.tree["objective"]["at_most"] == math.ceil(1.5 * max(small.best.values[0], measured.points[0].updates))


def test_it_says_what_it_found(measured):
    shown = measured.run(name=measured.out)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout in measured.first.stdout
    tree = json.loads(measured.run("--json", name=measured.out).stdout)
    rows = tree["points"]["recipe"]
    assert [row["batch"] for row in rows] == [128, 256, 512]
    assert [row["updates"] for row in rows] == [point.updates for point in measured.points]
    assert [row["seeds"] for row in rows] == [list(point.runs) for point in measured.points]
    assert all(0.1 < row["at 1 epochs"] < 1 for row in rows)
    curve, (low, high) = fit_of(measured.points)
    assert tree["fits"]["recipe"]["b_crit"] == pytest.approx(curve.b_crit)
    assert tree["fits"]["recipe"]["interval"] == [low, high]
    assert "B_crit" in tree["conclusions"][0]
    assert "B_crit" in (measured.out / "report.html").read_text()
    assert "<svg" in (measured.out / "updates.svg").read_text()


def test_a_point_whose_seeds_are_not_all_there_is_not_finished(measured):
    assert not any("not finished" in row["note"] for row in rows_of(measured.points))
    point = measured.points[0]
    cut_off = replace(point, parts=(*point.parts[:-1], replace(point.parts[-1], seeds=())))
    assert "not finished" in rows_of([cut_off])[0]["note"]


def test_smaller_batches_alone_are_judged_by_the_largest(measured):
    points = measured.points
    assert "smaller batches alone" not in report.conclusions(measured.opened, points)[0]  # it takes three of them
    runs = {batch: (90 * (1 + 400 / batch),) for batch in (64, 128, 256)} | {512: (200.0,), 2048: (math.inf,)}
    said = report._extrapolated(with_runs(points[0], runs))
    assert "would have said 160 updates at batch 512, and a largest useful batch of 2,000" in said


def test_a_goal_that_a_few_updates_reach_has_no_curve(measured):
    easy = [replace(each, parts=(replace(each.parts[-1], seeds=(1.0, 1.0)),)) for each in measured.points]
    assert "recipe: 1 at batch 128, too few updates for a curve" in report.conclusions(measured.opened, easy)[0]


def with_runs(point, runs):
    """Points like this one, whose seeds took so many updates: batch -> updates of each."""
    parts = {batch: (replace(point.parts[-1], seeds=seeds),) for batch, seeds in runs.items()}
    return [replace(point, batch=batch, parts=own) for batch, own in parts.items()]


def test_the_log_says_what_a_point_has_found(measured):
    found, missed = with_runs(measured.points[0], {64: (90.0,), 128: (math.inf,)})
    assert re.fullmatch(r"90 updates, [\d.]+ epochs, rate [\d.]+", run._found_text(found))
    assert run._found_text(missed) == "most fresh seeds of every trial that reached the goal missed it"
    none = replace(found, parts=tuple(replace(part, trials=(), seeds=()) for part in found.parts))
    assert run._found_text(none) == "no trial reached the goal"


def test_a_fitted_batch_beyond_those_that_reached_the_goal_is_said_to_be(measured):
    assert report._batch(57.1, [64, 256]) == "57.1, outside of those measured"
    assert report._batch(64.0, [64, 256]) == "64"
    runs = {batch: (90 * (1 + 400 / batch),) * 3 for batch in (64, 128, 256)} | {1024: (math.inf,) * 3}
    points = with_runs(measured.points[0], runs)
    (said,) = report.conclusions(measured.opened, points)
    assert "useful batch is 2,000, outside of those measured (2,000 to 2,000); batch 1,024 missed the goal" in said


def test_a_finished_point_that_no_trial_reached_is_named_beside_the_curve(measured):
    *points, last = with_runs(measured.points[0], {b: (90 * (1 + 400 / b),) * 3 for b in (64, 128, 256, 512)})
    none = list(map(copy, last.parts[0].trials))
    for trial in none:
        trial.state = TrialState.FAIL
    missed = replace(last, parts=(replace(last.parts[0], trials=tuple(none), seeds=()),))
    assert missed.figure is None
    assert "batch 512 missed the goal" in report._scaling([*points, missed])
    not_begun = replace(last, parts=())
    unfinished = replace(last, parts=(replace(missed.parts[0], trials=tuple(none[:1])),))
    assert "missed" not in report._scaling([*points, not_begun]) + report._scaling([*points, unfinished])


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        (lambda batch: 12800 / batch, "no bend within the batches measured: updates fall in proportion to it at all"),
        (lambda batch: 100.0, "no bend within the batches measured: updates hardly fall with it"),
    ],
)
def test_points_without_a_bend_have_no_critical_batch(measured, updates, expected):
    points = with_runs(measured.points[0], {batch: (updates(batch),) * 3 for batch in (64, 128, 256)})
    said = report._scaling(points)
    assert said.startswith(expected)
    assert "B_crit" not in said


def test_json_has_null_where_there_is_no_number(measured):
    without_bend = with_runs(measured.points[0], {batch: (12800 / batch,) * 3 for batch in (64, 128, 256)})
    missed = with_runs(measured.points[0], {512: (math.inf, 30.0, math.inf)})
    tree = json.loads(report.frontier_text(measured.opened, without_bend + missed, as_json=True))
    assert [row["updates"] for row in tree["points"]["recipe"]] == [200, 100, 50, None]
    assert tree["points"]["recipe"][-1]["seeds"] == [None, 30, None]
    assert [row["state"] for row in tree["points"]["recipe"]] == [*["finished"] * 3, "missed"]
    begun = replace(missed[0].parts[0], trials=())
    unfinished = [replace(missed[0], parts=parts) for parts in ((begun,), ())]
    assert [point.state for point in unfinished] == ["unfinished", "not begun"]
    assert {key: tree["fits"]["recipe"][key] for key in ("bend", "b_crit", "s_min")} == {
        "bend": False,
        "b_crit": None,
        "s_min": None,
    }


def test_a_point_that_half_of_the_seeds_missed_has_the_figure_of_the_others(measured):
    half, most = with_runs(measured.points[0], {64: (10.0, math.inf), 128: (10.0, math.inf, math.inf)})
    assert (half.figure, most.figure) == (10, math.inf)
    assert rows_of([half])[0]["seeds"] == "10 to 10, 1 missed"


def test_an_interval_is_open_where_some_seeds_show_no_bend():
    assert report._range(30, 120) == "30 to 120"
    assert report._range(30, math.inf) == "at least 30"
    assert report._range(0, 120) == "at most 120"


def test_each_optimum_is_a_whole_recipe_beside_the_scaled_one(measured):
    for point in measured.points:
        own = open_recipe(measured.out / f"best/recipe-{point.batch}.yaml", vocabulary=vocabulary()).recipe
        assert own.batch.global_.sizes == (point.batch,)
        assert own.learning_rate.reference == point.optimum.values["learning_rate.reference"]
    scaled = open_recipe(measured.out / "best/recipe-512-scaled.yaml", vocabulary=vocabulary()).recipe
    assert scaled.batch.global_.sizes == (512,)


def test_one_lucky_trial_does_not_limit_the_next_batch_below_its_neighbours_result(measured):
    point = measured.points[0]
    lucky = replace(point, parts=(replace(point.parts[-1], seeds=(98.0, 102.0)),))
    assert _needed(lucky) == 100 > _best(lucky)
    assert _needed(replace(point, parts=(replace(point.parts[-1], seeds=(1.0, 1.0)),))) == _best(point)


def test_a_point_whose_trials_were_limited_by_the_smaller_batch_says_so(measured):
    point = measured.points[1]
    missed = replace(point, parts=(replace(point.parts[0], seeds=(math.inf, math.inf)),))
    assert f"ended at {point.cap:,} updates, 1.5 times the next smaller batch's" in rows_of([missed])[0]["note"]
    assert "1.5 times" not in rows_of([point])[0]["note"]


def test_fewer_seeds_count_the_same_runs_at_every_point(measured):
    """The first ones by number, also where more have ended; without seeds the best trial."""

    def shown(seeds):
        opened = replace(measured.opened, frontier=replace(measured.opened.frontier, seeds=seeds))
        return [read_point(opened, measured.out, "recipe", batch) for batch in opened.frontier.sizes]

    assert [point.runs for point in shown(0)] == [(point.best_part.best.values[0],) for point in measured.points]
    assert [point.runs for point in shown(2)] == [point.runs for point in measured.points]
    assert all(point.is_spent for point in shown(0))
    assert not any(point.is_spent for point in shown(3))


def test_recipes_of_points_that_were_left_out_go_and_files_of_the_users_stay(measured, tmp_path):
    folder = shutil.copytree(measured.out, tmp_path / "out")
    (folder / "best/recipe-512-mine.yaml").touch()
    opened = replace(measured.opened, frontier=replace(measured.opened.frontier, batches=(128, 256)))
    write_report(folder, opened, read_points(opened, folder))
    kept = ["recipe-128.yaml", "recipe-256-scaled.yaml", "recipe-256.yaml", "recipe-512-mine.yaml"]
    assert sorted(path.name for path in (folder / "best").iterdir()) == kept
    for best in folder.glob("points/recipe-000128/*/best.yaml"):
        best.unlink()  # as where the recipe was edited before the search could write it
    write_report(folder, opened, read_points(opened, folder))
    assert sorted(path.name for path in (folder / "best").iterdir()) == kept[2:]


def test_the_terminal_draws_the_same_perfect_scaling_as_the_page(measured):
    """S_min B_crit / B of the fitted curve, which lies below the smallest batch's figure."""
    points = with_runs(measured.points[0], {batch: (90 * (1 + 100 / batch),) * 3 for batch in (64, 128, 256, 512)})
    drawn = report._picture(measured.opened, points).splitlines()
    first = [line[10:11] for line in drawn[1:20]]
    assert first.index("o") < first.index(".")
    assert ". perfect scaling" in drawn[-1]
    assert ". perfect scaling" not in report._picture(measured.opened, points[:2])


@pytest.mark.slow
def test_the_same_command_runs_nothing_anew_and_more_trials_go_on(measured, tmp_path):
    measured, first = copy(measured), measured.out
    measured.out = shutil.copytree(first, tmp_path / "out")
    before = sorted(measured.out.glob("points/*/*/trials/*/metrics.jsonl"))
    modified = [path.stat().st_mtime_ns for path in before]
    again = measured.run("--set", "batches=[128, 256, 512]")
    assert again.returncode == 0, again.stderr
    assert "begins" not in again.stdout
    assert [path.stat().st_mtime_ns for path in before] == modified
    more = measured.run("--set", "budget.trials=4", "--set", "batches=[128]")
    assert more.returncode == 0, more.stdout + more.stderr
    assert len(read_point(measured.opened, measured.out, "recipe", 128).parts[0].trials) == 4
    assert [path.stat().st_mtime_ns for path in before] == modified


@pytest.mark.parametrize("key", ["goal.accuracy", "budget.epochs", "recipe of recipe.seed"])
def test_another_frontier_in_its_folder_is_refused(measured, tmp_path, key):
    """Its points would be those of two; of the last kind is a recipe that was edited since."""
    folder = shutil.copytree(measured.out, tmp_path / "out")
    opened = measured.opened
    if key == "recipe of recipe.seed":
        file = folder / "recipes.yaml"
        file.write_text(file.read_text().replace("  seed: 0", "  seed: 7"))
    else:
        tree = yaml.safe_load(block_text(opened.tree))
        section, name = key.split(".")
        tree[section][name] = 0.7 if name == "accuracy" else 30
        opened = replace(opened, tree=tree)
    with pytest.raises(FolderRefused, match=f"holds another frontier; {key}"):
        _require_same(opened, folder)


def test_more_trials_and_another_method_may_come_and_a_method_that_is_there_may_not_change(measured, tmp_path):
    tree = {**measured.opened.tree, "methods": {"plain": {"fixed": {"optimizer.momentum": 0.9}}}}
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "frontier.yaml").write_text(block_text(tree))
    more = {**tree["methods"], "none": {"fixed": {"optimizer.momentum": 0}}}
    budget = {**tree["budget"], "trials": 9}
    _require_same(replace(measured.opened, tree={**tree, "methods": more, "budget": budget}), folder)
    other = {"plain": {"fixed": {"optimizer.momentum": 0}}}
    with pytest.raises(FolderRefused, match="holds another frontier; methods.plain.fixed.optimizer.momentum: 0.9"):
        _require_same(replace(measured.opened, tree={**tree, "methods": other}), folder)


def test_a_tuned_value_has_a_column_beside_the_table_s_own_of_that_name(measured):
    """`epochs` are those to the goal."""
    opened = measured.opened
    warmup = {"learning_rate.warmup.epochs": Int(low=1, high=5)}
    wider = replace(opened, frontier=replace(opened.frontier, space={**opened.frontier.space, **warmup}))
    (row, *_) = rows_of([replace(point, opened=wider) for point in measured.points])
    assert row["warmup.epochs"] == "-"
    assert row["epochs"] == rows_of(measured.points)[0]["epochs"]


def test_a_dry_run_says_what_it_may_take(measured):
    shown = measured.run("--dry-run")
    assert shown.returncode == 0
    assert "if each optimum lies on an edge of its ranges" in shown.stdout
    told = json.loads(measured.run("--dry-run", "--json").stdout)
    assert [(point["batch"], point["method"]) for point in told["points"]] == [(b, "recipe") for b in (128, 256, 512)]
    assert told["samples"] == sum(point["samples"] for point in told["points"])
    (trials, seeds), wider = (
        (told["points"][0][key] for key in ("trials", "seeds")),
        max(2, told["points"][0]["trials"] // 2),
    )
    assert told["samples_if_widened"] * (trials + seeds) == told["samples"] * (trials + 2 * wider + 3 * seeds)
    assert not Path("runs").exists() or "mine" not in [path.name for path in Path("runs").iterdir()]


@pytest.fixture(scope="module")
def equal_epochs(measuring):
    ranges = "{learning_rate.reference: {kind: Categorical, choices: [0.05, 0.1]}}"  # they have no edge to go beyond
    own = f"methods: {{own: {{space: {ranges}}}}}"  # and no space of all methods
    text = "\n".join(own if line.startswith("space") else line for line in TEXT.splitlines())
    text = text.replace("{accuracy: 0.5}", "{epochs: 1}").replace("[128, 256, 512]", "[64, 256]")
    made = measuring(text.replace("{trials: 3, epochs: 10}", "{trials: 2}").replace("spacing: 0.1", "spacing: 0.5"))
    made.first = made.run("--json")
    assert made.first.returncode == 0, made.first.stdout + made.first.stderr
    return made


def accuracies(folder):
    return [line["value"] for line in metrics_lines(folder) if line["key"] == "eval_accuracy"]


@pytest.mark.slow
def test_a_goal_of_one_length_is_the_best_accuracy_after_it(equal_epochs):
    for point, updates in zip(equal_epochs.points, (24, 6), strict=True):
        for part in point.parts:
            runs = {trial.number: part.folder / f"trials/trial-{trial.number:04d}" for trial in part.trials}
            assert [trial.values[0] for trial in part.trials] == [accuracies(run)[-1] for run in runs.values()]
            assert part.best.values[0] == max(accuracies(run)[-1] for run in runs.values())
            assert all(len(accuracies(run)) == 2 for run in runs.values())
            assert all(metrics_lines(run)[-1]["update"] == point.updates == updates for run in runs.values())
        best = point.best_part
        seeds = [accuracies(run)[-1] for run in best.folder.glob(f"confirm/trial-{best.best.number:04d}/seed-*")]
        assert sorted(point.runs) == sorted(seeds)
        assert point.figure == pytest.approx(sum(seeds) / 2)


@pytest.mark.slow
def test_the_search_with_the_better_seeds_counts(equal_epochs):
    (part,), point = equal_epochs.points[0].parts, equal_epochs.points[0]
    lucky = replace(part, seeds=tuple(seed - 0.01 for seed in part.seeds))
    lower = copy(part.best)
    lower.values = [part.best.values[0] - 0.1]
    steady = replace(part, trials=(lower,))
    assert replace(point, parts=(lucky, steady)).best_part is steady
    unconfirmed = replace(part, seeds=())
    assert replace(point, parts=(steady, unconfirmed)).best_part is unconfirmed


@pytest.mark.slow
def test_points_at_which_every_run_diverged_are_compared_too(equal_epochs):
    point = equal_epochs.points[0]
    diverged = replace(point, parts=tuple(replace(part, seeds=(0.0, 0.0)) for part in point.parts))
    middle, low, high = difference(diverged, replace(diverged, method=point.method))
    assert low < middle == 0 < high < 0.05


@pytest.mark.slow
def test_accuracies_are_compared_with_intervals(equal_epochs):
    small, large = equal_epochs.points
    own = ttest_ind(large.runs, small.runs, equal_var=False).confidence_interval(0.95)
    middle = sum(large.runs) / 2 - sum(small.runs) / 2
    assert difference(large, small) == pytest.approx((middle, own.low, own.high), rel=1e-3)
    rows = rows_of([small, large], baseline={256: replace(small, method="other")})
    expected = f"{100 * middle:+.2f} ({100 * own.low:+.2f} to {100 * own.high:+.2f})"
    assert [row["against batch 64"] for row in rows] == ["-", expected]
    assert rows[1]["against other"] == expected
    printed = equal_epochs.run("--json", name=equal_epochs.out).stdout
    assert equal_epochs.first.stdout == printed, "that of the run has nothing but the result either"
    said = json.loads(printed)["conclusions"][0]
    assert "lower (95 %) than at batch 64" in said
    assert ("at no batch" in said) == (own.high >= 0)
    assert "<svg" in (equal_epochs.out / "accuracy.svg").read_text()


def test_a_cluster_gives_time_and_cost_of_every_batch(measured, write_cluster):
    rate = {"model": "SmallCNN", "micro_batch_size": 32, "samples_per_second": 1000}
    price = {"dollars_per_device_hour": 3.6, "source": "assumed"}
    cluster = write_cluster(measured.file.with_name("two.yaml"), rate, price=price)
    rows = json.loads(measured.run("--json", "--cluster", cluster, name=measured.out).stdout)["points"]["recipe"]
    assert [row["devices"] for row in rows] == [2] * len(rows)
    for row in rows:
        assert row["cost"] == pytest.approx(3.6 * row["device-hours"])
    refused = measured.run("--cluster", "mn1", name=measured.out)
    assert refused.returncode == 2
    assert "mn1 has no rate of SmallCNN" in refused.stderr


@pytest.fixture
def lucky(measured, tmp_path):
    """The same frontier in another folder, where the fresh seeds of a best trial missed the goal; its point."""
    copied = copy(measured)
    copied.out = tmp_path / "out"
    shutil.copytree(measured.out, copied.out)
    point = next(point for point in copied.points if point.reached > 1)
    for metrics in point.best_part.folder.glob(f"confirm/trial-{point.best_part.best.number:04d}/seed-*/metrics.jsonl"):
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text("".join(line for line in lines if json.loads(line)["key"] != "goal"))
    return copied, point


def test_a_best_trial_whose_seeds_miss_the_goal_is_followed_by_the_next(lucky):
    copied, before = lucky
    point = read_point(copied.opened, copied.out, "recipe", before.batch)
    part = point.best_part
    assert part.missed == {before.best_part.best.number} != {part.best.number}
    assert not part.is_spent
    assert "seeds of 1 better trial missed" in rows_of([point])[0]["note"]
    assert yaml.safe_load(_next_search(copied.opened, copied.out, point).read_text())["confirm"]["top"] == 2


@pytest.mark.slow
def test_the_next_best_trial_gets_fresh_seeds_too(lucky):
    copied, before = lucky
    more = copied.run("--set", f"batches=[{before.batch}]")
    assert more.returncode == 0, more.stdout + more.stderr
    (point,) = (point for point in copied.points if point.batch == before.batch)
    assert len(point.runs) == 2
    assert all(map(math.isfinite, point.runs))
    assert point.updates > before.best_part.best.values[0]
