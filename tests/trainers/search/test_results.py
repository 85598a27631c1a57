"""The recipes that a search leaves, and the best trials once more: intervals by hand."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.reading.open import open_recipe
from recipes.reading.registry import find
from recipes.schema import Confirm, Objective
from recipes.search_space.open_search import open_search
from recipes.search_space.ranges import Categorical
from trainers.launch.vocabulary import search_vocabulary, vocabulary
from trainers.search.results import (
    Confirmed,
    confirm_folder,
    confirmed_in,
    confirmed_text,
    name_of_best,
    to_confirm,
    write_best,
)
from trainers.search.study import new_study, next_trial

TEXT = """\
objective: [{metric: accuracy}, {metric: device_hours}]
budget: {trials: 4}
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.1}}
"""


def test_each_trial_of_the_front_leaves_a_recipe_and_no_other_trial_does(open_text):
    opened = open_text(TEXT)
    study = new_study(opened.search)
    for values, front in (((0.9, 0.5), [0]), ((0.8, 0.1), [0, 1]), ((0.7, 0.2), [0, 1]), ((0.95, 0.1), [3])):
        study.tell(next_trial(study, opened.search), values)
        write_best(Path(), opened, study)
        assert sorted(path.name for path in Path("pareto").iterdir()) == [f"trial-{at:04d}.yaml" for at in front]
    assert Path("pareto/trial-0003.yaml").read_text().startswith("# accuracy 95.00 %, device-hours 0.1 in trial 3")
    assert not Path("best.yaml").exists()


def test_the_recipe_of_a_trial_says_how_a_data_set_file_goes_with_it(open_text):
    Path("ours.yaml").write_bytes(Path(find("datasets", "digits")).read_bytes())
    Path("net.yaml").write_text("kilobatch: 1\nextends: digits/batch_256\ndataset: ours.yaml\n")
    head = "kilobatch: 1\nname: mine\nrecipe: net.yaml\nsampler: {kind: RandomSampler}\n"
    opened = open_text(TEXT.replace(", {metric: device_hours}", ""), head)
    study = study_of(opened.search, values=(0.5,))
    write_best(Path(), opened, study, note="confirmation: 3 of 6 runs")
    head, note = Path("best.yaml").read_text().splitlines()[:2]
    assert head.startswith("# accuracy 50.00 % in trial 0 of the search mine; confirmation: 3 of 6 runs (")
    assert note.startswith("# `dataset` is a path of this machine; `kilobatch recipes pack` ")
    assert len(note) <= 120


def test_the_best_recipe_takes_its_own_code_along(open_text, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = "@__import__('dataclasses').dataclass(frozen=True)\nclass Same:\n    def __call__(self, epoch):\n"
    Path("best_factor.py").write_text(f"{code}        return 0.5\n")
    schedule = "learning_rate: {schedule: {kind: best_factor.Same}}\n"
    Path("net.yaml").write_text(f"kilobatch: 1\nextends: digits/batch_256\n{schedule}")
    head = "kilobatch: 1\nname: mine\nrecipe: net.yaml\nsampler: {kind: RandomSampler}\n"
    Path("mine.yaml").write_text(head + TEXT.replace(", {metric: device_hours}", ""))
    opened = open_search("mine.yaml", vocabulary=search_vocabulary(allow_code=True), allow_code=True)
    Path("out").mkdir()
    Path("out/search.yaml").touch()
    write_best(Path("out"), opened, study_of(opened.search, values=(0.5,)))
    Path("best_factor.py").write_text(f"{code}        return 0.25\n")
    for _ in ("beside a file of the same name", "elsewhere"):
        del sys.modules["best_factor"]
        monkeypatch.setattr(sys, "path", [each for each in sys.path if not each.startswith(str(Path.cwd()))])
        best = open_recipe("out/best.yaml", vocabulary=vocabulary(allow_code=True), allow_code=True)
        assert best.recipe.learning_rate.schedule(1) == 0.5
        Path("best_factor.py").unlink(missing_ok=True)
    del sys.modules["best_factor"]


def study_of(search, values=(0.5,) * 11 + (0.9, 0.99)):
    study = new_study(search)
    for value in values:
        study.tell(next_trial(study, search), value)
    return study


@pytest.fixture
def write(tmp_path, write_metrics):
    def write(number, seed, accuracy, ending="success", cause="NotFinite"):
        pairs = [("train_loss", 1.0), ("eval_accuracy", accuracy), ("run_stop", ending)]
        lines = ({"key": key, "value": value, "cause": cause} for key, value in pairs if value is not None)
        write_metrics(confirm_folder(tmp_path, number) / f"seed-{seed}", *lines)

    return write


def test_the_best_mean_wins_with_its_interval(tmp_path, made, write):
    """Student's 0.975 quantile for 2 degrees of freedom is 4.303; the deviation of 0.8, 0.9, 1.0 is 0.1."""
    for seed, value in enumerate((0.8, 0.9, 1.0)):
        write(3, seed, value)
        write(11, seed, 0.95)
        write(2, seed, 0.9 if seed else None, "success" if seed else "failed")  # it diverged: the worst
        faults = {"ending": "failed", "cause": "TooManyBadImages"}  # the machine's
        write(8, seed, 0.99, **(faults if seed == 2 else {}))
        write(5, seed, 0.99, **(faults if seed else {}))
    search = made(confirm=Confirm(top=3, seeds=3))
    study = study_of(search, [0.9 if number in (2, 3, 11) else 0.5 for number in range(13)])
    (first, second, third), runs = confirmed_in(tmp_path, search, study)
    assert runs == (9, 9)
    assert first.trial == 11
    assert (first.mean, first.low, first.high) == pytest.approx((0.95, 0.95, 0.95))
    assert (second.trial, second.values) == (3, [0.8, 0.9, 1.0])
    assert (third.trial, third.values) == (2, [0.0, 0.9, 0.9])
    assert second.mean - second.low == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    assert confirmed_text(made(), third).endswith("; 1 diverged, missed the target or broke a constraint")
    top = made(confirm=Confirm(top=1, seeds=2))  # since then another trial has become the best
    assert confirmed_in(tmp_path, top, study_of(top)) == ([], (0, 2))
    # By as many runs as all trials have: 2 of 8, 3 of 3 and 11, without one of an earlier session for more seeds.
    write(3, 3, 0.99)
    write(11, 3, 0.99, "stopped")
    for seeds, ended in ((3, 8), (4, 9)):
        search = made(confirm=Confirm(top=3, seeds=seeds))
        found, runs = confirmed_in(tmp_path, search, study_of(search, [0.5] * 3 + [0.9] + [0.5] * 4 + [0.9, 0, 0, 0.9]))
        assert runs == (ended, 3 * seeds)
        assert [(one.trial, one.values) for one in found] == [(8, [0.99] * 2), (11, [0.95] * 2), (3, [0.8, 0.9])]
    search = made(confirm=Confirm(top=4, seeds=3))  # 5 has one run, which has no interval
    alone = study_of(search, [0.9 if number in (3, 5, 8, 11) else 0.5 for number in range(13)])
    assert confirmed_in(tmp_path, search, alone) == ([], (9, 12))
    text = "trial 3: 90.00 % (95 %: 65.16 % to 100.00 %) by 3 fresh seeds, 80.00 %, 90.00 %, 100.00 %"
    assert confirmed_text(made(), second) == text


