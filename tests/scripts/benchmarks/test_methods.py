"""The comparison of methods: statistics by hand, words, what a restart does, and that its runs are the library's."""

import json
import math
import subprocess
import sys

import pytest


def known_training(accuracies, calls):
    """A training whose accuracy by rate and seed is known beforehand; every call is noted."""

    def train(overrides):
        rate, seed = (float(overrides[place].partition("=")[2]) for place in (-3, -1))
        calls.append((rate, seed))
        accuracy = accuracies(rate, seed)
        return {"failed": None, "accuracy": accuracy, "loss": 1 - accuracy, "updates": 30, "seconds": 0.0}

    return train


def run_of(method, seed, accuracy, *, rate=0.05, setting="digits-16x", failed=None):
    numbers = {"accuracy": accuracy, "loss": 1.0, "updates": 30, "rate": rate, "seed": seed}
    return {"setting": setting, "method": method, "failed": failed, **numbers}


def test_welch_interval_by_hand():
    # Means 4 and 2, variances 2.5 and 10 of five each: difference 2, standard error sqrt(2.5 / 5 + 10 / 5) = sqrt(2.5),
    # df = 2.5^2 / (0.5^2 / 4 + 2^2 / 4) = 5.88; a table has t(0.975) = 2.571 for 5 and 2.447 for 6.
    from methods import welch

    found = welch([2.0, 3.0, 4.0, 5.0, 6.0], [-2.0, 0.0, 2.0, 4.0, 6.0])
    assert found.difference == 2.0
    assert 2.447 < (found.high - 2) / math.sqrt(2.5) < 2.571
    assert found.high - 2 == pytest.approx(2 - found.low)


@pytest.mark.parametrize("values", [([0.9], [0.8, 0.7]), ([0.1, 0.1], [0.1, 0.1]), ([0.9, 0.9], [0.1, 0.1])])
def test_no_interval_and_no_verdict_without_deviation(values):
    from methods import welch

    interval = welch(*values)
    assert math.isnan(interval.low)
    assert interval.verdict == "no interval"
    assert "to" not in interval.in_points()


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.001, 0.03, "better"),
        (-0.03, -0.001, "worse"),
        (0.0, 0.03, "not told apart"),
        (-0.03, 0.0, "not told apart"),
    ],
)
def test_better_only_where_the_interval_excludes_zero(low, high, word):
    from methods import Interval

    assert Interval(difference=(low + high) / 2, low=low, high=high).verdict == word


def test_only_runs_at_the_best_rate_count_and_failures_are_chance():
    from methods import rows_of

    runs = [run_of("plain", 100, 0.9), run_of("lars", 100, 0.2), run_of("lars", 100, 0.9, rate=0.5)]
    runs += [run_of("plain", seed, 0.80 + 0.01 * seed) for seed in range(5)]
    runs += [run_of("lars", seed, 0.90 + 0.01 * seed, rate=0.5) for seed in range(4)]
    runs += [run_of("lars", 4, None, rate=0.5, failed="the loss is not finite")]
    runs += [run_of("lars", seed, 0.99) for seed in range(5)]  # left from a rate that is no longer the best
    plain, lars = rows_of(runs)
    assert plain.against is None
    assert plain.cells()[-2:] == ("", "")
    assert lars.accuracies == pytest.approx((0.90, 0.91, 0.92, 0.93, 0.1))
    assert lars.against.difference == pytest.approx((0.90 + 0.91 + 0.92 + 0.93 + 0.1) / 5 - 0.82)
    assert lars.cells()[2:5] == ("0.5 (edge)", "30", "75.20 ± 36.47 (5 runs), 1 failed")
    assert lars.cells()[-1] == "not told apart"


