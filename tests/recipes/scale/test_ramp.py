"""A batch ramp from measurements: where it steps, and the rate that follows."""

import json
import math

import pytest

from recipes.errors import InputRefused
from recipes.lint import lint_recipe
from recipes.planning.rates import batch_size_at, learning_rate_at
from recipes.reading.open import open_recipe
from recipes.scale import Measured, ramp_recipe, step_changes
from trainers.launch.vocabulary import vocabulary

BASE = "kilobatch: 1\nextends: digits/baseline\n"
MEASURED = [Measured(epoch=at, batch=batch) for at, batch in ((0.0, 50), (4.0, None), (6.0, 65), (8.0, 40), (9.0, 1e6))]


@pytest.fixture
def ramped(tmp_path, monkeypatch):
    """Writes a recipe and derives its ramp: (the first, the second, what was derived)."""
    monkeypatch.chdir(tmp_path)

    def derived(text, measured=MEASURED, by="the noise scale"):
        (tmp_path / "mine.yaml").write_text(text)
        scaled = ramp_recipe("mine.yaml", measured, by=by, vocabulary=vocabulary())
        return *(open_recipe(path, vocabulary=vocabulary()) for path in ("mine.yaml", scaled.file)), scaled

    return derived


def points(opened, epochs):
    return [(batch_size_at(opened.recipe, at), learning_rate_at(opened.recipe, at)) for at in epochs]


def test_the_batch_doubles_where_it_may_and_never_falls_nor_passes_a_tenth_of_the_data(ramped):
    before, after, scaled = ramped(BASE)
    epochs = (0.0, 3.0, 5.99, 6.0, 8.5, 9.0, 19.0)
    rates = [learning_rate_at(before.recipe, at) for at in epochs]
    factors = (1, 1, 1, 2, 2, 4, 4)
    assert points(after, epochs) == [(32 * k, pytest.approx(k * rate)) for k, rate in zip(factors, rates, strict=True)]
    assert "at epoch 4.00: the ramp makes no step there" in scaled.not_promised[0]
    assert scaled.not_promised[1].endswith("the ramp ends at 128, since 256 samples are more than a tenth of 1,500")
    _, _, scaled = ramped("kilobatch: 1\nname: low\nextends: digits/baseline\n", MEASURED[:-1])
    assert not any("a tenth of" in text for text in scaled.not_promised)
    assert lint_recipe(scaled.file, vocabulary=vocabulary()) == []


def test_the_rate_of_adam_grows_by_the_root_from_the_rate_that_the_recipe_had(ramped):
    text = f"{BASE}optimizer: {{kind: Adam}}\nbatch: {{global: 32}}\nlearning_rate: {{reference: 0.01, rule: none}}\n"
    before, after, _ = ramped(text)
    for (_, rate), (size, grown) in zip(points(before, (5.0, 7.0, 9.5)), points(after, (5.0, 7.0, 9.5)), strict=True):
        assert grown == pytest.approx(rate * math.sqrt(size / 32))
    assert points(after, (9.5,))[0][0] == 128


def test_a_warmup_that_starts_at_a_written_rate_starts_at_it_still(ramped):
    warmup = "{kind: GradualWarmup, epochs: 1, start: {rate: 0.01}, joins: multiply}"
    text = f"{BASE}learning_rate: {{reference: 0.1, per: 64, rule: none, warmup: {warmup}}}\n"
    before, after, _ = ramped(text)
    epochs = (0.0, 0.5, 2.0)
    assert points(after, epochs) == [(32, pytest.approx(learning_rate_at(before.recipe, at))) for at in epochs]
    steps = step_changes(before, [(0.0, 32), (6.0, 64)], "a branch")
    overrides = [f"{change.key}={json.dumps(change.after)}" for change in steps if change.moves]
    branch = open_recipe("mine.yaml", vocabulary=vocabulary(), overrides=overrides)
    assert branch.tree["learning_rate"]["warmup"]["start"] == {"factor": pytest.approx(0.1)}


def test_a_step_within_the_warmup_is_what_the_warmup_aims_at(ramped):
    rate = "learning_rate: {warmup: {kind: GradualWarmup, epochs: 2, start: {factor: 0.25}}}\n"
    before, after, _ = ramped(BASE + rate, [Measured(epoch=1.0, batch=64.0)])
    epochs = (0.0, 1.0, 1.99, 2.0)
    twice = [pytest.approx(2 * learning_rate_at(before.recipe, at)) for at in epochs]
    assert points(after, epochs) == list(zip((32, 64, 64, 64), twice, strict=True))


@pytest.mark.parametrize(
    ("text", "measured", "message"),
    [
        (f"{BASE}batch: {{global: 96}}\n", MEASURED, "a tenth of 1,500; the largest allowed is 1,0"),
        (BASE, [Measured(epoch=1.0, batch=63.0)], "allows twice the batch of 32: the largest allowed is 63"),
        (BASE, [Measured(epoch=1.0, batch=None)], "none of it could be resolved; nothing was written"),
        (f"{BASE}optimizer: {{kind: Lars}}\n", MEASURED, "how the rate of Lars follows .*; write batch.global"),
        (
            f"{BASE}batch: {{global: [{{from: 0, size: 32}}, {{from: 3, size: 64}}]}}\nlearning_rate: {{rule: sqrt}}\n",
            MEASURED,
            "its rate follows the batch by sqrt, current, where linear, current is known",
        ),
    ],
)
def test_refused_with_the_reason(ramped, text, measured, message):
    with pytest.raises(InputRefused, match=message):
        ramped(text, measured)


def test_branches_that_allow_no_ramp_are_refused_with_the_critical_batch_that_branch_prints(ramped):
    with pytest.raises(InputRefused, match="the branches: .*the critical batch is 64, and a ramp stays below it"):
        ramped(BASE, [Measured(epoch=1.0, batch=63.0)], by="the branches")
