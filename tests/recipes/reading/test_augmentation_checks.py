"""Which augmentations of training and evaluation go together."""

import pytest

import trainers.compat  # noqa: F401
from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

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
