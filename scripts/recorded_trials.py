"""The design of the recorded trials, and how their file is read; chosen before any of them was run.

200 configurations of the digits recipe, drawn once; each is trained whole, and compressed to a third and a ninth.
What a search over large batches meets is in it: batches of 64 to 192 of 1,500 samples, warmups of up to three epochs,
runs of 5 and of 10 epochs, two schedules. Every epoch ends at one of the twenty reports of a whole run, so that the
same numbers can be compared at equal parts of the run and at equal epochs. Network, epochs and batches were made as
small as this to bring all of it into the processor time there was; only the seconds of five runs were looked at.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from recipes.search_space.ranges import Categorical, Float  # noqa: E402

TABLE = ROOT / "tests" / "golden" / "recorded_trials.json"
RECIPE = "digits/baseline"
CONFIGURATIONS, REPORTS = 200, 20
SHARES = (Fraction(1, 9), Fraction(1, 3), Fraction(1))
EVALUATED = 297  # samples of the evaluation split
_SMALL = ("model={kind: SmallCNN, width: 8}", "augmentation.train=[{kind: Normalize, with: digits}]")
_SCHEDULES = ("{kind: Cosine}", "{kind: MultiStep, boundaries: [0.5run, 0.75run], factor: 0.1}")
SPACE = {
    "epochs": Categorical(choices=(5, 10)),
    "batch.global": Categorical(choices=(64, 128, 192)),
    "learning_rate.reference": Float(low=0.003, high=0.6, log=True),  # at 32 samples, scaled linearly
    "learning_rate.warmup": Categorical(choices=(0, 0.5, 1.5, 3)),  # epochs, 0 for none
    "learning_rate.schedule": Categorical(choices=_SCHEDULES),
    "optimizer.momentum": Categorical(choices=(0.8, 0.9, 0.95)),
    "optimizer.weight_decay": Float(low=1e-5, high=1e-2, log=True),
    "loss.label_smoothing": Categorical(choices=(0.0, 0.1)),
}


def values_of(number: int) -> dict[str, Any]:
    """The values of a configuration, by their paths in the recipe: independent even draws, keyed by its number."""
    draws = np.random.Generator(np.random.Philox(key=number)).random(len(SPACE))
    return {path: _at(range_, draw) for (path, range_), draw in zip(SPACE.items(), draws, strict=True)}


def _at(range_: Float | Categorical, draw: float) -> Any:
    if isinstance(range_, Categorical):
        return range_.choices[int(draw * len(range_.choices))]
    return float(f"{range_.low * (range_.high / range_.low) ** draw:.4g}")


def overrides_of(values: dict[str, Any]) -> tuple[str, ...]:
    """What `kilobatch train digits/baseline --set ...` is given for the whole run of a configuration."""
    warmup = values["learning_rate.warmup"]
    made = {**values, "learning_rate.warmup": "null"}
    if warmup:
        made["learning_rate.warmup"] = f"{{kind: GradualWarmup, epochs: {warmup}, start: reference, joins: multiply}}"
    return (*_SMALL, *(f"{path}={value}" for path, value in made.items()), "claims=[]")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A configuration as it was trained.

    Args:
        number: of its draw.
        values: see `values_of`.
        shape: of its rate, see `recipes.search_space.comparable`.
        slow_until: epochs, likewise.
        correct: of the evaluation samples, at each report of the whole run.
        short: the same at the end of the compressed runs, the shortest first.
        seconds: processor time of the runs, the shortest first and the whole last.
    """

    number: int
    values: dict[str, Any]
    shape: str
    slow_until: float
    correct: tuple[int, ...]
    short: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def epochs(self) -> int:
        """Length of the whole run."""
        return self.values["epochs"]

    def accuracy(self, rung: int = len(SHARES) - 1) -> float:
        """Accuracy at the end of a run: 0 is the shortest, 2 the whole."""
        return (*self.short, self.correct[-1])[rung] / EVALUATED


def read_table(path: Path = TABLE) -> list[Recorded]:
    """All recorded configurations; a run that diverged has 0 correct samples from there on."""
    rows = json.loads(path.read_text(encoding="utf-8"))["trials"]
    return [
        Recorded(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
        for row in rows
    ]
