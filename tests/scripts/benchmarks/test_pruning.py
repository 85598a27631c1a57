"""The recorded trials are what their design says, and no replay spends more than it has."""

from dataclasses import replace

import optuna
import pytest

from recipes.planning.rates import rate_shape, slow_until
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_every_row_is_a_configuration_of_the_design():
    from pruning import CONFIGURATIONS, EVALUATED, REPORTS, read_table, values_of

    table = read_table()
    assert [row.number for row in table] == list(range(CONFIGURATIONS))
    assert len(table) >= 200
    for row in table:
        assert row.values == values_of(row.number)
        assert len(row.correct) == REPORTS
        assert all(0 <= count <= EVALUATED for count in (*row.correct, *row.short))
        assert 0 < row.seconds[0] < row.seconds[-1]


def test_shapes_and_slow_starts_are_those_of_the_recipes():
    from pruning import RECIPE, overrides_of, read_table

    for row in read_table()[:8]:
        recipe = open_recipe(RECIPE, vocabulary=vocabulary(), overrides=overrides_of(row.values)).recipe
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
    found = {name: search(rows, 20.0) for name, search in methods().items()}
    assert len(found) == 11
    for outcome in found.values():
        assert outcome.whole <= 2
        assert outcome.accuracy in {0.0, *(row.accuracy() for row in rows)}
    assert (found["random"].whole, found["random"].begun) == (2, 2)


def test_sign_test_by_hand():
    from pruning import sign_test

    assert sign_test([0, 0, 0, 1], [1, 1, 1, 0]) == (3, 1, 5 / 16)


@pytest.mark.mpi
def test_a_run_has_a_count_at_each_report():
    from pruning import correct_by_report

    short = (
        "model={kind: SmallCNN, width: 4}",
        "epochs=2",
        "batch.global=64",
        "learning_rate.warmup=null",
        "claims=[]",
    )
    found, seconds = correct_by_report((*short, "claims=[]"), reports=2)
    assert 0 < found[0] < found[1] <= 297
    assert seconds > 0
