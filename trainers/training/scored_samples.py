"""`evaluation/` in a run's folder: what the last evaluation says of each class, and the samples with the worst loss."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from recipes.schema import Dataset, Recipe
from trainers.datasets.sheet import evaluated_samples
from trainers.runs.run_folder import EVALUATION, refuse_links, write_whole
from trainers.training.extensions.evaluation import Score

_NUM_WORST = 24
_LARGEST = 96  # pixels of a picture's longer side


def gather_samples(score: Score, mpi: Any) -> np.ndarray | None:
    """`Score.samples` of all workers in the order of the evaluation set, on rank 0; all workers call this together.

    Bytes on the wire: 24 a sample, each to rank 0.
    """
    shares = mpi.gather((score.first, score.samples), root=0)
    return None if shares is None else np.concatenate([part for _, part in sorted(shares, key=lambda pair: pair[0])])


def write_samples(
    folder: Path, samples: np.ndarray, *, recipe: Recipe, dataset: Dataset, reached: dict[str, Any]
) -> None:
    """Write `classes.json` and the pictures of the worst samples into `evaluation/` of a run's folder.

    Args:
        folder: of the run.
        samples: as in `Score.samples`, of the whole evaluation set.
        recipe, dataset: of the run.
        reached: update, epoch and split of the evaluation.
    Raises:
        FolderRefused: `evaluation/`, or a file in it, is a link that leads out of the folder.
    """
    refuse_links(folder, EVALUATION)
    labels, taken_for = (samples[:, column].astype(np.int64) for column in (0, 1))
    losses = np.nan_to_num(samples[:, 2], nan=math.inf)
    worst = np.argsort(-losses, kind="stable")[:_NUM_WORST].tolist()
    pairs, counts = np.unique(np.stack([labels, taken_for]), axis=1, return_counts=True)
    target = folder / EVALUATION
    target.mkdir(exist_ok=True)
    for at, shown in enumerate(evaluated_samples(recipe, dataset, worst)):
        image = shown.picture
        image.thumbnail((_LARGEST, _LARGEST))
        image.save(target / f"worst-{at:02d}.png")
    facts = {
        **reached,
        "classes": dataset.class_names() or list(map(str, range(dataset.num_classes))),
        "counts": [[*pair, count] for pair, count in zip(pairs.T.tolist(), counts.tolist(), strict=True)],
        "worst": [
            {
                "sample": index,
                "label": int(labels[index]),
                "taken_for": int(taken_for[index]),
                "loss": _plain(losses[index]),
            }
            for index in worst
        ],
    }
    write_whole(target / "classes.json", json.dumps(facts) + "\n")


def _plain(loss: float) -> float | None:
    return float(f"{loss:.6g}") if math.isfinite(loss) else None
