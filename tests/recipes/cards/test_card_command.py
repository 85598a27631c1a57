"""`kilobatch recipes card` through the command line, and what `validate` and `train` say of values left open."""

import os

import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from trainers.launch.preflight import NotBuilt, refuse_unbuilt
from trainers.launch.vocabulary import vocabulary


def test_card_on_the_terminal_ends_with_its_curve(run):
    code, out = run("card", "goyal2017", "--set", "batch.global=512")
    assert code == 0
    assert "global batch   512" in out
    assert any("\u2801" <= character <= "\u28ff" for character in out)


@pytest.mark.parametrize(("name", "files"), [("c.html", ["c.html"]), ("c.md", ["c.md", "c.svg"])])
def test_card_into_files(tmp_path, monkeypatch, name, files):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(kilobatch.app, ["recipes", "card", "digits/ramp", "-o", name])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"wrote {' and '.join(files)}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert "can be trained here" in (tmp_path / name).read_text().lower()


def test_the_picture_of_a_card_is_found_whatever_its_name(run, tmp_path):
    assert run("card", "digits/ramp", "-o", "my card (1).md")[0] == 0
    assert (tmp_path / "my card (1).svg").exists()
    assert "](my%20card%20%281%29.svg)" in (tmp_path / "my card (1).md").read_text()


def test_the_picture_of_a_rate_that_never_changes(run, tmp_path):
    constant = ("--set", "learning_rate.warmup=null", "--set", "learning_rate.schedule=null")
    assert run("card", "digits/naive", *constant, "-o", "c.md")[0] == 0
    assert "0.05" in (tmp_path / "c.svg").read_text()


@pytest.mark.parametrize(("name", "shown"), [("c.html", "caf?/mine.yaml"), ("c.md", "caf\\udce9/mine.yaml")])
def test_the_card_of_a_recipe_whose_folder_is_no_utf_8(run, tmp_path, name, shown):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "mine.yaml").write_text("kilobatch: 1\nextends: digits/ramp\n")
    assert run("card", str(folder / "mine.yaml"), "-o", name)[0] == 0
    assert shown in (tmp_path / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [(), ("goyal2017", "-o", "c.txt"), ("goyal2017", "-o", "no/folder/c.html"), ("goyal2017", "--library", "l.md")],
)
def test_card_refuses_what_it_cannot_do(run, tmp_path, arguments):
    assert run("card", *arguments)[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_recipe_with_open_values_is_valid_and_lists_them(run):
    code, out = run("validate", "you2017/resnet50_32768")
    assert code == 0
    assert "cannot be trained yet" in out
    assert "left open: learning_rate.reference, learning_rate.warmup" in out


def test_recipe_with_open_values_is_not_trained_until_they_are_given(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("kilobatch: 1\nextends: digits/baseline\nopen: [learning_rate.reference]\n")
    opened = open_recipe(mine, vocabulary=vocabulary())
    with pytest.raises(NotBuilt, match=r"leaves open what nobody published: learning_rate\.reference") as caught:
        refuse_unbuilt(opened.recipe, opened.dataset)
    assert isinstance(caught.value, InputRefused)
    yours = tmp_path / "yours.yaml"
    yours.write_text("kilobatch: 1\nextends: mine.yaml\nlearning_rate: {reference: 0.1}\nopen: []\n")
    opened = open_recipe(yours, vocabulary=vocabulary())
    refuse_unbuilt(opened.recipe, opened.dataset)


def test_open_path_that_is_no_value_is_refused(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("kilobatch: 1\nextends: digits/baseline\nopen: [learning_rate.refrence]\n")
    with pytest.raises(InputRefused, match=r"open\.0: there is no value at learning_rate\.refrence"):
        open_recipe(mine, vocabulary=vocabulary())


def test_card_is_not_inherited(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("kilobatch: 1\nextends: digits/baseline\n")
    assert open_recipe(mine, vocabulary=vocabulary()).recipe.card is None
