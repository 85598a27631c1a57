"""Rate, batch and momentum of the three papers, against their own formulas in exact arithmetic.

Nothing here calls `lr_schedules`: the expected numbers come from the publications (sources in the recipe files).
"""

from dataclasses import replace
from fractions import Fraction
from math import inf, nextafter

import pytest

from recipes.planning.rates import batch_size_at, learning_rate_at, momentum_at, norm_span_at
from recipes.planning.timeline import timeline
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

N = 1_281_167
TENTH = Fraction(1, 10)


def goyal2017(t):
    """0.1 k n / 256 = 3.2 at 8192; from 0.1 in a straight line over 5 epochs; x 0.1 at 30, 60 and 80."""
    full = TENTH * 8192 / 256
    rate = TENTH + (full - TENTH) * t / 5 if t < 5 else full
    return rate * TENTH ** sum(t >= step for step in (30, 60, 80)), 8192


def suzuki2018(t):
    """2048 samples, from epoch 30 on 4096; warmup to epoch 5, then x 0.2 at 30 and x 0.1 at 60 and 80."""
    full = TENTH * 2048 / 256
    rate = TENTH + (full - TENTH) * t / 5 if t < 5 else full
    for step, factor in ((30, Fraction(2, 10)), (60, TENTH), (80, TENTH)):
        rate *= factor if t >= step else 1
    return rate, 2048 if t < 30 else 4096


def akiba2017(t):
    """0.1 * 32768 / 256 = 12.8, times 0.5 until epoch 40, 0.075 until 70, 0.01 until 85, then 0.001."""
    factor = next(f for end, f in ((40, "0.5"), (70, "0.075"), (85, "0.01"), (inf, "0.001")) if t < end)
    return TENTH * 32768 / 256 * Fraction(factor), 32768


PUBLISHED = {
    "akiba2017": (akiba2017, (40, 70, 85)),
    "goyal2017": (goyal2017, (5, 30, 60, 80)),
    "suzuki2018": (suzuki2018, (5, 30, 60, 80)),
}
# Worked out with pencil and paper: epoch, rate, batch.
BY_HAND = {
    "akiba2017": [
        (0, 6.4, 32768), (12.5, 6.4, 32768), (39.5, 6.4, 32768), (40, 0.96, 32768), (55, 0.96, 32768),
        (70, 0.128, 32768), (85, 0.0128, 32768), (89, 0.0128, 32768),
    ],
    "goyal2017": [
        (0, 0.1, 8192), (1, 0.72, 8192), (2.5, 1.65, 8192), (5, 3.2, 8192), (29.9, 3.2, 8192), (30, 0.32, 8192),
        (45, 0.32, 8192), (60, 0.032, 8192), (80, 0.0032, 8192), (89, 0.0032, 8192),
    ],
    "suzuki2018": [
        (0, 0.1, 2048), (2.5, 0.45, 2048), (5, 0.8, 2048), (29.9, 0.8, 2048), (30, 0.16, 4096), (45, 0.16, 4096),
        (60, 0.016, 4096), (80, 0.0016, 4096), (89, 0.0016, 4096),
    ],
}  # fmt: skip
# ceil(90 N / 8192) and ceil(90 N / 32768); suzuki2018: 18,768 updates of 2048 reach epoch 30 and 1,854 samples more,
# 18,767 of 4096 the rest.
NUM_UPDATES = {"akiba2017": 3_519, "goyal2017": 14_076, "suzuki2018": 37_535}


@pytest.fixture(scope="module", params=sorted(PUBLISHED))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def recipe(name):
    opened = open_recipe(name, vocabulary=vocabulary())
    assert opened.dataset.num_train == N
    assert opened.recipe.epochs == 90
    return opened.recipe


@pytest.fixture(scope="module")
def updates(recipe):
    batch = recipe.batch
    return timeline(global_batch_size=batch.global_, norm_span=batch.norm_span, epochs=recipe.epochs, num_train=N)


def assert_published(name, recipe, epoch, exact):
    """The recipe at a float epoch equals the publication at an exact one."""
    rate, size = PUBLISHED[name][0](exact)
    assert learning_rate_at(recipe, epoch) == pytest.approx(float(rate), rel=1e-12)
    assert batch_size_at(recipe, epoch) == size
    assert momentum_at(recipe, epoch) == 0.9


