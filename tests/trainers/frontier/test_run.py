"""What belongs to a frontier's folder and what does not, without a trial."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from recipes.frontiers.open_frontier import open_frontier
from recipes.reading.yaml import block_text
from trainers.frontier.run import _own_tree, _recipe_change, _recipes, _require_same, frontier
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.run_folder import FolderRefused
from trainers.search.outcome import SearchRequest

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
    assert _recipe_change(opened, Path("out")) == "recipe.seed: 0 before, 7 now"
    Path("own.yaml").write_text("kilobatch: 1\nextends: [\n")
    assert "own.yaml:3:" in _recipe_change(opened, Path("out"))


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
    assert "warning: epochs and rates are those of the recipe as it is now; recipe of " in capsys.readouterr().err


def test_a_frontier_does_not_go_on_with_other_data(begun):
    opened = begun()
    _require_same(opened, Path("out"))
    (base,) = opened.bases.values()
    more = replace(base, dataset=replace(base.dataset, num_train=1700))
    with pytest.raises(FolderRefused, match="recipe of recipe.dataset.num_train: 1500 in the run, 1700 now"):
        _require_same(replace(opened, bases={"recipe": more}), Path("out"))
    tree = yaml.safe_load(Path("out/recipes.yaml").read_text())
    del tree["recipe"]["dataset"]  # as older folders have it
    Path("out/recipes.yaml").write_text(block_text(tree))
    _require_same(replace(opened, bases={"recipe": more}), Path("out"))
