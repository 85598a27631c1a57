"""Tries metrics of the user's own on random logits before a run, so that none fails after its first epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from recipes.schema import Dataset, Recipe
from trainers.metrics import figures_of
from trainers.runs.identity import is_of_the_user
from trainers.training.trial_repeat import differing, keeping_fields

_MOST = 4_000_000  # logits


def require_metrics(recipe: Recipe, dataset: Dataset) -> Iterator[str]:
    """Call each own metric with logits of as many samples as are scored, or fewer where there are many logits.

    Returns:
        warnings: one that gives another number when it is called again, or no finite one.
    Raises:
        InputRefused: one fails, gives no number, or changes its own fields; names its class.
    """
    classes = dataset.num_classes
    samples = max(1, min(dataset.num_eval, _MOST // classes))
    logits = np.random.default_rng(0).normal(size=(samples, classes)).astype(np.float32)
    labels = np.arange(samples) % classes
    for metric in filter(is_of_the_user, recipe.evaluation.metrics):
        name = f"the metric {type(metric).__name__}"
        with keeping_fields(name, metric):
            (number,) = figures_of([metric], logits, labels).values()
            others = differing(lambda metric=metric: [*figures_of([metric], logits, labels).values()], times=3)
        if others:
            what = f"gives {others[0][0]:.6g} and then {others[1][0]:.6g} for the same logits"
            yield f"{name} {what}: no run can be repeated; draw nothing, and keep nothing between calls"
        elif not math.isfinite(number):
            yield f"{name} gives {number} for random logits of {samples} samples"