def test_numbers_worked_out_by_hand(name, recipe):
    for epoch, rate, size in BY_HAND[name]:
        assert (epoch, learning_rate_at(recipe, epoch)) == (epoch, pytest.approx(rate, rel=1e-12))
        assert batch_size_at(recipe, epoch) == size
        assert momentum_at(recipe, epoch) == 0.9


def test_boundary_changes_the_rate_exactly_there(name, recipe):
    for boundary in PUBLISHED[name][1]:
        for epoch in (nextafter(boundary, 0.0), float(boundary), nextafter(boundary, inf)):
            assert_published(name, recipe, epoch, Fraction(epoch))


def test_updates_around_every_boundary(name, recipe, updates):
    """The last update that starts before a boundary, the first that starts at or after it, and the one after that."""
    for boundary in PUBLISHED[name][1]:
        first = updates.first_update_at(float(boundary))
        assert updates.samples_at(first - 1) < boundary * N <= updates.samples_at(first)
        for update in (first - 1, first, first + 1):
            assert_published(name, recipe, updates.epoch_at(update), Fraction(updates.samples_at(update), N))


def test_every_200th_update_between(name, recipe, updates):
    for update in [*range(0, updates.num_updates, 200), updates.num_updates - 1]:
        assert_published(name, recipe, updates.epoch_at(update), Fraction(updates.samples_at(update), N))


@pytest.mark.parametrize("name", ["goyal2017", "suzuki2018"], indirect=True)
def test_warmup_rises_by_the_same_amount_every_update(name, recipe, updates):
    """From 0.1 to the full rate in 5 N / B updates."""
    full, size = PUBLISHED[name][0](Fraction(5))
    increment = float((full - TENTH) * size / (5 * N))
    num_updates = updates.first_update_at(5.0)
    rates = [learning_rate_at(recipe, updates.epoch_at(update)) for update in range(num_updates)]
    assert rates[0] == 0.1
    assert rates == pytest.approx([0.1 + update * increment for update in range(num_updates)], rel=1e-12)


def test_number_of_updates(name, updates):
    assert updates.num_updates == NUM_UPDATES[name]
    assert updates.samples_at(updates.num_updates - 1) < 90 * N <= updates.num_samples


def test_norm_groups_are_what_one_gpu_held(name, recipe):
    spans = {"akiba2017": (32, 32), "goyal2017": (32, 32), "suzuki2018": (64, 128)}
    assert (norm_span_at(recipe, 29.99), norm_span_at(recipe, 30.0)) == spans[name]


@pytest.mark.parametrize("name", ["akiba2017"], indirect=True)
def test_akiba2017_reads_its_rate_once_an_epoch(name, recipe):
    assert recipe.learning_rate.every == 1.0
    assert recipe.evaluation.norm_statistics == "last_batch"


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("akiba2017", [0.0092, 0.0677, 0.3352, 0.5, 0.6, 0.7, 0.9, 1, 1]),
        ("akiba2017-printed", [0.0092, 0.0677, 0.3352, 0.5, 0.7, 0.9, 1, 1, 1]),
    ],
    indirect=["name"],
)
def test_akiba2017s_warmup_passes_the_weights_worked_out_by_hand(name, recipe, weights):
    """At epochs 0, 5, 9, 10, 10.5, 11, 12, 12.5 and 13; never above 1, where the RMSprop term would turn round."""
    epochs = (0, 5, 9, 10, 10.5, 11, 12, 12.5, 13)
    assert [recipe.optimizer.sgd_weight(epoch) for epoch in epochs] == pytest.approx(weights, abs=5e-5)
    fine = [recipe.optimizer.sgd_weight(hundredth / 100) for hundredth in range(9001)]
    assert fine == sorted(fine)
    assert fine[-1] == 1


def test_the_two_files_of_akiba2017_differ_in_one_word():
    recipes = [open_recipe(name, vocabulary=vocabulary()).recipe for name in ("akiba2017", "akiba2017-printed")]
    trees = [{**vars(recipe), "name": "", "title": "", "card": None} for recipe in recipes]
    trees[1]["optimizer"] = replace(trees[1]["optimizer"], transition="continuous")
    assert trees[0] == trees[1]
