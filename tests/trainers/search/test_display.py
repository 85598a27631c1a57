"""The table and the lines of a search."""

import os
from dataclasses import replace

import pytest
from rich.console import Console

from recipes.schema import Budget, Objective, Search
from recipes.search_space.ranges import Categorical, Float
from trainers.search.display import Display, column_names
from trainers.search.samplers import Random
from trainers.search.trial_run import Report

SEARCH = Search(
    name="mine",
    recipe="digits/baseline",
    space={
        "optimizer.kind": Categorical(choices=("MomentumSGD", "Lars")),
        "optimizer.trust_coefficient": Float(low=0.0, high=1.0, when={"optimizer.kind": ("Lars",)}),
    },
    sampler=Random(),
    budget=Budget(trials=4, device_hours=1.0),
    ranks_per_trial=2,
)
BOTH = replace(SEARCH, objective=(Objective(), Objective(metric="device_hours", direction="minimize")))


@pytest.fixture
def display(tmp_path):
    def made(search):
        console = Console(width=150, force_terminal=True, color_system=None)
        return Display(search=search, folder=tmp_path, console=console, groups=2)

    return made


def table(shown):
    console = Console(width=150, color_system=None)
    with console.capture() as output:
        console.print(shown._picture())
    return [line.split() for line in output.get().splitlines()]


def test_a_row_has_the_values_the_best_the_state_and_device_hours(display):
    shown = display(SEARCH)
    shown.began(0, {"optimizer.kind": "Lars", "optimizer.trust_coefficient": 0.01}, resumed=False)
    shown.show({0: 1800.0})
    shown.ended(0, "complete", values=[0.975])
    shown.began(1, {"optimizer.kind": "MomentumSGD"}, resumed=False)
    shown.show({1: 180.0})
    shown.reported(1, Report(number=3, value=0.5, epoch=1.0))
    rows = table(shown)
    assert rows[0] == ["trial", "kind", "trust_coefficient", "accuracy", "device-hours", "state"]
    assert rows[1] == ["0", "Lars", "0.01", "97.50", "%", "1", "complete"]
    assert rows[2] == ["1", "MomentumSGD", "50.00", "%", "0.1", "running", "report", "3", "of", "20"]
    assert " ".join(rows[3]).startswith("1/4 trials best 97.50 % (trial 0) 1.1 of 1 device-hours")


def test_time_left_is_that_of_the_budget_that_ends_first(display):
    """Trials of 90 s on 2 ranks, which are 0.05 device-hours: three are left, for two groups."""
    shown = display(replace(SEARCH, budget=Budget(trials=4, device_hours=10.0, hours=1.0)))
    shown.began(0, {}, resumed=False)
    shown.show({0: 90.0})
    shown.ended(0, "complete", values=[0.9])
    assert shown.seconds_left() == pytest.approx(3 * 90 / 2)
    shown.search = replace(SEARCH, budget=Budget(trials=4, device_hours=0.1))
    assert shown.seconds_left() == pytest.approx((0.1 - 0.05) * 3600 / 4)
    shown.search = replace(SEARCH, budget=Budget(trials=4, hours=60 / 3600))
    assert 50 < shown.seconds_left() <= 60


def test_a_trial_that_goes_on_keeps_its_time(display, tmp_path):
    shown = display(SEARCH)
    shown.began(0, {"optimizer.kind": "Lars", "epochs": 3}, resumed=False)
    shown.show({0: 900.0})
    shown.began(0, {}, resumed=True)
    first, second = (tmp_path / "log.txt").read_text().splitlines()
    assert first.endswith(" trial 0 begins: optimizer.kind Lars, epochs 3")
    assert " trial 0 goes on: " in second
    shown.show({0: 900.0})
    assert shown.device_hours() == pytest.approx(1.0)


def test_several_objectives_have_a_column_each_and_all_that_are_not_beaten_are_named(display, tmp_path):
    shown = display(BOTH)
    for number, values in enumerate([(0.9, 0.5), (0.8, 0.1), (0.7, 0.2)]):
        shown.began(number, {}, resumed=False)
        shown.ended(number, "complete", values=values)
    shown.ended(3, "infeasible", values=(0.99, 0.01), reason="not loss <= 1")
    shown.began(4, {}, resumed=False)
    shown.ended(4, "failed", reason="rank 1: ValueError")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert "trial 2 complete: accuracy 70.00 %, device-hours 0.2; trials not beaten: 0, 1; 3/4 trials" in lines[-4]
    output = "trial 3 infeasible: accuracy 99.00 %, device-hours 0.01, not loss <= 1; trials not beaten: 0, 1"
    assert output in lines[-3]
    assert lines[-1].endswith("trial 4 failed: rank 1: ValueError; trials not beaten: 0, 1; 5/4 trials")
    assert table(shown)[1][1:4] == ["90.00", "%", "0.5"]


def test_columns_are_as_short_as_they_are_clear():
    paths = ["epochs", "learning_rate.warmup.epochs", "learning_rate.reference"]
    assert column_names(paths) == ["epochs", "warmup.epochs", "reference"]
    paths = ["learning_rate.warmup.start", "learning_rate.schedule.start"]
    assert column_names(paths) == ["warmup.start", "schedule.start"]


def test_a_folder_whose_name_is_no_utf8_can_be_logged(display, tmp_path):
    display(SEARCH).say(f"report: {os.fsdecode(bytes([0xFC]))}")
    assert (tmp_path / "log.txt").read_text().endswith(" report: \\udcfc\n")
