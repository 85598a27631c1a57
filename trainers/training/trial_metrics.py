"""Tries metrics of the user's own on random logits before a run, so that none fails after its first epoch."""

from __future__ import annotations

import numpy as np

from recipes.errors import InputRefused
from recipes.schema import Dataset, Recipe
from trainers.metrics import figures_of
from trainers.runs.identity import is_of_the_user
from trainers.training.trial_repeat import keeping_fields

_MOST = 4_000_000  # logits


def require_metrics(recipe: Recipe, dataset: Dataset) -> None:
    """Call each own metric with the logits of two samples a class, or fewer where there are thousands of classes.

    Raises:
        InputRefused: one fails, gives no number, or changes its own fields; names its class.
    """
    classes = dataset.num_classes
    samples = max(64, min(2 * classes, _MOST // classes))
    logits = np.random.default_rng(0).normal(size=(samples, classes)).astype(np.float32)
    labels = np.arange(samples) % classes
    for metric in filter(is_of_the_user, recipe.evaluation.metrics):
        name = type(metric).__name__
        with keeping_fields(f"the metric {name}", metric):
            try:
                figures_of([metric], logits.copy(), labels.copy())
            except InputRefused:
                raise
            except Exception as error:
                what = f"is called with logits, float32 {logits.shape}, and labels, int64 {labels.shape}"
                why = f"{type(error).__name__}: {error}"
                raise InputRefused(f"the metric {name} {what}, of {classes} classes: {why}") from error
