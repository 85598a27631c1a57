"""What a dry run prints: the space, the budget, and the cost of the trials that remain."""

from contextlib import closing
from pathlib import Path

from optuna.trial import TrialState, create_trial

from recipes.search_space.open_search import open_search
from trainers.launch.vocabulary import search_vocabulary
from trainers.search.dry_run import cost_lines, dry_run_text
from trainers.search.search_folder import write_search_file, write_storage_file
from trainers.search.storage import open_storage, parse_storage
from trainers.search.study import SECONDS, new_study
from trainers.search.trial_run import SearchOptions

TEXT = """\
kilobatch: 1
name: mine
recipe: digits/baseline
sampler: {kind: Random}
budget: {trials: 6}
ranks_per_trial: 2
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.2, log: true}}
"""
OPTIONS = SearchOptions(folder=Path("out"), stop_file=Path("out/stop"))
TRANSFER = "fixed: {batch.global: 32}\ntransfer: {from_batch: 32, to_batch: 512, trials: [4, 2]}\n"


def begin(opened, folder, seconds):
    """A search's folder whose trials took so long; one more failed before it began to train."""
    folder.mkdir()
    address = parse_storage("sqlite", folder)
    with closing(open_storage(address)) as storage:
        study = new_study(opened.search, storage=storage)
        for each in seconds:
            study.add_trial(create_trial(value=0.9, user_attrs={SECONDS: each}))
        study.add_trial(create_trial(state=TrialState.FAIL))
    write_search_file(folder, opened)
    write_storage_file(folder, address, opened.search.name)


def test_the_forecast_is_the_mean_of_the_trials_that_have_ended(open_text, tmp_path):
    """Three of six are left, one after the other in one group, side by side in three."""
    search = open_text(TEXT)
    assert cost_lines(search, tmp_path / "out", groups=3)[0].startswith("cost: nothing is known before a trial has")
    begin(search, tmp_path / "out", (60.0, 120.0))
    (line,) = cost_lines(search, tmp_path / "out", groups=3)
    took = "2 trials took 0.1 device-hours, 1 min 30 s each in the mean (1 min 00 s to 2 min 00 s)"
    assert line == f"cost: {took}; the 3 left would take about 0.15 device-hours, 1 min 30 s on 6 ranks"
    (line,) = cost_lines(open_text(TEXT.replace("trials: 6", "trials: 6, hours: 1")), tmp_path / "out", groups=1)
    assert line.endswith("4 min 30 s on 2 ranks, unless a limit of the budget ends it before")
    (line,) = cost_lines(open_text(TEXT.replace("trials: 6", "trials: 3")), tmp_path / "out", groups=1)
    assert line == f"cost: {took}; none is left"


def test_untrained_trials_give_no_forecast(open_text, tmp_path):
    begin(open_text(TEXT), tmp_path / "out", ())
    (line,) = cost_lines(open_text(TEXT), tmp_path / "out", groups=1)
    assert line.startswith("cost: nothing is known before a trial has")


def test_trials_of_another_search_give_no_forecast(open_text, tmp_path):
    begin(open_text(TEXT), tmp_path / "out", (60.0,))
    (line,) = cost_lines(open_text(TEXT.replace("0.2", "0.4")), tmp_path / "out", groups=1)
    assert line.startswith(f"cost: not known: {tmp_path}/out holds another search; ")


def test_a_transfer_has_a_forecast_of_each_of_its_searches(open_text, tmp_path):
    search = open_text(TEXT + TRANSFER)
    small = TEXT.replace("trials: 6", "trials: 4").replace("mine", "mine-from-32") + "fixed: {batch.global: 32}\n"
    Path("from-32.yaml").write_text(small)
    begin(open_search("from-32.yaml", vocabulary=search_vocabulary()), tmp_path / "from-32", (60.0,))
    lines = cost_lines(search, tmp_path, groups=1)
    assert lines[0].startswith("cost of from-32: 1 trial took 0.0333 device-hours, ")
    assert "the 2 left would take about 0.0667 device-hours, 2 min 00 s on 2 ranks" in lines[0]
    assert lines[1].startswith("cost of to-512: nothing is known")


TWO = "objective: [{metric: accuracy}, {metric: device_hours, direction: minimize}]\n"
DRY = """\
kilobatch: 1
name: mine
recipe: digits/batch_256
sampler: {kind: Random}
budget: {trials: 6, hours: 2, device_hours: 4}
space:
  optimizer.weight_decay: {kind: Float, low: 1e-5, high: 1e-2, log: true}
  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Lars]}
  optimizer.trust_coefficient: {kind: Float, low: 1e-3, high: 0.1, log: true, when: {optimizer.kind: [Lars]}}
fixed: {epochs: 3, learning_rate.warmup.epochs: 1}
"""


def test_a_dry_run_prints_the_space_the_conditions_and_the_budget_in_device_hours(open_text):
    text = DRY + "constraints: [{metric: loss, at_most: 0.5}, {value: optimizer.weight_decay * 2, at_least: 1e-5}]\n"
    output = dry_run_text(open_text(text + "enqueue: [recipe]\nranks_per_trial: 2\n"), OPTIONS, groups=3)
    assert "search mine over digits/batch_256: maximize accuracy" in output
    assert "optimizer.kind is Lars" in output
    row = next(line for line in output.splitlines() if line.startswith("optimizer.trust_coefficient"))
    assert "0.001 to 0.1, log" in row
    assert row.split()[-1] == "-"  # the recipe's own optimizer has none
    assert "constraint: loss at most 0.5, or a trial is never the best" in output
    assert "constraint: optimizer.weight_decay * 2 at least 1e-05, or a trial is not trained" in output
    assert "budget: 6 trials of 18 updates like the first one, 27,648 samples in all" in output
    assert "hours: trials begin within 2 hours, up to 12 device-hours" in output
    assert "device-hours: trials begin within 4, which 6 ranks use in 40 min 00 s" in output
    assert "  weight_decay: 0.0001 " in output.partition("recipe of the first trial:")[2]
    assert "ranks: 2 a trial, 3 trials side by side, so as long as 2 trials one after the other" in output
    assert "memory of a device: weights " in output


def test_a_dry_run_prints_several_objectives(open_text):
    output = dry_run_text(open_text(DRY + TWO), OPTIONS, groups=1)
    assert "maximize accuracy and minimize device-hours" in output
    assert "ranks: 1 a trial, 1 trial at a time, so as long as 6 trials one after the other" in output
