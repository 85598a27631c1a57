import pytest

from lr_schedules import linear_scaling, no_scaling, sqrt_scaling


@pytest.mark.parametrize(
    ("rule", "per", "factors"),
    [
        (linear_scaling, 256, {128: 0.5, 256: 1.0, 384: 1.5, 8192: 32.0}),
        (sqrt_scaling, 128, {128: 1.0, 512: 2.0, 2048: 4.0, 32: 0.5}),
        (no_scaling, 256, {1: 1.0, 256: 1.0, 65536: 1.0}),
    ],
)
def test_rule_by_hand(rule, per, factors):
    assert {size: rule(size, per=per) for size in factors} == factors
