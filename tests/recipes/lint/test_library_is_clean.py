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


GOYAL = "kilobatch: 1\nname: mine\nextends: %s\n%s"
MISTAKES = {
    "the rate scaled twice": ("goyal2017", "learning_rate: {reference: 3.2, per: 256, rule: linear}\n", "scaled-twice"),
    "the full rate without a warmup": (
        "goyal2017",
        "learning_rate: {reference: 3.2, per: 8192, rule: none, warmup: null}\n",
        "no-warmup",
    ),
    "boundaries of a longer run": ("goyal2017", "epochs: 30\n", "decay-after-end"),
    "statistics over two samples": ("goyal2017", "batch: {norm_span: 2}\n", "narrow-norm-span"),
    "more momentum at the same rate": ("goyal2017", "optimizer: {momentum: 0.99}\n", "raised-momentum"),
    "an average over most of the run": ("goyal2017", "weight_average: {keep: 0.9999, per: 8192}\n", "lagging-average"),
    "a warmup of five updates": ("goyal2017", "learning_rate: {warmup: {epochs: 5up}}\n", "short-warmup"),
    "too few updates": ("digits/baseline", "batch: {global: 512}\nepochs: 10\n", "few-updates"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_that_people_make_at_a_large_batch_is_found(tmp_path, mistake):
    base, text, rule = MISTAKES[mistake]
    (tmp_path / "mine.yaml").write_text(GOYAL % (base, text))
    assert rule in {finding.rule for finding in lint_recipe(tmp_path / "mine.yaml", vocabulary=vocabulary())}
