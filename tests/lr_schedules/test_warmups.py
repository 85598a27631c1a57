from itertools import pairwise

import pytest

from lr_schedules import ConstantWarmup, GradualWarmup


@pytest.mark.parametrize(("epoch", "factor"), [(0.0, 0.5), (1.0, 0.625), (2.0, 0.75), (4.0, 1.0), (5.0, 1.0)])
def test_gradual_warmup_by_hand(epoch, factor):
    assert GradualWarmup(epochs=4.0, start=0.5)(epoch) == factor


def test_gradual_warmup_rises_by_the_same_amount_every_update():
    warmup = GradualWarmup(epochs=4.0, start=0.5)
    rates = [warmup(update / 8) for update in range(33)]
    assert {after - before for before, after in pairwise(rates)} == {0.5 / 32}
    assert rates[-1] == 1.0


@pytest.mark.parametrize(("epoch", "factor"), [(0.0, 0.5), (3.999, 0.5), (4.0, 1.0), (9.0, 1.0)])
def test_constant_warmup_jumps_at_its_end(epoch, factor):
    assert ConstantWarmup(epochs=4.0, start=0.5)(epoch) == factor
