import pytest

from lr_schedules.units import require_increasing, require_number


def test_number_at_the_edge_of_its_range_passes():
    require_number("a", 0, at_least=0, at_most=1)
    require_number("a", 1.0, at_least=0, at_most=1)
    with pytest.raises(ValueError, match="^a must be > 0, got 0$"):
        require_number("a", 0, above=0)


@pytest.mark.parametrize("value", [None, "1", True, 1j, [1.0]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="^a must be a finite number, got "):
        require_number("a", value)


def test_positions_may_start_at_zero():
    require_increasing("a", (0.0, 1, 1.5))
    with pytest.raises(ValueError, match="^a must increase, got 1.5 after 1.5$"):
        require_increasing("a", (0.0, 1.5, 1.5))
