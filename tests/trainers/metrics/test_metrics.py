"""Each metric against its definition, sample by sample; how one is called and refused."""

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from recipes.errors import InputRefused, RecipeError
from recipes.reading.open import open_recipe
from recipes.schema import StopAt
from recipes.schema.vocabulary import metric_name
from trainers.launch.vocabulary import vocabulary
from trainers.metrics import BalancedAccuracy, MacroF1, TopAccuracy, figures_of


@pytest.fixture(scope="module")
def scored():
    """Logits and labels of five classes: one without a sample, one that is never recognised, and equal logits."""
    rng = np.random.default_rng(5)
    labels = rng.choice([0, 1, 2, 4], p=[0.6, 0.2, 0.1, 0.1], size=80)
    logits = rng.normal(size=(80, 5)) + 1.5 * np.eye(5)[labels]
    logits[:, 4] -= 9
    logits[:3] = 0
    return logits.astype(np.float32), labels


def test_macro_f1_and_balanced_accuracy_are_their_definitions(scored):
    logits, labels = scored
    taken = [max(range(5), key=lambda k: row[k]) for row in logits.tolist()]  # of equal ones the first
    pairs = list(zip(labels.tolist(), taken, strict=True))
    recalls, f1 = [], []
    for k in range(5):
        hits = sum(pair == (k, k) for pair in pairs)
        of_class, as_class = (sum(pair[side] == k for pair in pairs) for side in (0, 1))
        recalls += [Fraction(hits, of_class)] if of_class else []
        if of_class + as_class:
            precision, recall = (Fraction(hits, n) if n else Fraction(0) for n in (as_class, of_class))
            f1.append(2 * precision * recall / (precision + recall) if hits else Fraction(0))
    assert (len(recalls), len(f1) >= 4) == (4, True)
    assert BalancedAccuracy()(logits, labels) == pytest.approx(float(sum(recalls) / len(recalls)), rel=1e-12)
    assert MacroF1()(logits, labels) == pytest.approx(float(sum(f1) / len(f1)), rel=1e-12)


def test_top_accuracy_counts_those_before_a_label_and_equal_ones_in_order(scored):
    logits, labels = scored
    for k in (1, 2, 4):
        hits = 0
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
            before = sum(value > row[label] or (value == row[label] and at < label) for at, value in enumerate(row))
            hits += before < k
        assert TopAccuracy(k=k)(logits, labels) == hits / len(labels)


@dataclass(frozen=True, kw_only=True)
class OwnF2Score:
    value: object = 0.5

    def __call__(self, logits, labels):
        return self.value


@dataclass(frozen=True, kw_only=True)
class Named(OwnF2Score):
    name: str = "gap"


@dataclass(frozen=True, kw_only=True)
class Doubled:
    scale: float = 2.0
    twice: float = field(init=False, default=0.0)

    def __post_init__(self):
        object.__setattr__(self, "twice", 2 * self.scale)

    def __call__(self, logits, labels):
        return self.twice


def test_a_field_that_no_constructor_takes_is_no_key():
    names = replace(vocabulary(), metrics={"Doubled": Doubled})
    opened = open_recipe("digits/baseline", vocabulary=names, overrides=["evaluation.metrics=[{kind: Doubled}]"])
    assert opened.tree["evaluation"]["metrics"] == [{"kind": "Doubled", "scale": 2.0}]
    assert opened.recipe.evaluation.metrics == (Doubled(),)


def test_a_metric_is_called_by_its_class_or_its_name():
    metrics = (MacroF1(), TopAccuracy(k=5), OwnF2Score(), Named())
    assert [*map(metric_name, metrics)] == ["macro_f1", "top5_accuracy", "own_f2_score", "gap"]


@dataclass(frozen=True, kw_only=True)
class CalibrationError:
    higher_is_better: ClassVar[bool] = False


def test_a_goal_is_reached_from_the_better_side_of_each_score():
    goal = StopAt(accuracy=0.5, loss=0.4, metrics={"macro_f1": 0.6, "calibration_error": 0.1})
    enough = {"accuracy": 0.5, "loss": 0.4, "macro_f1": 0.6, "calibration_error": 0.1}
    assert goal.reached(enough, metrics=(MacroF1(), CalibrationError()))
    for name, value in (("accuracy", 0.49), ("loss", 0.41), ("macro_f1", 0.59), ("calibration_error", 0.11)):
        assert not goal.reached(enough | {name: value}, metrics=(MacroF1(), CalibrationError()))
    assert not goal.reached(enough | {"loss": math.nan}, metrics=(MacroF1(), CalibrationError()))


def test_only_a_number_is_a_figure(scored):
    for value in (np.float32(0.25), np.array(0.25), 0.25):
        assert figures_of([Named(value=value)], *scored) == {"gap": 0.25}
    for value, gave in ((np.zeros(3), "an array of the shape"), (None, "a NoneType"), ({}, "a dict")):
        with pytest.raises(InputRefused, match=f"the metric Named gave {gave}.*; return one number"):
            figures_of([Named(value=value)], *scored)


@dataclass(frozen=True, kw_only=True)
class InPlace:
    def __call__(self, logits, labels):
        logits -= 1
        return 0.0


def test_a_metric_that_works_in_place_is_refused_with_its_line_and_changes_nothing_of_the_next_one(scored):
    before = MacroF1()(*scored)
    with pytest.raises(
        InputRefused, match=rf"the metric InPlace failed with .* both read-only: {__file__}:\d+: ValueError"
    ):
        figures_of([InPlace(), MacroF1()], *scored)
    assert MacroF1()(*scored) == before
    assert scored[0].flags.writeable


@pytest.mark.parametrize(
    ("metrics", "place", "why"),
    [
        ("[{kind: MacroF1}, {kind: MacroF1}]", "1", "is called macro_f1, and so is `evaluation.metrics.0`"),
        ("[{kind: TopAccuracy, k: 10}]", "0.k", "is 10; must be below the 10 classes"),
        ("[{kind: TopAccuracy, k: 0}]", "0.k", "is 0; must be a whole number >= 1"),
        ("[{kind: Macro}]", "0.kind", "MacroF1"),
    ],
)
def test_a_recipe_names_metrics_that_differ_and_fit_the_classes(metrics, place, why):
    with pytest.raises(RecipeError) as refused:
        open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=[f"evaluation.metrics={metrics}"])
    (problem,) = str(refused.value).splitlines()
    assert f"evaluation.metrics.{place}: " in problem
    assert why in problem


def test_a_recipe_with_metrics_of_ones_own_can_be_looked_at_without_their_code():
    words = "evaluation.metrics=[{kind: nowhere.Calibration}, {kind: nowhere.Calibration, bins: 5}, {kind: MacroF1}]"
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=[words], allow_code=None)
    kinds = [metric["kind"] for metric in opened.tree["evaluation"]["metrics"]]
    assert kinds == ["nowhere.Calibration", "nowhere.Calibration", "MacroF1"]


def test_without_metrics_a_recipe_has_the_digest_of_before():
    opened = open_recipe("digits/baseline", vocabulary=vocabulary())
    assert "metrics" not in opened.tree["evaluation"]