def test_trials_are_as_many_for_every_method_and_not_on_reported_seeds(tmp_path):
    from methods import METHODS, SETTINGS, TUNING_SEED, Results, compare

    counts = set()
    for method in METHODS:
        calls = []
        default = METHODS[method].default(SETTINGS["noisy-64x"])
        train = known_training(lambda rate, seed, at=default: 0.9 - abs(math.log10(rate / at) + 0.2) / 10, calls)
        compare(Results(None), SETTINGS["noisy-64x"], method, seeds=5, trials=5, train=train)
        trials = [rate for rate, seed in calls if seed == TUNING_SEED]
        best = calls[-1][0]
        assert best == pytest.approx(default / 10**0.25, rel=1e-3)  # beside the best of the grid, towards the optimum
        assert calls[-5:] == [(best, seed) for seed in range(5)]
        counts.add((len(trials), len(set(trials)), len(calls)))
    assert counts == {(7, 7, 12)}


def test_restart_does_only_what_is_missing(tmp_path):
    from methods import SETTINGS, Results, compare

    file, setting = tmp_path / "runs.json", SETTINGS["digits-16x"]
    interrupted, whole, again = [], [], []

    def breaks_off(overrides):
        if len(interrupted) == 9:
            raise KeyboardInterrupt
        return known_training(lambda rate, seed: 1 / (1 + rate), interrupted)(overrides)

    how = {"seeds": 5, "trials": 5}
    with pytest.raises(KeyboardInterrupt):
        compare(Results(file), setting, "plain", train=breaks_off, **how)
    assert len(json.loads(file.read_text())["runs"]) == 9
    compare(Results(file), setting, "plain", train=known_training(lambda rate, seed: 1 / (1 + rate), whole), **how)
    assert len(whole) == 3
    compare(Results(file), setting, "plain", train=known_training(None, again), **how)
    assert again == []
    assert len({tuple(run["overrides"]) for run in Results(file).runs}) == 12


def test_a_failed_trial_is_never_the_best_one():
    from methods import best_trial

    trials = [run_of("plain", 100, None, rate=1.0, failed="diverged"), run_of("plain", 100, 0.1, rate=2.0)]
    assert best_trial(trials)["rate"] == 2.0
    assert best_trial([run_of("plain", 100, None, rate=r, failed="diverged") for r in (3.0, 1.0)])["rate"] == 1.0


def test_every_method_and_setting_is_a_valid_recipe_that_shares_what_is_said():
    from methods import METHODS, RECIPE, SETTINGS, overrides_of

    from trainers.launch.request import TrainRequest, prepare

    for setting in SETTINGS.values():
        shared = set()
        for method in METHODS if setting.times > 1 else ("plain",):
            overrides = overrides_of(setting, method, rate=METHODS[method].default(setting), seed=3)
            prepared = prepare(TrainRequest(recipe=RECIPE, overrides=overrides), workers=1)
            recipe = prepared.opened.recipe
            shared.add(
                repr((recipe.dataset, recipe.model, recipe.epochs, recipe.augmentation, recipe.seed, recipe.loss))
            )
            assert recipe.batch.global_(0.9 * recipe.epochs) == setting.batch
            assert recipe.batch.norm_span(0.0) == setting.per
            assert setting.reference in SETTINGS
            assert setting.name.startswith("digits") or prepared.opened.dataset.num_train >= 20 * setting.batch
        assert len(shared) == 1


@pytest.mark.mpi
def test_a_run_scores_what_the_command_scores(tmp_path):
    from methods import RECIPE, train

    overrides = ("model={kind: SmallCNN, width: 4}", "epochs=1", "batch={global: 512, norm_span: 32}", "seed=5")
    found = train((*overrides, "evaluation.every=1run"))
    command = [sys.executable, "-P", "-m", "kilobatch", "train", RECIPE, "-n", "1", "--out", str(tmp_path / "run")]
    command += ["--micro-batch-size", "256"]
    subprocess.run([*command, *(word for o in overrides for word in ("--set", o))], check=True, capture_output=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    scores = {line["key"]: line["value"] for line in lines}
    assert found["accuracy"] == scores["eval_accuracy"]
    assert found["loss"] == pytest.approx(scores["eval_loss"], rel=1e-5)
    assert (found["failed"], found["updates"]) == (None, 3)