def test_trials_with_equal_values_are_confirmed_once(made):
    choices = Categorical(choices=(1, 2))
    search = made(space={"learning_rate.warmup.epochs": choices}, confirm=Confirm(top=2, seeds=2))
    study = new_study(search)
    for choice, value in ((1, 0.9), (2, 0.8), (1, 0.95), (2, 0.8)):
        study.enqueue_trial({"learning_rate.warmup.epochs": choice})
        study.tell(next_trial(study, search), value)
    assert [trial.number for trial in to_confirm(search, study)] == [2, 1]


def test_a_trial_of_which_a_fresh_seed_misses_the_target_comes_after_one_that_always_reaches_it(
    tmp_path, made, write_metrics
):
    """The run that misses it has fewer updates, since it is shorter."""
    search = made(objective=Objective(metric="updates_to", target=0.7), confirm=Confirm(top=2, seeds=2))
    for number, pairs in {0: ((22, 0.8), (43, 0.7)), 1: ((20, 0.75), (36, 0.667))}.items():
        for seed, (update, accuracy) in enumerate(pairs):
            last = {"key": "eval_accuracy", "value": accuracy, "update": update, "epoch": 1.0}
            run = confirm_folder(tmp_path, number) / f"seed-{seed}"
            write_metrics(run, last, {"key": "run_stop", "value": "success"})
    (first, second), _ = confirmed_in(tmp_path, search, study_of(search, (30.0, 25.0)))
    assert (first.trial, first.mean, second.trial, second.mean) == (0, 32.5, 1, float("inf"))
    assert confirmed_text(search, second) == "trial 1: 1 of 2 fresh seeds reached the target, in 20 updates"


def test_a_trial_whose_fresh_seeds_all_miss_is_not_called_the_best(made):
    search = made(objective=Objective(metric="updates_to", target=0.7), constraints=())
    missed = Confirmed(trial=1, values=[math.inf] * 2, mean=math.inf, low=0, high=math.inf, broken=2)
    assert confirmed_text(search, missed) == "trial 1: none of 2 fresh seeds reached the target"
    half = replace(missed, values=[21.0, math.inf], broken=1)
    assert [name_of_best(each) for each in ([half], [], [missed])] == ["best"] * 2 + [
        "best in its own run only (no fresh seed confirms it)"
    ]
    loss = made(objective=Objective(metric="loss"))
    text = "trial 1: 1 of 2 fresh seeds came to a finite loss, 21"
    assert confirmed_text(loss, half) == text
