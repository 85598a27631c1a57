"""Rate, batch and momentum of every paper of the library at 40 epochs, against numbers worked out from the sources.

Nothing here calls `lr_schedules` or reads a recipe's file: each function below says a publication once more, in plain
Python. It takes the epochs seen and gives rate, global batch and momentum. The three papers with numbers worked out by
hand are in test_published_curves.py too.
"""

from fractions import Fraction

import pytest

from recipes.open import open_recipe
from recipes.rates import batch_size_at, learning_rate_at, momentum_at
from trainers.vocabulary import vocabulary

N = 1_281_167
NUM_POINTS = 40


def goyal2017(size):
    """0.1 for each 256 samples; from 0.1 over 5 epochs where the batch is above 256; x 0.1 at 30, 60 and 80."""

    def at(t):
        full = 0.1 * size / 256
        rate = 0.1 + (full - 0.1) * t / 5 if t < 5 else full
        return rate * 0.1 ** ((t >= 30) + (t >= 60) + (t >= 80)), size, 0.9

    return at


def suzuki2018(t):
    """2,048 samples, then 4,096; 0.8 by epoch 5, times 0.2 at 30 and 0.1 at 60 and 80."""
    rate = 0.1 + (0.8 - 0.1) * t / 5 if t < 5 else 0.8
    return rate * (0.2 if t >= 30 else 1) * 0.1 ** ((t >= 60) + (t >= 80)), 2048 if t < 30 else 4096, 0.9


def mlperf(size, rate, warmup_epochs, momentum, decay_updates, *, counted_from):
    """The rules' formula in updates: rate * i / w, then 1e-4 + (rate - 1e-4) * (1 - (i - w) / (T - w)) ** 2."""

    def at(t):
        update, warmup = t * N / size, warmup_epochs * N / size
        if update < warmup:
            return rate * update / warmup, size, momentum
        length = decay_updates - (warmup if counted_from == "start" else 0)
        left = max(0.0, 1 - (update - warmup) / length)
        return 1e-4 + (rate - 1e-4) * left**2, size, momentum

    return at


# name: (formula, epochs of the run)
PUBLISHED = {
    **{f"goyal2017/{size}": (goyal2017(size), 90) for size in (256, 512, 1024, 2048, 4096, 16384, 32768, 65536)},
    "goyal2017": (goyal2017(8192), 90),
    "suzuki2018": (suzuki2018, 90),
    "suzuki2018/10gbe": (suzuki2018, 90),
    "suzuki2018/10gbe_double_buffering": (suzuki2018, 90),
    "mlperf/lars_1632": (mlperf(1632, 7.4, 2, 0.9, 27476, counted_from="start"), 37),
    "mlperf/lars_3264": (mlperf(3264, 10.5, 2, 0.9, 14523, counted_from="start"), 37),
    "mlperf/lars_4096": (mlperf(4096, 10, 5, 0.9, 13137, counted_from="start"), 42),
    "mlperf/lars_8192": (mlperf(8192, 17, 5, 0.9, 6095, counted_from="warmup"), 44),
    "mlperf/lars_13056": (mlperf(13056, 12.8, 9, 0.9, 4710, counted_from="start"), 48),
    "mlperf/lars_32768": (mlperf(32768, 21.2, 16, 0.94, 2267, counted_from="start"), 58),
    "mlperf/lars_49152": (mlperf(49152, 19.405, 24, 0.951807, 1846, counted_from="start"), 71),
    "mlperf/lars_58880": (mlperf(58880, 23.246, 29, 0.951807, 1785, counted_from="start"), 83),
    "mlperf/lars_65536": (mlperf(65536, 24.699, 31, 0.951807, 1133, counted_from="warmup"), 89),
    "mlperf/lars_67840": (mlperf(67840, 24.699, 31, 0.951807, 1133, counted_from="warmup"), 91),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rate_batch_and_momentum_are_the_published_ones_at_40_epochs(name):
    recipe = open_recipe(name, vocabulary=vocabulary()).recipe
    formula, epochs = PUBLISHED[name]
    assert recipe.epochs == epochs
    for point in range(NUM_POINTS):
        exact = Fraction(epochs) * point / (NUM_POINTS - 1)
        epoch = float(exact)
        rate, size, momentum = formula(epoch)
        assert learning_rate_at(recipe, epoch) == pytest.approx(rate, rel=1e-10, abs=1e-15), epoch
        assert (batch_size_at(recipe, epoch), momentum_at(recipe, epoch)) == (size, momentum)


def test_a_rate_in_the_middle_of_each_mlperf_decay_worked_out_by_hand():
    """8,192: after 5 epochs 17; 6,095 updates later 1e-4; half way between a quarter of it, 4.250075."""
    recipe = open_recipe("mlperf/lars_8192", vocabulary=vocabulary()).recipe
    half = 5 + 6095 / 2 * 8192 / N
    assert learning_rate_at(recipe, half) == pytest.approx(4.250075, rel=1e-9)
    # 32,768: published as 21.2 at epoch 16, where a decay multiplied with the warmup would have only 11.1.
    recipe = open_recipe("mlperf/lars_32768", vocabulary=vocabulary()).recipe
    assert learning_rate_at(recipe, 16.0) == 21.2
