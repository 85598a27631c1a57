"""What belongs to a frontier's folder and what does not, without a trial."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import yaml
from optuna.distributions import IntDistribution

from recipes.frontiers.fit import fit
from recipes.frontiers.open_frontier import open_frontier
from recipes.reading.yaml import block_text
from recipes.search_space.open_search import open_search
from trainers.frontier import report
from trainers.frontier.page import write_report
from trainers.frontier.report import dry_run_text
from trainers.frontier.results import Part
from trainers.frontier.run import (
    _neighbours,
    _own_tree,
    _recipe_change,
    _recipes,
    _require_same,
    _run,
    frontier,
    read_points,
)
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.run_folder import FolderRefused
from trainers.search.folder import folder_record, opened_storage, own_study
from trainers.search.outcome import SearchRequest
from trainers.search.results import write_best
from trainers.search.study import new_study, next_trial

TEXT = """\
kilobatch: 1
recipe: own.yaml
goal: {accuracy: 0.5}
batches: [64, 128, 256]
fixed: {learning_rate.rule: none}
space: {learning_rate.reference: {kind: Float, low: 0.05, high: 5, log: true}}
budget: {trials: 3}
"""


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """`begun(text)`: a frontier over own.yaml beside it, and the folder `out` as its first session leaves it."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("kilobatch: 1\nextends: digits/baseline\n")

    def begun(text=TEXT):
        Path("mine.yaml").write_text(text)
        opened = open_frontier("mine.yaml", vocabulary=search_vocabulary())
        Path("out").mkdir()
        Path("out/frontier.yaml").write_text(block_text(_own_tree(opened)))
        Path("out/recipes.yaml").write_text(block_text(_recipes(opened)))
        return opened

    return begun


def test_a_recipe_that_is_edited_while_the_frontier_runs_is_seen_before_the_next_search(begun):
    opened = begun()
    assert _recipe_change(opened, Path("out")) == ""
    with open("own.yaml", "a") as file:
        file.write("seed: 7\n")
    assert _recipe_change(opened, Path("out")) == "recipe of recipe.seed: 0 before, 7 now"
    Path("own.yaml").write_text("kilobatch: 1\nextends: [\n")
    assert "own.yaml:3:" in _recipe_change(opened, Path("out"))


def test_the_recipe_of_an_optimum_that_was_edited_in_its_last_trial_is_written_once_it_is_back(begun, capsys):
    opened = begun(TEXT.replace("accuracy: 0.5", "epochs: 3").replace("[64, 128, 256]", "[64]") + "seeds: 0\n")
    part, request, own = Path("out/points/recipe-000064/search-0"), SearchRequest(search="mine.yaml"), Path("own.yaml")
    part.mkdir(parents=True)
    file, before = part.with_suffix(".yaml"), own.read_text()
    file.write_text(block_text(opened.search_tree("recipe", 64)))
    searched = open_search(file, **opened.options)
    with opened_storage("journal", part) as storage:
        study = new_study(searched.search, storage=storage)
        own_study(study, part, folder_record(part, searched, resume=False, storage="journal"))
        for accuracy in (0.7, 0.8):
            study.tell(next_trial(study, searched.search), accuracy)
        write_best(part, searched, study)
        study.tell(next_trial(study, searched.search), 0.9)  # in it the recipe was edited
    own.write_text(f"{before}seed: 7\n")
    assert _run(opened, Path("out"), request) == 3
    written = capsys.readouterr().err
    assert "what own.yaml trains was changed while the frontier ran: recipe of recipe.seed: 0 before, 7" in written
    write_report(Path("out"), opened, read_points(opened, Path("out")))
    assert not Path("out/best").exists()
    own.write_text(before)
    assert _run(opened, Path("out"), request) == 0
    write_report(Path("out"), opened, read_points(opened, Path("out")))
    assert Path("out/best/recipe-64.yaml").read_text().startswith("# accuracy 90.00 % in trial 2 of the search mine-")


def test_results_are_not_shown_as_those_of_another_goal(begun, capsys):
    begun()
    shown = SearchRequest(search="out")
    with pytest.raises(FolderRefused, match="holds another frontier; goal.accuracy: 0.5 in the run, 0.9 now; show it"):
        frontier(shown, overrides=["goal.accuracy=0.9"])
    assert frontier(shown, overrides=["batches=[64]"]) == 0
    assert capsys.readouterr().err == ""
    with open("own.yaml", "a") as file:
        file.write("seed: 7\n")
    assert frontier(shown) == 0
    assert (
        "kilobatch: warning: epochs and rates are those of the recipe as it is now; recipe of "
        in capsys.readouterr().err
    )


