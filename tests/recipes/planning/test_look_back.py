"""Samples that running statistics look back over, by hand and as the weights of an average."""

import pytest

from recipes.planning.rates import look_back
from recipes.schema import Evaluation, NormMomentum


def window(statistics, keep, per, *, batch=256, span=32):
    evaluation = Evaluation(norm_statistics=statistics, norm_momentum=NormMomentum(keep=keep, per=per))
    return look_back(evaluation, global_batch_size=batch, norm_span=span)


def test_by_hand():
    assert window("moving_average", 0.9, "update") == pytest.approx(2560)
    assert window("pooled", 0.75, "update") == pytest.approx(1024)
    assert window("by_group", 0.9, "update") == pytest.approx(320)
    assert window("last_batch", 0.9, "update") is None
    # Two updates of 128 keep 0.9 each: 0.81 for one of 256.
    assert window("moving_average", 0.9, 128) == pytest.approx(256 / 0.19)


def test_counted_in_samples_it_hardly_depends_on_the_batch():
    assert window("pooled", 0.9, 32, batch=32) == pytest.approx(320)
    assert window("pooled", 0.9, 32, batch=64) == pytest.approx(337, abs=1)


def test_it_is_the_mean_age_of_a_sample_with_the_update_that_it_came_in():
    ages = sum(0.9**updates * 0.1 * (updates + 1) * 256 for updates in range(2000))
    assert window("pooled", 0.9, "update") == pytest.approx(ages)
