"""Recipes at another batch, in an empty folder."""

import dataclasses

import pytest

import trainers.compat  # noqa: F401
from recipes.reading.open import open_recipe
from recipes.scale import scale_recipe
from trainers.launch.vocabulary import vocabulary


@pytest.fixture
def scale(tmp_path, monkeypatch):
    """Scales a recipe, or a text that extends one, and opens what was written: (scaled, opened)."""
    monkeypatch.chdir(tmp_path)

    def scaled(name, batch, *, text=None, **options):
        if text is not None:
            (tmp_path / name).write_text(text)
        made = scale_recipe(name, batch=batch, vocabulary=vocabulary(), **options)
        return made, open_recipe(made.file, vocabulary=vocabulary())

    return scaled


@pytest.fixture
def same_run():
    """A recipe without what is said about it: what is trained, and how."""

    def stripped(name_or_opened):
        opened = name_or_opened
        if isinstance(name_or_opened, str):
            opened = open_recipe(name_or_opened, vocabulary=vocabulary())
        words = {"name": "", "title": "", "source": {}, "claims": (), "card": None, "assumed": ()}
        return dataclasses.replace(opened.recipe, **words)

    return stripped


@pytest.fixture
def change_of():
    """(before, after) of a key of what was scaled."""

    def values(scaled, key):
        (change,) = [change for change in scaled.changes if change.key == key]
        return change.before, change.after

    return values
