"""The ResNets' common check of `last_gamma`, the initial scale of a block's last normalisation."""

from __future__ import annotations

from lr_schedules.units import require_number


def require_last_gamma(name: str, value: object, *, is_zero: bool) -> None:
    """Refuse an invalid `last_gamma`, and one beside `zero_last_gamma`.

    Args:
        name: class and field, for the message.
        value: a number of at least 0, or None.
        is_zero: the value of `zero_last_gamma`.
    Raises:
        ValueError: `value` is no number or below 0; it is given although `is_zero`.
    """
    if value is None:
        return
    require_number(name, value, at_least=0)
    if is_zero:
        raise ValueError(
            f"{name} must be null where zero_last_gamma is true, got {value!r}; write zero_last_gamma: false"
        )
