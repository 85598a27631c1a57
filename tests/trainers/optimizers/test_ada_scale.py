"""AdaScale's gain: by hand, and at its two ends."""

import pytest

from trainers.optimizers import AdaScale


def gain(**fields):
    return AdaScale(**fields).gain(per=32)


def test_by_hand():
    """At 4 times the batch: (64/32 + 2) / (64/128 + 2) = 4 / 2.5."""
    assert gain().observe(noise=64.0, signal=2.0, global_batch_size=128) == pytest.approx(1.6)


def test_all_noise_is_the_linear_rule_and_no_noise_is_no_scaling():
    assert gain().observe(noise=5.0, signal=0.0, global_batch_size=512) == pytest.approx(16)
    assert gain().observe(noise=0.0, signal=5.0, global_batch_size=512) == pytest.approx(1)
    assert gain().observe(noise=0.0, signal=0.0, global_batch_size=512) == 1
    assert gain().observe(noise=5.0, signal=-1.0, global_batch_size=512) == pytest.approx(16)


def test_the_reference_batch_has_no_gain():
    assert gain().observe(noise=5.0, signal=3.0, global_batch_size=32) == pytest.approx(1)


def test_the_first_estimate_weighs_no_more_than_the_next():
    """Two updates that are kept alike: their mean is (64, 2)."""
    run = gain(smoothing=0.999999)
    run.observe(noise=120.0, signal=0.0, global_batch_size=128)
    assert run.observe(noise=8.0, signal=4.0, global_batch_size=128) == pytest.approx(1.6, rel=1e-5)


def test_without_smoothing_only_the_last_update_counts():
    run = gain(smoothing=0.0)
    run.observe(noise=1000.0, signal=0.0, global_batch_size=128)
    assert run.observe(noise=64.0, signal=2.0, global_batch_size=128) == pytest.approx(1.6)


def test_smoothing_left_out_follows_the_batch():
    """At 16 times the batch 1 - 16/1000 is kept."""
    chosen, default = gain(smoothing=0.984), gain()
    for noise in (10.0, 20.0, 5.0):
        each = [run.observe(noise=noise, signal=1.0, global_batch_size=512) for run in (chosen, default)]
        assert each[0] == each[1]


def test_the_clock_counts_gains_where_it_is_asked_to():
    by_gain, by_samples = gain(clock="gain"), gain()
    for run in (by_gain, by_samples):
        run.observe(noise=64.0, signal=2.0, global_batch_size=128)
    assert by_gain.epoch(0.128, num_train=1000) == pytest.approx(1.6 * 32 / 1000)
    assert by_samples.epoch(0.128, num_train=1000) == 0.128


def test_the_clock_counts_updates_of_the_reference_batch_too():
    by_gain = gain(clock="gain")
    assert by_gain.pass_reference() == 1
    by_gain.observe(noise=64.0, signal=2.0, global_batch_size=128)
    assert by_gain.epoch(0.16, num_train=1000) == pytest.approx((1 + 1.6) * 32 / 1000)


def test_a_resumed_gain_is_the_uninterrupted_one():
    whole, resumed = gain(clock="gain"), gain(clock="gain")
    whole.observe(noise=64.0, signal=2.0, global_batch_size=128)
    resumed.state = whole.state
    each = [run.observe(noise=3.0, signal=1.0, global_batch_size=128) for run in (whole, resumed)]
    assert each[0] == each[1]
    assert whole.state == resumed.state


@pytest.mark.parametrize("fields", [{"smoothing": 1.0}, {"smoothing": -0.1}, {"momentum": 1.0}, {"clock": "epochs"}])
def test_what_makes_no_sense_is_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        AdaScale(**fields)


def test_of_more_than_a_thousand_reference_batches_only_the_last_update_counts():
    """1 - S / 1000 is -1 there."""
    run = gain()
    run.observe(noise=1000.0, signal=0.0, global_batch_size=64_000)
    assert run.observe(noise=64.0, signal=2.0, global_batch_size=64_000) == pytest.approx(4 / 2.001)
