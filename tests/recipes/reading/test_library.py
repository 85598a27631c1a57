"""Copies of recipes, and the files that their paths name."""

import re

import pytest

from recipes.errors import RecipeError
from recipes.reading.library import copy_recipe
from recipes.reading.load import load_tree


@pytest.fixture
def original(tmp_path, monkeypatch):
    """Makes below/mine.yaml of a text, beside the files that it may name; the working directory has one of them too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "below").mkdir()
    for name in ("data.yaml", "below/data.yaml", "below/base.yaml", "below/w.safetensors"):
        (tmp_path / name).write_text("kilobatch: 1\nextends: digits/baseline\n")

    def write(text, name="mine.yaml"):
        (tmp_path / "below" / name).write_text(f"kilobatch: 1\n{text}\n")
        return f"below/{name}"

    return write


PATHS = [
    ("extends: base.yaml", "2:10: extends: is below/base.yaml, and would be {}base.yaml in the copy; "),
    ("dataset: data.yaml", "2:10: dataset: is below/data.yaml, and would be data.yaml in the copy; "),
    ("init: {weights: w.safetensors}", "2:17: init.weights: is below/w.safetensors, and would be {}w.safetensors in "),
]


@pytest.mark.parametrize(("text", "message"), PATHS)
@pytest.mark.parametrize(
    ("target", "way_out"),
    [
        ("copy.yaml", "write `kilobatch: 1`, `extends: below/mine.yaml` and your own values into copy.yaml"),
        ("other/copy.yaml", "copy it into its own folder: kilobatch recipes copy below/mine.yaml below/FILE.yaml"),
    ],
)
def test_a_copy_whose_path_would_name_another_file_is_refused(original, tmp_path, text, message, target, way_out):
    there = message.format(target.removesuffix("copy.yaml"))
    with pytest.raises(RecipeError, match=f"^below/mine.yaml:{re.escape(there)}.*{re.escape(way_out)}$"):
        copy_recipe(original(text), tmp_path / target)
    assert not (tmp_path / target).exists()
    (tmp_path / "instead.yaml").write_text("kilobatch: 1\nextends: below/mine.yaml\n")
    assert load_tree(tmp_path / "instead.yaml")[0]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        *((text, "below/copy.yaml") for text, _ in PATHS),
        ("extends: digits/baseline\ndataset: digits", "copy.yaml"),
        ("dataset: other/data.yaml", "copy.yaml"),  # below the working directory
    ],
)
def test_a_copy_whose_paths_name_the_same_files_has_the_same_text(original, tmp_path, text, target):
    (tmp_path / "other" / "data.yaml").touch()
    copy_recipe(original(text), tmp_path / target)
    assert (tmp_path / target).read_text().partition("\n")[2] == f"kilobatch: 1\n{text}\n"


@pytest.mark.parametrize(("target", "folder"), [("copy.yaml", "below"), ("other/copy.yaml", "{}/below")])
def test_the_copy_of_a_runs_recipe_names_the_files_of_the_run(original, tmp_path, target, folder):
    original("", "run.yaml")
    original("dataset: data.yaml  # a note\ninit:\n  weights: w.safetensors", "recipe.yaml")
    copy_recipe("below", tmp_path / target)
    place = folder.format(tmp_path)
    expected = f'kilobatch: 1\ndataset: "{place}/data.yaml"  # a note\ninit:\n  weights: "{place}/w.safetensors"\n'
    assert (tmp_path / target).read_text().partition("\n")[2] == expected
