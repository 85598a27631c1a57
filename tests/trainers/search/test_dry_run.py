"""What a dry run prints: the space and the budget."""

from pathlib import Path

from trainers.search.dry_run import dry_run_text
from trainers.search.outcome import SearchRequest

OPTIONS = SearchRequest(search="mine.yaml", out=Path("out"))
TWO = "objective: [{metric: accuracy}, {metric: device_hours}]\n"
DRY = """\
kilobatch: 1
name: mine
recipe: digits/batch_256
sampler: {kind: RandomSampler}
budget: {trials: 6, hours: 2, device_hours: 4}
space:
  optimizer.weight_decay: {kind: Float, low: 1e-5, high: 1e-2, log: true}
  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Lars]}
  optimizer.trust_coefficient: {kind: Float, low: 1e-3, high: 0.1, log: true, when: {optimizer.kind: [Lars]}}
fixed: {epochs: 3, learning_rate.warmup.epochs: 1}
"""


def test_a_dry_run_prints_the_space_the_conditions_and_the_budget_in_device_hours(open_text):
    text = DRY + "constraints: [{metric: loss, at_most: 0.5}, {value: optimizer.weight_decay * 2, at_least: 1e-5}]\n"
    opened = open_text(text + "enqueue: [recipe]\nranks_per_trial: 2\n")
    output = dry_run_text(opened, OPTIONS, opened.enqueued, groups=3)
    assert "search mine over digits/batch_256: maximize accuracy" in output
    assert "optimizer.kind is Lars" in output
    row = next(line for line in output.splitlines() if line.startswith("optimizer.trust_coefficient"))
    assert "0.001 to 0.1, log" in row
    assert row.split()[-1] == "-"  # the recipe's own optimizer has none
    assert "constraint: loss <= 0.5, or a trial is never the best" in output
    assert "constraint: optimizer.weight_decay * 2 >= 1e-05, or a trial is not trained" in output
    assert "budget: 6 trials of 18 updates like the first one, 27,648 samples in all" in output
    assert "\nhours: trials begin within 2\n" in output
    assert "\ndevice-hours: trials begin within 4\n" in output
    assert "  weight_decay: 0.0001 " in output.partition("recipe of the first trial:")[2]
    assert "ranks: 2 a trial, 3 trials side by side; an hour of all is 6 device-hours" in output
    assert "memory of a device: weights " in output


def test_a_dry_run_prints_several_objectives(open_text):
    output = dry_run_text(open_text(DRY + TWO), OPTIONS, [], groups=1)
    assert "maximize accuracy and minimize device-hours" in output
    assert "ranks: 1 a trial, 1 trial at a time; an hour of all is 1 device-hours" in output
