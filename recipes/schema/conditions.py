"""The check that the schema's dataclasses use."""

__all__ = ["require"]


def require(condition: bool, message: str) -> None:
    """Raise unless a condition holds.

    Raises:
        ValueError: `condition` is false.
    """
    if not condition:
        raise ValueError(message)
