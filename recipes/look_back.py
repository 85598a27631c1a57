"""Over how many samples the running statistics of batch normalisation average."""

from __future__ import annotations

from recipes.schema import Evaluation

__all__ = ["look_back"]


def look_back(evaluation: Evaluation, *, global_batch_size: int, norm_span: int) -> float | None:
    """The effective number of samples in the running statistics' moving average; None if there is no average.

        size / (1 - d)      size = B, or a norm group's; d = keep, or keep ** (B / per)

    Args:
        evaluation: of the recipe.
        global_batch_size: B, samples of an update.
        norm_span: samples of a norm group, the step of `by_group`.

    >>> round(look_back(Evaluation(), global_batch_size=8192, norm_span=32))
    81920
    """
    average = evaluation.norm_momentum
    if evaluation.norm_statistics == "last_batch":
        return None
    if average.per != "update":
        return global_batch_size / (1 - average.keep ** (global_batch_size / average.per))
    size = norm_span if evaluation.norm_statistics == "by_group" else global_batch_size
    return size / (1 - average.keep)
