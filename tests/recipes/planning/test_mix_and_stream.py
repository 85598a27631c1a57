"""The keys `augmentation.mix` and `stream`: what opens, and what is wrong with the rest."""

import pytest

from recipes.schema.vocabulary import Unbuilt
from trainers.augmentations.mixing import CutMix, Mixup

LOSS = "loss: {kind: SoftmaxCrossEntropy}"
# Lines beside the valid recipe -> place, path, a part of the cause, a part of the way out.
WRONG = {
    "a mix without its alpha": (
        "augmentation: {mix: [{kind: CutMix}]}",
        "10:22",
        "augmentation.mix.0.alpha",
        "is missing",
        "add `alpha: ...`, a number",
    ),
    "an alpha of 0": (
        "augmentation: {mix: [{kind: CutMix, alpha: 1}, {kind: Mixup, alpha: 0}]}",
        "10:69",
        "augmentation.mix.1.alpha",
        "is 0",
        "must be > 0",
    ),
    "an augmentation among the mixes": (
        "augmentation: {mix: [{kind: Cutout, size: 8}]}",
        "10:29",
        "augmentation.mix.0.kind",
        "there is no mix called Cutout",
        "known: CutMix, Mixup",
    ),
    "a mix that is no list": (
        "augmentation: {mix: {kind: Mixup, alpha: 1}}",
        "10:21",
        "augmentation.mix",
        "is a mapping",
        "must be a list",
    ),
    "no repeat at all": ("stream: {repeats: 0}", "10:19", "stream.repeats", "is 0", "must be at least 1"),
    "half a repeat": ("stream: {repeats: 1.5}", "10:19", "stream.repeats", "is 1.5", "must be a whole number"),
    "a threshold above 1": (
        "loss: {kind: BinaryCrossEntropy, target_threshold: 2}",
        "9:52",
        "loss.target_threshold",
        "is 2",
        "must be < 1",
    ),
    "a reduction that does not exist": (
        "loss: {kind: BinaryCrossEntropy, reduction: class_men}",
        "9:45",
        "loss.reduction",
        "the text 'class_men'",
        "must be class_mean or class_sum",
    ),
}


def test_left_out_nothing_is_mixed_and_nothing_repeated(opened):
    recipe = opened().recipe
    assert recipe.augmentation.mix == ()
    assert recipe.stream.repeats == 1


def test_mixes_and_repeats_are_read_in_order(opened):
    result = opened("augmentation.mix=[{kind: Mixup, alpha: 0.2}, {kind: CutMix, alpha: 1}]", "stream.repeats=3")
    assert result.recipe.augmentation.mix == (Mixup(alpha=0.2), CutMix(alpha=1.0))
    assert result.recipe.stream.repeats == 3
    assert result.tree["augmentation"]["mix"][1] == {"kind": "CutMix", "alpha": 1, "probability": 1.0}


def test_a_mix_that_is_not_built_is_named_in_lacks(opened):
    result = opened("augmentation.mix=[{kind: PuzzleMix, alpha: 1}]", "lacks=[PuzzleMix]")
    assert result.recipe.augmentation.mix == (Unbuilt(kind="PuzzleMix", fields={"alpha": 1}),)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_problem_has_its_line_and_column(write, problem_of, wrong):
    line, position, path, cause, way_out = wrong
    problem = problem_of(write(line_9=line if line.startswith("loss") else f"{LOSS}\n{line}"))
    assert f"{problem.line}:{problem.column}" == position
    assert problem.path == path
    assert cause in problem.what
    assert way_out in problem.way_out
