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
            "remembers": lambda: 0.0,
            "shape": lambda: logits.mean(axis=0),
            "fails": lambda: logits[labels + 100],
            "each class": lambda: float(np.bincount(labels).min() > 0),
        }[self.how]()


def require(how):
    opened = open_recipe("digits/baseline", vocabulary=vocabulary())
    evaluation = replace(opened.recipe.evaluation, metrics=(Own(how=how),))
    require_own_code(replace(opened, recipe=replace(opened.recipe, evaluation=evaluation)))


@pytest.mark.parametrize("how", ["mean", "each class"])
def test_one_that_gives_a_number_is_fine(how):
    require(how)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("shape", r"the metric Own gave an array of the shape \(10,\); return one number"),
        (
            "fails",
            r"the metric Own is called with logits, float32 \(64, 10\), and labels, .* of 10 classes: ",
        ),
        ("remembers", "the metric Own changes its own field seen"),
    ],
)
def test_one_that_fails_gives_no_number_or_remembers_is_refused(how, why):
    with pytest.raises(InputRefused, match=why):
        require(how)
