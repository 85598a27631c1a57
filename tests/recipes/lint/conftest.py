"""Recipes in an empty folder, and what lint finds in them."""

import re

import pytest

import trainers.compat  # noqa: F401
from recipes.lint import lint_recipe
from trainers.launch.vocabulary import vocabulary


@pytest.fixture
def lint(tmp_path, monkeypatch):
    """Writes a recipe and lints it: `lint(text)`; more files as `name=text`, which become `name.yaml`."""
    monkeypatch.chdir(tmp_path)

    def result(text, *overrides, workers=None, **files):
        for name, content in {"mine": text, **files}.items():
            (tmp_path / f"{name}.yaml").write_text(built(content))
        return lint_recipe("mine.yaml", vocabulary=vocabulary(), overrides=overrides, workers=workers)

    return result


def built(text):
    """The recipe with a `lacks` for the kinds that are not built."""
    known = vocabulary()
    kinds = [*known.optimizers, *known.losses, *known.schedules, *known.warmups, *known.models]
    missing = sorted(set(re.findall(r"kind: (\w+)", text)) - {*kinds, *known.augmentations})
    return text + f"lacks: [{', '.join(missing)}]\n" if missing else text


@pytest.fixture
def marks():
    """(rule, line, column) of findings."""
    return lambda findings: [(finding.rule, finding.line, finding.column) for finding in findings]
