import dataclasses
import typing

import pytest

import lr_schedules
from lr_schedules.units import Epochs, require_increasing, require_number

POSITIONS = {
    "BatchRamp": {"boundaries": tuple[Epochs, ...]},
    "ConstantWarmup": {"epochs": Epochs},
    "Cosine": {"epochs": Epochs},
    "GradualWarmup": {"epochs": Epochs},
    "MultiStep": {"boundaries": tuple[Epochs, ...]},
    "PiecewiseLinear": {"points": tuple[tuple[Epochs, float], ...]},
    "Polynomial": {"epochs": Epochs},
    "SlowStart": {"boundaries": tuple[Epochs, ...]},
}


def test_every_position_is_marked_so_that_a_recipe_may_write_its_unit():
    kinds = {name: getattr(lr_schedules, name) for name in lr_schedules.__all__}
    kinds = {name: kind for name, kind in kinds.items() if dataclasses.is_dataclass(kind)}
    hints = {name: typing.get_type_hints(kind, include_extras=True) for name, kind in kinds.items()}
    marked = {name: {key: hint for key, hint in of.items() if "'epochs'" in str(hint)} for name, of in hints.items()}
    assert {name: of for name, of in marked.items() if of} == POSITIONS


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
