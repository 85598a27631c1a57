"""How far the linear rule is carried, by hand."""

import pytest

import trainers.compat  # noqa: F401
from recipes.planning.rates import linear_reach
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

RAMP = "batch.global=[{from: 0, size: 4096}, {from: 30, size: 8192}]"


@pytest.mark.parametrize(
    ("overrides", "reach"),
    [
        ([], 8192),
        (["batch.global=65536"], 65536),
        ([RAMP], 4096),  # at a tenth of the rate
        ([RAMP.replace("30", "10")], 8192),
        ([RAMP.replace("30", "10"), "learning_rate.scale_with=initial"], 4096),
        ([RAMP, "learning_rate.rule=none"], 4096),
        ([RAMP, "learning_rate.schedule.factor=0.75"], 6144),
    ],
)
def test_reach_of_goyal2017(overrides, reach):
    recipe = open_recipe("goyal2017", vocabulary=vocabulary(), overrides=overrides).recipe
    assert linear_reach(recipe) == pytest.approx(reach)
