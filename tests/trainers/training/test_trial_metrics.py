"""A metric of one's own that would fail after the first epoch is refused before the ranks start."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from trainers.launch.preflight import require_own_code
from trainers.launch.vocabulary import vocabulary


@dataclass(frozen=True, kw_only=True)
class Own:
    seen: list = field(default_factory=list)
    how: str = "mean"

    def __call__(self, logits, labels):
        if self.how == "remembers":
            self.seen.append(1)
        return {
            "mean": lambda: logits.mean(),
            "draws": np.random.random,
            "nan": lambda: np.nan,
            "297 samples": lambda: float(len(labels)) if len(labels) == 297 else None,
            "remembers": lambda: 0.0,
            "shape": lambda: logits.mean(axis=0),
            "fails": lambda: logits[labels + 1000],
            "each class": lambda: float(np.bincount(labels).min() > 0),
        }[self.how]()


def require(how):
    opened = open_recipe("digits/baseline", vocabulary=vocabulary())
    evaluation = replace(opened.recipe.evaluation, metrics=(Own(how=how),))
    return require_own_code(replace(opened, recipe=replace(opened.recipe, evaluation=evaluation)))


@pytest.mark.parametrize("how", ["mean", "each class", "297 samples"])
def test_one_that_gives_a_number_for_as_many_samples_as_are_scored_is_fine(how):
    assert require(how) == []


@pytest.mark.parametrize(
    ("how", "why"), [("draws", "for the same logits: no run can be repeated"), ("nan", "gives nan for random logits")]
)
def test_one_that_gives_another_number_or_none_is_warned_of(how, why, capsys):
    (warning,) = require(how)
    assert warning.startswith("the metric Own gives ")
    assert why in warning
    assert warning in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("shape", r"the metric Own gave an array of the shape \(10,\); return one number"),
        (
            "fails",
            r"the metric Own failed with logits, float32 \(297, 10\), and labels, .*: IndexError",
        ),
        ("remembers", "the metric Own changes its own field seen"),
    ],
)
def test_one_that_fails_gives_no_number_or_remembers_is_refused(how, why):
    with pytest.raises(InputRefused, match=why):
        require(how)
