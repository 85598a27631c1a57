"""Rate, batch and momentum of the recipes of our own at 40 epochs, against the formulas that their titles say."""

from math import cos, pi

import pytest

from recipes.planning.rates import batch_size_at, learning_rate_at, momentum_at
from recipes.reading.open import open_recipe
from recipes.reading.registry import names
from trainers.launch.vocabulary import vocabulary


def cosine(t):
    return (1 + cos(pi * t / 20)) / 2


def scaled(size):
    """0.05 for each 32 samples, from 0.05 over 5 epochs, times a cosine over 20 epochs that runs from the start."""

    def at(t):
        full = 0.05 * size / 32
        return (0.05 + (full - 0.05) * t / 5 if t < 5 else full) * cosine(t), size

    return at


def ramp(t):
    """96 samples and from 0.05 to 0.15 in the first epoch, then 192 and 0.3."""
    return (0.05 + 0.1 * t if t < 1 else 0.3) * cosine(t), 96 if t < 1 else 192


CURVES = {
    "digits/baseline": lambda t: (0.05 * cosine(t), 32),
    "digits/batch_1024": scaled(1024),
    "digits/batch_256": scaled(256),
    "digits/large_batch": scaled(512),
    "digits/naive": lambda t: (0.05 * cosine(t), 512),
    "digits/ramp": ramp,
}


def test_every_recipe_of_our_own_has_its_formula_here():
    assert {name for name in names("recipes") if name.startswith("digits/")} == set(CURVES)


@pytest.mark.parametrize("name", CURVES)
def test_rate_batch_and_momentum_at_40_epochs(name):
    recipe = open_recipe(name, vocabulary=vocabulary()).recipe
    assert recipe.epochs == 20
    for point in range(40):
        epoch = 20 * point / 39
        rate, size = CURVES[name](epoch)
        assert learning_rate_at(recipe, epoch) == pytest.approx(rate, rel=1e-12, abs=1e-15), epoch
        assert (batch_size_at(recipe, epoch), momentum_at(recipe, epoch)) == (size, 0.9)
