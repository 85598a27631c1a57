"""Paths at which the system does not let us look: a refusal with exit code 2, not an exception of pathlib's."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.errors import InputRefused, RecipeError

LONG = "a" * 300  # more than a file system takes
COMMANDS = [
    ("recipes", "show", "{}.yaml"),
    ("recipes", "show", "{}"),
    ("recipes", "copy", "{}.yaml", "mine.yaml"),
    ("recipes", "diff", "digits/baseline", "{}"),
    ("recipes", "pack", "digits/baseline", "-o", "{}/a.kilobatch"),
    ("plan", "digits/baseline", "--cluster", "{}.yaml"),
    ("rehearse", "digits/baseline", "--cluster", "{}.yaml"),
    ("train", "digits/baseline", "--out", "{}"),
    ("evaluate", "{}"),
    ("report", "{}"),
    ("runs", "list", "{}"),
    ("runs", "show", "{}"),
    ("runs", "rm", "-y", "{}"),
    ("search", "{}.yaml"),
    ("search", "digits", "--out", "{}"),
    ("frontier", "{}.yaml"),
    ("frontier", "digits", "--out", "{}"),
]


@pytest.fixture
def error_of(tmp_path, monkeypatch):
    """`error_of(*words)`: what the command raises in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(kilobatch.app, words).exception


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_path_that_is_too_long_is_refused(tmp_path, error_of, words):
    error = error_of(*(word.format(LONG) for word in words))
    assert isinstance(error, InputRefused)
    assert "File name too long; " in str(error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_folder_that_may_not_be_entered_is_refused(tmp_path, error_of, words):
    (tmp_path / "closed").mkdir(mode=0)
    if os.access("closed", os.X_OK):
        pytest.skip("root may enter every folder")
    error = error_of(*(word.format("closed/inner") for word in words))
    assert isinstance(error, InputRefused)
    assert "Permission denied; " in str(error)


def test_validate_goes_on_with_the_next_recipe(tmp_path):
    line = [sys.executable, "-P", "-m", "kilobatch", "recipes", "validate", f"{LONG}.yaml", "digits/baseline"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "digits/baseline: valid\n")
    assert done.stderr.startswith(f"{LONG}.yaml:1:1: cannot be read: File name too long; check the path")
    assert len(done.stderr.splitlines()) == 1


def test_the_home_of_nobody_holds_no_file(tmp_path, error_of):
    (tmp_path / "photos.yaml").write_text("reader: {kind: ImageFolder}\nroot: ~no-such-user/x\nchannels: 3\n")
    for words, text in (
        (("diff", "~no-such-user/x.yaml", "digits/baseline"), "there is no file ~no-such-user/x.yaml; "),
        (("show", "digits/baseline", "--set", "dataset=photos.yaml"), "~no-such-user/x/train: no such folder"),
    ):
        error = error_of("recipes", *words)
        assert isinstance(error, RecipeError)
        assert text in str(error)


def test_extending_a_link_to_itself_is_refused(tmp_path, error_of):
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "mine.yaml").write_text("kilobatch: 1\nextends: loop.yaml\n")
    error = error_of("recipes", "show", "mine.yaml")
    assert isinstance(error, RecipeError)
    assert str(error).startswith("mine.yaml:2:10: extends: there is no file ")


@pytest.mark.parametrize(("length", "code"), [(200, 0), (201, 2)])
def test_a_name_that_its_folder_could_not_have_is_refused(tmp_path, error_of, length, code):
    (tmp_path / "mine.yaml").write_text(f"kilobatch: 1\nextends: digits/baseline\nname: {'a' * length}\n")
    assert isinstance(error_of("recipes", "validate", "mine.yaml"), RecipeError) == (code == 2)


@pytest.mark.parametrize("target", [".", "..", "/"])
def test_a_copy_needs_a_file(tmp_path, monkeypatch, error_of, target):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    error = error_of("recipes", "copy", "digits/baseline", target)
    assert isinstance(error, RecipeError)
    named = {".": "here", "..": tmp_path.name, "/": "mine"}[target]
    assert str(error).endswith(f": the path of a recipe ends in .yaml; call it {named}.yaml")


def test_a_cluster_without_a_name_is_not_taken_for_none(error_of):
    error = error_of("plan", "digits/baseline", "--cluster", "")
    assert isinstance(error, RecipeError)
    assert "there is no cluster called ''" in str(error)
