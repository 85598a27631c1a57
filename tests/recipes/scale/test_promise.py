"""Every library recipe at half, twice and eight times its batch has the rate that the rule promises, or is refused."""

import math
import re

import pytest

from recipes.errors import InputRefused
from recipes.planning.rates import full_rate_at, learning_rate_at
from recipes.reading.open import open_recipe
from recipes.reading.registry import names
from recipes.scale import scale_recipe
from recipes.scale.promise import require_promise
from trainers.launch.vocabulary import vocabulary

WORDS = vocabulary()
QUICK = ("digits/large_batch", "ffcv2022", "goyal2017", "mlperf/lars_8192", "you2019", "smith2017/cifar10_grow")
QUICK += ("fashion/ramp_4096", "fashion/adascale_4096")
ENDS = re.compile(
    r"is published up to|published points go|no rule joins|is not among the published|ask for fewer|outside \(0, 1\)|"
    r"whole number of samples|this rule ends below|is left open|AdaScale"
)


def scaled(name, factor, folder):
    before = open_recipe(name, vocabulary=WORDS).recipe
    batch = int(before.batch.global_.sizes[0] * factor)
    file = folder / f"scaled-{batch}.yaml"
    scale_recipe(name, batch=batch, vocabulary=WORDS, out=file)
    return before, open_recipe(file, vocabulary=WORDS).recipe


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names("recipes")]
)
@pytest.mark.parametrize("factor", [0.5, 2, 8])
def test_the_derived_curve_is_the_promised_one(name, factor, tmp_path):
    try:
        before, after = scaled(name, factor, tmp_path)
    except InputRefused as refused:
        said = str(refused)
    else:
        said = ""
    if said:
        assert ENDS.search(said)
        assert not list(tmp_path.iterdir())
        return
    if type(before.optimizer).__name__ == "Lars":  # by published points, with their own epochs
        return
    root = type(before.optimizer).__name__ == "Lamb" or before.learning_rate.rule == "sqrt"
    growth = math.sqrt(factor) if root else factor
    if type(before.optimizer).__name__ == "AdaScale" and before.learning_rate.rule == "none":
        growth = 1.0  # its gain scales the rate
    warmups = [recipe.learning_rate.warmup for recipe in (before, after)]
    begins = max(0.0 if warmup is None else warmup.shape.epochs for warmup in warmups)
    for number in range(40):
        epoch = begins + (after.epochs - begins) * (number + 0.5) / 40
        assert learning_rate_at(after, epoch) == pytest.approx(growth * learning_rate_at(before, epoch), rel=1e-4)
        assert learning_rate_at(after, begins * number / 40) <= growth * full_rate_at(before, begins) * (1 + 1e-4)


def test_a_promise_that_is_broken_is_refused_at_its_epoch(tmp_path):
    before, after = scaled("goyal2017/2048", 2, tmp_path)
    require_promise(before, after, ratio=2.0)
    with pytest.raises(InputRefused, match=r"at epoch 5\.\d+ the derived rate is 1\.6, and 2\.4 is promised"):
        require_promise(before, after, ratio=3.0)
