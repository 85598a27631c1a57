"""Recipes whose parts go together although they look otherwise."""

import pytest

from recipes.reports.terminal import curve_text

ZERO_FIRST = "schedule: {kind: PiecewiseLinear, points: [[0, 0], [2, 1], [16, 0]]}"


RATE = "learning_rate: {reference: 1, per: 32, %s}"
MOMENTUM = "schedules: {momentum: {kind: PiecewiseLinear, points: [[0, 1], %s]}}"


@pytest.mark.parametrize(
    "lines",
    [
        {"line_5": "epochs: 1up", "line_7": RATE % ZERO_FIRST},
        {"line_5": "epochs: 0.5", "line_7": RATE % f"every: 1, {ZERO_FIRST}"},
        {"line_5": "epochs: 1", "line_7": RATE % "schedule: {kind: SlowStart, boundaries: [2], factors: [0, 1]}"},
        {"line_7": RATE % "schedule: {kind: MultiStep, boundaries: [25], factor: 1e300}"},
        {"line_7": RATE % "schedule: {kind: Exponential, ratio: 1e-308}"},
        {"line_7": RATE % "schedule: {kind: CosineRestarts, first: 10, times: 1e308}"},
        {"line_10": MOMENTUM % "[20, 1.1112]"},  # 1.00008 where the run ends
        {"line_10": MOMENTUM % "[1.001, 1], [1.002, 9], [1.003, 1]"},
    ],
)
def test_a_value_that_no_update_takes_is_not_refused(lines, opened):
    result = opened(**lines)
    assert "learning rate" in curve_text(result.recipe, result.dataset)
