"""The recorded trials are what their design says, and no replay spends more than it has."""

from dataclasses import replace

import optuna
import pytest

from recipes.reading.open import open_recipe
from recipes.search_space.comparable import rate_shape, slow_until
from trainers.launch.vocabulary import vocabulary


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_every_row_of_the_table_is_whole():
    from pruning import EVALUATED, REPORTS, read_table

    table = read_table()
    assert [row.number for row in table] == list(range(200))
    for row in table:
        assert len(row.correct) == REPORTS
        assert all(0 <= count <= EVALUATED for count in (*row.correct, *row.short))
        assert 0 < row.seconds[0] < row.seconds[-1]


def test_shapes_and_slow_starts_are_those_of_the_recipes():
    from pruning import read_table

    for row in read_table()[:8]:
        warmup = row.values["learning_rate.warmup"]
        gradual = f"{{kind: GradualWarmup, epochs: {warmup}, start: reference, joins: multiply}}"
        values = row.values | {"learning_rate.warmup": gradual if warmup else "null"}
        overrides = [f"{path}={value}" for path, value in values.items()]
        recipe = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=(*overrides, "claims=[]")).recipe
        assert (row.shape, row.slow_until, row.epochs) == (rate_shape(recipe), slow_until(recipe), recipe.epochs)


def test_every_epoch_ends_at_a_report():
    from pruning import REPORTS, at_epochs, read_table

    for row in read_table():
        assert all(number * row.epochs == epoch * REPORTS for epoch, number in at_epochs(row))


@pytest.mark.filterwarnings("ignore")  # experimental classes of Optuna; steps that another length has not
def test_no_method_spends_more_than_it_has():
    """Of three trials of 10 s at most two are trained whole in 20 s."""
    from pruning import methods, read_table

    rows = [replace(row, seconds=(10 / 9, 10 / 3, 10.0)) for row in read_table()[:3]]
    outcomes = {name: search(rows, 20.0) for name, search in methods().items()}
    assert len(outcomes) == 11
    for outcome in outcomes.values():
        assert outcome.whole <= 2
        assert outcome.accuracy in {0.0, *(row.accuracy() for row in rows)}
    assert (outcomes["random"].whole, outcomes["random"].begun) == (2, 2)


def test_sign_test_by_hand():
    from pruning import sign_test

    assert sign_test([0, 0, 0, 1], [1, 1, 1, 0]) == (3, 1, 5 / 16)
