"""What a dry run prints: the search, its cost and its first trial."""

from pathlib import Path

from trainers.search.dry_run import dry_run_text
from trainers.search.outcome import SearchRequest

OPTIONS = SearchRequest(search="mine.yaml", out=Path("out"))
TEXT = """\
kilobatch: 1
name: mine
recipe: digits/batch_256
objective: [{metric: accuracy}, {metric: device_hours}]
sampler: {kind: RandomSampler}
budget: {trials: 6, hours: 2, device_hours: 4}
space:
  optimizer.weight_decay: {kind: Float, low: 1e-5, high: 1e-2, log: true}
  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Lars]}
  optimizer.trust_coefficient: {kind: Float, low: 1e-3, high: 0.1, log: true, when: {optimizer.kind: [Lars]}}
fixed: {epochs: 3, learning_rate.warmup.epochs: 1}
constraints: [{metric: loss, at_most: 0.5}, {value: optimizer.weight_decay * 2, at_least: 1e-5}]
enqueue: [recipe]
ranks_per_trial: 2
"""


def test_a_dry_run_prints_the_search_as_a_file_that_opens_as_the_same_search_its_cost_and_the_first_trial(open_text):
    opened = open_text(TEXT)
    output = dry_run_text(opened, OPTIONS, opened.enqueued, groups=3)
    search, _, rest = output.partition("\n\n")
    again = open_text(search)
    assert (again.search, again.tree) == (opened.search, opened.tree)
    assert "runs: 6 of 18 updates like the first, 27,648 samples" in rest
    assert "ranks: 3 trials side by side, of 2 each; an hour is 6 device-hours" in rest
    assert "first trial: optimizer.weight_decay 0.0001, optimizer.kind MomentumSGD\n" in rest
    assert "memory of a device: weights " in rest
    assert "  weight_decay: 0.0001 " in rest
