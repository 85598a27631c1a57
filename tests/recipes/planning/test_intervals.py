import pytest

from recipes.planning.intervals import interval_of_mean, t_quantile


@pytest.mark.parametrize(
    ("probability", "df", "expected"),
    [(0.95, 1, 6.313752), (0.95, 4, 2.131847), (0.96, 8, 2.004152), (0.9967, 3, 6.764857), (0.95, 120, 1.657651)]
    + [(0.975, 1.2, 8.648825), (0.9999, 1.05, 2189.551), (0.99995, 1, 6366.198)],
)
def test_quantiles_are_those_of_tables(probability, df, expected):
    assert t_quantile(probability, df) == pytest.approx(expected, rel=1e-5)


def test_interval_of_a_mean_is_that_of_a_table():
    """t(0.975, 3) is 3.182446; of 1, 2, 3 and 6 the mean is 3 and the variance 14 / 3."""
    half = 3.182446 * (14 / 3 / 4) ** 0.5
    assert interval_of_mean([1, 2, 3, 6]) == pytest.approx((3 - half, 3 + half), rel=1e-5)
