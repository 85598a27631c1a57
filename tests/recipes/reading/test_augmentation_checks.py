"""Which augmentations of training and evaluation go together."""

from dataclasses import replace
from functools import partial

import pytest

import kilobatch as kb
import trainers.compat  # noqa: F401
from recipes.diff.recipes import compare_recipes
from recipes.errors import InputRefused, RecipeError
from recipes.lint.check import lint_recipe
from recipes.reading.open import open_recipe
from trainers.commands.options import opened_recipe
from trainers.launch.request import TrainRequest, open_request
from trainers.launch.vocabulary import vocabulary
from trainers.tasks.export_run import export_run
from trainers.tasks.score_run import score_run

OWN = """\
from dataclasses import dataclass


@dataclass(frozen=True)
class Scaled:
    by: float = 1.0
    scales_pixels = True

    def __call__(self, image_HWC, draws):
        return image_HWC * self.by


@dataclass(frozen=True)
class Darkened:
    def __call__(self, image_HWC, draws):
        return image_HWC // 2
"""
NUMBERS = "{kind: Normalize, mean: [0.305622], std: [0.376256]}"  # of digits.yaml
NAME = "{kind: Normalize, with: digits}"


@pytest.mark.parametrize(
    ("train", "evaluated"),
    [
        (NAME, NUMBERS),
        ("{kind: own_scales.Scaled}", NAME),
        (NAME, "{kind: own_scales.Scaled, by: 0.01}"),
        ("{kind: own_scales.Scaled, by: 0.01}", "{kind: own_scales.Scaled, by: 0.02}"),
        (f"{{kind: own_scales.Darkened}}, {NAME}", NAME),
        ("{kind: own_scales.Darkened}", "{kind: own_scales.Darkened}"),
        (f"{NAME}, {{kind: own_scales.Scaled, by: 0.5}}", f"{NAME}, {{kind: own_scales.Scaled, by: 0.5}}"),
        ("{kind: Whitened}", NAME),
        (NAME, "{kind: Whitened}"),
        ("{kind: own_scales.Darkened}", NAME),
        (NAME, "{kind: HorizontalFlip}, {kind: own_scales.Darkened}"),
    ],
)
@pytest.mark.parametrize("allow_code", [True, None])
def test_what_scales_pixels_alike_or_cannot_be_compared_is_valid(train, evaluated, allow_code, write):
    write(OWN, "own_scales.py")
    lists = f"augmentation: {{train: [{train}], eval: [{evaluated}], end: {{at: 5, train: [{evaluated}]}}}}"
    path = write(line_10=f"{lists}\nlacks: [Whitened]" if "Whitened" in train + evaluated else lists)
    open_recipe(path, vocabulary=vocabulary(allow_code=bool(allow_code)), allow_code=allow_code)


def test_an_error_in_an_overridden_augmentation_is_refused_there():
    typo = "augmentation.train=[{kind: Normalize, with: digit}]"
    with pytest.raises(RecipeError, match="command line:1:.*: augmentation.train.0.with: is 'digit'"):
        open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=[typo])


def test_a_run_that_was_trained_with_other_scaling_still_opens_with_a_warning(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("kilobatch: 1\nextends: digits/baseline\naugmentation: {train: []}\n")
    (tmp_path / "run.yaml").touch()
    what = "recipe.yaml:3:23: augmentation.train: scales pixels otherwise than `augmentation.eval`"
    for options in ({"of_run": True}, {"of_run": None}):
        opened = open_recipe(tmp_path / "recipe.yaml", vocabulary=vocabulary(), **options)
        assert what in "".join(opened.warnings)
    assert opened_recipe(str(tmp_path), (), None, False, looks=True).warnings == opened.warnings
    assert what in capsys.readouterr().err
    for look in (score_run, partial(export_run, form="onnx")):
        with pytest.raises(InputRefused, match="no whole checkpoint"):
            look(tmp_path)
    assert kb.open(tmp_path).opened.warnings == opened.warnings
    assert compare_recipes([str(tmp_path), "digits/baseline"], vocabulary=vocabulary()).recipes
    lint_recipe(str(tmp_path), vocabulary=vocabulary())
    resumed = TrainRequest(recipe=str(tmp_path), out=tmp_path, resume=True)
    assert open_request(resumed).warnings == opened.warnings
    for anew in (replace(resumed, resume=False), replace(resumed, out=tmp_path / "b")):
        with pytest.raises(RecipeError, match="scales pixels otherwise"):
            open_request(anew)
    assert open_recipe("digits/baseline", vocabulary=vocabulary(), of_run=None).warnings == ()
