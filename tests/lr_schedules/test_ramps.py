from lr_schedules import BatchRamp


def test_ramp_changes_at_the_boundary_and_not_before():
    ramp = BatchRamp(boundaries=(0.0, 30.0, 60.0), sizes=(2048, 4096, 1024))
    by_hand = {0.0: 2048, 29.999: 2048, 30.0: 4096, 59.999: 4096, 60.0: 1024, 1000.0: 1024}
    assert {epoch: ramp(epoch) for epoch in by_hand} == by_hand


def test_boundary_that_is_a_whole_number_of_samples_is_met_exactly():
    """s / N rounds to the literal 0.1 when s = N / 10: the update that starts there already has the new batch."""
    ramp = BatchRamp(boundaries=(0.0, 0.1), sizes=(50, 100))
    assert ramp(149 / 1500) == 50
    assert ramp(150 / 1500) == 100
