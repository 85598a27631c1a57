"""What belongs to a frontier's folder and what does not, without a trial."""

from pathlib import Path

import pytest

from recipes.frontiers.open_frontier import open_frontier
from recipes.reading.yaml import block_text
from trainers.frontier.run import _own_tree, _recipe_change, _recipes
from trainers.launch.vocabulary import search_vocabulary

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
