"""Every recipe of the library is clean, or says in a comment why it is as it is; docs/lint.md is up to date."""

from pathlib import Path

import pytest

import trainers.compat  # noqa: F401
from recipes.lint import handbook, lint_recipe
from recipes.reading.registry import names
from trainers.launch.vocabulary import vocabulary

ROOT = Path(__file__).parents[3]
OURS = [name for name in names("recipes") if (ROOT / "recipes" / "papers" / f"{name}.yaml").is_file()]


@pytest.mark.parametrize("name", OURS)
def test_library_recipe_is_clean(name):
    assert [finding.headline for finding in lint_recipe(name, vocabulary=vocabulary())] == []


def test_page_on_the_rules_is_up_to_date():
    assert (ROOT / "docs" / "lint.md").read_text() == handbook()