def test_a_frontier_does_not_go_on_with_other_data(begun):
    opened = begun()
    _require_same(opened, Path("out"))
    (base,) = opened.bases.values()
    more = replace(base, dataset=replace(base.dataset, num_train=1700))
    with pytest.raises(FolderRefused, match="recipe of recipe.dataset.num_train: 1500 in the run, 1700 now"):
        _require_same(replace(opened, bases={"recipe": more}), Path("out"))
    tree = yaml.safe_load(Path("out/recipes.yaml").read_text())
    tree["recipe"]["dataset"] |= {"title": "before", "source": None}  # texts, which older folders have
    Path("out/recipes.yaml").write_text(block_text(tree))
    _require_same(opened, Path("out"))
    tree["recipe"]["code"] = {"own.py": "0"}
    Path("out/recipes.yaml").write_text(block_text(tree))
    with pytest.raises(FolderRefused, match="holds another frontier; code: own.py is gone in the recipe of recipe; "):
        _require_same(opened, Path("out"))
    del tree["recipe"]["dataset"], tree["recipe"]["code"]  # as older folders have it
    Path("out/recipes.yaml").write_text(block_text(tree))
    _require_same(replace(opened, bases={"recipe": more}), Path("out"))


def test_points_with_other_norm_groups_are_never_mixed(begun):
    """Until 2026-11 they were the greatest common divisor: 4 of 100 and 32."""
    opened = begun(TEXT.replace("[64, 128, 256]", "[64, 100]"))
    for batch, span in ((64, 32), (100, 4)):
        folder = Path(f"out/points/recipe-{batch:06d}")
        folder.mkdir(parents=True)
        tree = opened.search_tree("recipe", batch)
        tree["fixed"]["batch.norm_span"] = span
        (folder / "search-0.yaml").write_text(block_text(tree))
    refused = "; batch.norm_span of recipe at batch 100: 4 in the run, 25 now; leave 100 out of `batches`, or begin"
    for dry_run in (False, True):
        with pytest.raises(FolderRefused, match=refused):
            frontier(SearchRequest(search="mine.yaml", out=Path("out"), dry_run=dry_run))
    assert frontier(SearchRequest(search="out")) == 0  # only shown
    Path("out/points/recipe-000100/search-0.yaml").unlink()
    _require_same(opened, Path("out"))


def test_after_a_trial_that_its_fresh_seeds_missed_comes_one_with_other_values(tmp_path):
    """A search confirms trials with equal values once: the runs of its double would never come."""
    (tmp_path / "search-0.yaml").write_text("objective: {metric: updates_to}\n")
    study = optuna.create_study()
    for warmup, updates in ((1, 11.0), (1, 10.0), (2, 12.0)):
        study.enqueue_trial({"warmup": warmup})
        trial = study.ask({"warmup": IntDistribution(1, 2)})
        study.tell(trial, updates)
    part = Part(folder=tmp_path, file=tmp_path / "search-0.yaml", trials=tuple(study.trials), seeds=(), num_seeds=2)
    assert (part.best.number, replace(part, missed=frozenset([1])).best.number) == (1, 2)


def test_json_says_how_far_off_the_curve_is_as_the_text_does_and_open_ends_are_null():
    curve = fit([(64, 200.0), (128, 110.0), (256, 61.0)])
    for ends, shown in (((30.0, 120.0), [30, 120]), ((0.0, 120.0), [None, 120]), ((30.0, math.inf), [30, math.inf])):
        tree = report._fit_tree((curve, ends))
        assert tree["interval"] == shown
        assert tree["error"] == pytest.approx(math.exp(curve.error) - 1)


def test_a_dry_run_has_the_norm_groups_where_a_batch_changes_them(begun):
    assert "norm_span" not in dry_run_text(begun(), workers=1)
    opened = open_frontier("mine.yaml", vocabulary=search_vocabulary(), overrides=["batches=[64, 100]"])
    assert "norm_span" in dry_run_text(opened, workers=1)
    points = json.loads(dry_run_text(opened, workers=1, as_json=True))["points"]
    assert [point["norm_span"] for point in points] == [32, 25]


def test_the_neighbours_of_a_point_are_the_nearest_batches_of_its_method_on_each_side():
    opened = SimpleNamespace(frontier=SimpleNamespace(neighbours=True))
    points = [
        SimpleNamespace(opened=opened, method=method, batch=batch, optimum=batch)
        for batch in (16, 32, 64, 128, 256)
        for method in ("sgd", "lars")
    ]
    assert [(each.method, each.batch) for each in _neighbours(points, points[5])] == [("lars", 32), ("lars", 128)]
