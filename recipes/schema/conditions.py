"""What the fields of the schema must fulfil."""

__all__ = ["require"]


def require(condition: bool, message: str) -> None:
    """Refuse what does not fulfil a condition.

    Raises:
        ValueError: `condition` is false.
    """
    if not condition:
        raise ValueError(message)
