"""What is drawn from known recipes, by hand, and an earlier search that informs another one."""

import math
from pathlib import Path

import pytest
import yaml

from recipes.reading.open import open_recipe
from recipes.schema import Prior
from recipes.search_space.open_search import assignments
from recipes.search_space.ranges import Categorical, Float, Int
from trainers.launch.vocabulary import vocabulary
from trainers.runs.run_folder import RECIPE
from trainers.search.folder import folder_record, opened_storage, own_study, run_folders
from trainers.search.prior import drawn_values, first_values
from trainers.search.study import new_study, next_trial

RATE = "learning_rate.reference"
SPACE = {
    RATE: Float(low=1e-4, high=10.0, log=True),
    "learning_rate.warmup.epochs": Int(low=1, high=19),
    "optimizer.momentum": Float(low=0.0, high=1.0),
    "optimizer.weight_decay": Float(low=1e-6, high=1e-2, log=True),
    "loss.label_smoothing": Categorical(choices=(0.0, 0.1)),
}


def tree(*overrides):
    return open_recipe("digits/batch_256", vocabulary=vocabulary(), overrides=overrides).tree


@pytest.fixture
def drawn(made):
    """`drawn(known, own)`: the values of the first trials of a search at the batch of `own`."""

    def drawn(known, own, *, draws=200):
        search = made(space=SPACE, prior=Prior(recipe="digits/batch_256", draws=draws))
        return [drawn_values(search, known, own, index=index) for index in range(draws)]

    return drawn


@pytest.mark.parametrize("rule", ["linear", "sqrt", "none"])
def test_the_full_rate_lies_between_the_square_root_and_twice_the_linear_rule(drawn, rule):
    """Known at batch 32: 0.05 in full; at 512, 16 times as much, 0.2 to 1.6."""
    large = tree("batch.global=512", f"learning_rate.rule={rule}")
    values = drawn(tree("batch.global=32"), large)
    scale = {"linear": 16, "sqrt": 4, "none": 1}[rule]  # of the reference, which holds at 32
    rates = [one[RATE] * scale for one in values]
    assert rates == sorted(rates)
    assert min(rates) == pytest.approx(0.2, rel=0.02)
    assert max(rates) == pytest.approx(1.6, rel=0.02)
    middle = sum(rate < math.sqrt(0.2 * 1.6) for rate in rates)
    assert abs(middle - 100) <= 1  # evenly, in the logarithm


def test_other_values_lie_around_the_known_ones_and_inside_their_ranges(drawn):
    values = drawn(tree("optimizer.momentum=0.9", "learning_rate.warmup.epochs=4"), tree("batch.global=1024"))
    for one in values:
        assert all(range_.holds(one[path]) for path, range_ in SPACE.items())
        assert 4 <= one["learning_rate.warmup.epochs"] <= 8
    lacking = sorted(1 - one["optimizer.momentum"] for one in values)
    assert lacking[100] == pytest.approx(0.1, rel=0.2)
    assert 0.01 < lacking[0] < lacking[-1] < 0.4
    assert 120 < sum(one["loss.label_smoothing"] == 0.0 for one in values) < 195  # 0.8 and half of the rest
    # What the known recipe lacks is left to the sampler.
    (one,) = drawn(tree("learning_rate.warmup=null"), tree("batch.global=1024"), draws=1)
    assert "learning_rate.warmup.epochs" not in one


TEXT = """\
space:
  learning_rate.reference: {kind: Float, low: 0.001, high: 1.0, log: true}
  optimizer.momentum: {kind: Float, low: 0.5, high: 0.99}
fixed:
  batch.global: 512
  epochs: 2
  model: {kind: SmallCNN, width: 2, first_stride: 2}
  learning_rate.warmup.epochs: 1
budget: {trials: 2}
reports: 1
"""


def test_an_earlier_search_at_a_small_batch_informs_a_large_one(open_text):
    small = open_text(TEXT.replace("batch.global: 512", "batch.global: 64"))
    record = folder_record(Path("out"), small, resume=False)
    Path("out").mkdir()
    with opened_storage("sqlite", Path("out")) as storage:
        study = new_study(small.search, storage=storage, name=record["study"])
        own_study(study, Path("out"), record)
        for rate in (0.02, 0.08):
            study.enqueue_trial({RATE: rate, "optimizer.momentum": 0.9})
            trial = next_trial(study, small.search)
            (run,) = run_folders(Path("out"), trial.number, seeds=1)
            run.mkdir(parents=True)
            changes = {**small.search.fixed, RATE: rate}
            recipe = open_recipe("digits/batch_256", vocabulary=vocabulary(), overrides=assignments(changes))
            (run / RECIPE).write_text(yaml.safe_dump(recipe.tree))
            study.tell(trial, rate)
    opened = open_text(TEXT + "prior: {search: out, draws: 2}\n")
    rates = [one[RATE] for one in first_values(opened)]
    # A batch 8 times as large: a quarter of the way from the square root to twice the linear rule for the best recipe,
    # three quarters for the next one, over the growth of the reference rate with the batch.
    low, high = math.sqrt(8), 16.0
    assert rates == pytest.approx([0.08 * low * (high / low) ** 0.25 / 8, 0.02 * low * (high / low) ** 0.75 / 8])


BATCHES = "  batch.global: {kind: Categorical, choices: [64, 128]}\nfixed:\n"
BATCHES = TEXT.replace("fixed:\n  batch.global: 512\n", BATCHES)


@pytest.mark.parametrize(
    ("text", "prior", "message"),
    [
        (TEXT, "search: nowhere", "prior: there is no search in .*nowhere; a search's folder has a file search"),
        (TEXT, "recipe: nothing", "unknown recipe|no recipe|nothing"),
        (TEXT, "recipe: digits/baseline, search: x", "must have either `recipe` or `search`"),
        (BATCHES, "recipe: digits/baseline", "the batch is searched, and a prior needs one batch"),
    ],
)
def test_a_prior_that_is_not_there_or_has_no_one_batch_is_refused(open_text, text, prior, message):
    with pytest.raises(ValueError, match=message):
        first_values(open_text(f"{text}prior: {{{prior}}}\n"))


TRUST = "  optimizer.trust_coefficient: {kind: Float, low: 0.001, high: 0.1}\n"
KINDS = "  optimizer.kind: {kind: Categorical, choices: [Lars, MomentumSGD]}\n"
UNKNOWN = [
    "the prior knows nothing of optimizer.trust_coefficient: the sampler draws the first values too",
    "the prior has the optimizer MomentumSGD, and this search Lars: a rate that is good for one optimizer is seldom "
    "good for another",
]


@pytest.mark.parametrize(
    ("space", "fixed", "warnings"), [("", "", []), (TRUST, "  optimizer.kind: Lars\n", UNKNOWN), (KINDS, "", [])]
)
def test_a_prior_that_is_no_measure_for_the_search_is_named(open_text, capsys, space, fixed, warnings):
    text = TEXT.replace("fixed:\n", f"{space}fixed:\n{fixed}")
    first_values(open_text(f"{text}prior: {{recipe: digits/baseline}}\n"))
    assert capsys.readouterr().err.splitlines() == [f"kilobatch: warning: {warning}" for warning in warnings]
