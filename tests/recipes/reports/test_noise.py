"""What a report shows of the loss scale and of the gradient noise scale."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from recipes.planning.phase_times import PHASES
from recipes.reports.charts import charts
from recipes.reports.noise import loss_scale, noise, noise_lines, noise_windows, phases
from recipes.reports.page import page_text
from recipes.reports.record import open_run


@pytest.fixture
def mixed_run(write_run, metric_lines):
    """Makes a run in mixed precision; `overflows` are attempts that overflowed, by update."""

    def make(overflows):
        lines, scale = metric_lines(), 65536.0
        for line in lines:
            if line["key"] == "train_loss":
                again = overflows.get(line["update"], 0)
                scale /= 2.0**again
                line |= {"loss_scale": scale, "overflows": again}
        return open_run(write_run(lines=lines))

    return make


def test_updates_done_again_are_counted_and_named(mixed_run):
    run = mixed_run({3: 2, 40: 1})
    words = loss_scale(run)
    assert "began at 65,536 and ended at 8,192, the smallest being 8,192 and the largest 65,536" in words
    assert "2 of 54 updates overflowed in float16 and were done again at a smaller scale, 3 times in all" in words
    assert "the first was update 3, the last update 40" in words
    assert words in page_text([run])


def test_loss_scale_of_a_run_without_overflow_and_of_one_in_float32(mixed_run, write_run):
    assert "No update overflowed." in loss_scale(mixed_run({}))
    assert loss_scale(open_run(write_run("other"))) == ""


@pytest.fixture
def measured_run(write_run, metric_lines):
    """Makes a run whose noise is 600 on average and whose signal is 2, so that its noise scale is about 300."""

    def make(signal=2.0, skip=()):
        lines = metric_lines()
        generator = np.random.default_rng(0)
        for line in lines:
            if line["key"] == "train_loss" and line["update"] not in skip:
                line["gradient_noise"] = 600.0 + generator.normal(0, 60)
                line["gradient_signal"] = signal + generator.normal(0, 0.2)
        return open_run(write_run(lines=lines))

    return make


def test_windows_hold_ten_updates_or_more_and_one_batch(measured_run):
    windows = noise_windows(measured_run())
    assert [window.scale.num_updates for window in windows] == [12, 12, 12, 18]
    assert [window.global_batch_size for window in windows] == [240, 240, 240, 480]
    assert windows[0].first_epoch == 0.0
    assert windows[3].first_epoch == pytest.approx(6.0)
    for window in windows:
        assert abs(window.scale.value - 300) < 4 * window.scale.standard_error < 60


def test_a_long_run_has_some_twenty_windows(measured_run):
    """540 updates, 27 a window: 360 at the first batch and 180 at the second one."""
    run = measured_run()
    longer = {field.name: np.repeat(getattr(run.updates, field.name), 10) for field in fields(run.updates)}
    windows = noise_windows(replace(run, updates=replace(run.updates, **longer)))
    assert [window.global_batch_size for window in windows] == [240] * 13 + [480] * 6


def test_updates_that_were_not_measured_are_left_out(measured_run, write_run):
    windows = noise_windows(measured_run(skip=range(36)))
    assert [window.scale.num_updates for window in windows] == [18]
    assert noise_windows(open_run(write_run("other"))) == []


def test_the_page_gives_the_scale_of_each_batch_with_its_error(measured_run):
    run = measured_run()
    words = noise(run)
    for size in (240, 480):
        known = run.updates.global_batch_size == size
        scale = run.updates.gradient_noise[known].mean() / run.updates.gradient_signal[known].mean()
        assert f"<td>{size}</td><td>{scale:.3g}</td>" in words
        assert [line for line in noise_lines(run) if line.startswith(f"noise scale at batch {size}: {scale:.3g} ± ")]
    assert "no promise" in words
    assert words in page_text([run])
    assert "Noise scale (samples)" in [chart["title"] for chart in charts([run], ["a"])["charts"]]


def test_a_gradient_lost_in_noise_is_reported_and_not_drawn(measured_run):
    run = measured_run(signal=-1.0)
    assert "lost in its noise" in noise(run)
    assert noise_lines(run)[0] == "noise scale at batch 240: not known: the gradient was lost in its noise"
    assert [window.scale for window in noise_windows(run)] == [None] * 4
    assert "Noise scale (samples)" not in [chart["title"] for chart in charts([run], ["a"])["charts"]]


def test_a_run_that_was_not_measured_has_no_section(write_run):
    run = open_run(write_run())
    assert (noise(run), noise_lines(run)) == ("", [])
    assert math.isnan(run.updates.gradient_noise[0])
    assert "Noise scale" not in page_text([run])


@pytest.mark.parametrize(
    ("exact", "words"), [(False, "The exchange took 20 ms an update, 50 % hidden."), (True, "20 ms an update.")]
)
def test_what_exact_mode_does_not_overlap_is_not_called_hidden(write_run, metric_lines, exact, words):
    lines = metric_lines()
    for line in lines:
        if line["key"] == "train_loss":
            line |= {"exchange_seconds": 0.02, **{f"{name}_seconds": 0.01 for name in PHASES}}
    run = open_run(write_run(lines=lines))
    run.plan["exact"] = exact
    assert words.replace(" %", "&nbsp;%") in phases(run)
