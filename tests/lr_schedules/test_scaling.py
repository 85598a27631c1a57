import pytest

from lr_schedules import linear_scaling, no_scaling, power_scaling, sqrt_scaling


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


def test_a_power_between_the_root_and_the_linear_rule():
    assert [power_scaling(512, per=32, exponent=p) for p in (0, 0.25, 0.5, 1)] == [1.0, 2.0, 4.0, 16.0]
    with pytest.raises(ValueError, match="power_scaling: exponent must be >= 0, got -1"):
        power_scaling(512, per=32, exponent=-1)
