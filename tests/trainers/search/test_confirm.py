"""The best trials once more: intervals by hand, and a search that confirms on real ranks."""

import json

import pytest

from recipes.schema import Budget, Confirm, Search
from recipes.search_space.ranges import Float
from trainers.search.best import confirmed_in, confirmed_text
from trainers.search.samplers import RandomSampler

SPACE = {"learning_rate.reference": Float(low=0.01, high=1.0)}


def made():
    return Search(
        name="mine",
        recipe="digits/baseline",
        space=SPACE,
        sampler=RandomSampler(),
        budget=Budget(trials=4),
        confirm=Confirm(top=2, seeds=3),
    )


def write(folder, number, seed, accuracy, ending="success"):
    run = folder / "confirm" / f"trial-{number:04d}" / f"seed-{seed}"
    run.mkdir(parents=True)
    pairs = [("train_loss", 1.0), ("eval_accuracy", accuracy), ("run_stop", ending)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps({'key': key, 'value': value})}\n" for key, value in pairs))


def test_the_best_mean_wins_with_its_interval(tmp_path):
    """Student's 0.975 quantile for 2 degrees of freedom is 4.303; the deviation of 0.8, 0.9, 1.0 is 0.1."""
    for seed, value in enumerate((0.8, 0.9, 1.0)):
        write(tmp_path, 3, seed, value)
        write(tmp_path, 11, seed, 0.95)
    write(tmp_path, 5, 0, 0.99)  # one run has no interval
    write(tmp_path, 7, 0, 0.99, "stopped")
    first, second = confirmed_in(tmp_path, made())
    assert first.trial == 11
    assert (first.mean, first.low, first.high) == pytest.approx((0.95, 0.95, 0.95))
    assert (second.trial, second.values) == (3, [0.8, 0.9, 1.0])
    assert second.high - second.mean == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    assert confirmed_text(made(), second) == "90.00 % (65.16 % to 114.84 %) by 3 fresh seeds"


def test_a_run_that_diverged_counts_as_the_worst(tmp_path):
    write(tmp_path, 3, 0, 0.9)
    write(tmp_path, 3, 1, 0.9, "failed")
    (one,) = confirmed_in(tmp_path, made())
    assert one.values == [0.9, 0.0]
