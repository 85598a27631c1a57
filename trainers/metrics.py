"""Metrics: each a frozen dataclass that is called with the logits and labels of a whole evaluation, and gives a number.

    metric(logits, labels) -> float        float32 (samples, classes) and int64 (samples,), in the order of the samples,
                                           both read-only

Its name is its attribute `name`, or that of its class in small letters, such as `macro_f1`.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.arguments import require_count
from recipes.errors import InputRefused
from recipes.schema.vocabulary import metric_name

__all__ = ["BalancedAccuracy", "MacroF1", "TopAccuracy"]


@dataclass(frozen=True, kw_only=True)
class BalancedAccuracy:
    """The mean over the classes of the share of a class's samples that is recognised.

    Classes without a sample do not count. Where the classes have different sizes, a model that knows the largest one
    only is not rewarded for it.

    Source: scikit-learn's documentation of balanced_accuracy_score.
    """

    def __call__(self, logits: np.ndarray, labels: np.ndarray) -> float:
        counts = _confusion(logits, labels)
        sizes = counts.sum(axis=1)
        return float((np.diag(counts)[sizes > 0] / sizes[sizes > 0]).mean())


@dataclass(frozen=True, kw_only=True)
class MacroF1:
    """The mean over the classes of the harmonic mean of precision and recall.

        F1_k = 2 hits_k / (samples of class k + samples that are taken for it)

    Classes that no sample has and none is taken for do not count.

    Source: scikit-learn's documentation of f1_score with `average="macro"`.
    """

    def __call__(self, logits: np.ndarray, labels: np.ndarray) -> float:
        counts = _confusion(logits, labels)
        sizes = counts.sum(axis=0) + counts.sum(axis=1)
        return float((2 * np.diag(counts)[sizes > 0] / sizes[sizes > 0]).mean())


@dataclass(frozen=True, kw_only=True)
class TopAccuracy:
    """The share of samples whose class is among the `k` with the largest logits; of equal ones the first counts.

    Args:
        k: at least 1, and fewer than the classes.
    Raises:
        ValueError: `k` is below 1.

    Source: Krizhevsky et al. 2012, section 7 (top-5 error rates; not checked).
    """

    k: int = 5

    def __post_init__(self) -> None:
        require_count("TopAccuracy.k", self.k)

    @property
    def name(self) -> str:
        return f"top{self.k}_accuracy"

    def require_classes(self, num_classes: int) -> None:
        """Refuse a `k` with which each sample would count.

        Raises:
            InputRefused: there are no more classes.
        """
        if self.k >= num_classes:
            raise InputRefused(f"TopAccuracy.k must be below the {num_classes} classes, got {self.k}")

    def __call__(self, logits: np.ndarray, labels: np.ndarray) -> float:
        first = np.argsort(-logits, axis=1, kind="stable")[:, : self.k]
        return float((first == labels[:, np.newaxis]).any(axis=1).mean())


def _confusion(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many samples of each class (rows) were taken for each (columns): int64 (classes, classes)."""
    num_classes = logits.shape[1]
    places = num_classes * labels + logits.argmax(axis=1)
    return np.bincount(places, minlength=num_classes**2).reshape(num_classes, num_classes)


def figures_of(metrics: Sequence[Any], logits: np.ndarray, labels: np.ndarray) -> Mapping[str, float]:
    """The number of each metric, by its name; none can change the arrays.

    Raises:
        InputRefused: one fails, or gives no number; names its class.
    """
    logits, labels = logits.view(), labels.view()
    logits.flags.writeable = labels.flags.writeable = False
    return {metric_name(metric): _number(metric, logits, labels) for metric in metrics}


def _number(metric: Any, logits: np.ndarray, labels: np.ndarray) -> float:
    what = f"the metric {type(metric).__name__}"
    try:
        value = metric(logits, labels)
    except Exception as error:  # of one's own code
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}: {type(error).__name__}: {error}"
        arrays = f"logits, float32 {logits.shape}, and labels, int64 {labels.shape}, both read-only"
        raise InputRefused(f"{what} failed with {arrays}: {where}") from error
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        gave = f"an array of the shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise InputRefused(f"{what} gave {gave}; return one number, such as float(x)") from error
