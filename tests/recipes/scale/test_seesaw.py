"""Seesaw: the batch doubles where the schedule would have halved the rate."""

import math

import pytest

from recipes.errors import InputRefused, RecipeError
from recipes.planning.rates import batch_size_at, learning_rate_at
from recipes.planning.timeline import timeline_of
from recipes.reading.open import open_recipe
from recipes.scale import seesaw_recipe
from trainers.launch.vocabulary import vocabulary

ADAM = "kilobatch: 1\nextends: digits/baseline\noptimizer: {kind: Adam}\n"
WARMUP = "learning_rate: {warmup: {kind: GradualWarmup, epochs: 2, joins: before}, schedule: {kind: Polynomial}}\n"
WARMUP_OF_5 = "warmup: {kind: GradualWarmup, epochs: 5, start: 0, joins: over}, "


@pytest.fixture
def seesaw(tmp_path, monkeypatch):
    """Writes a recipe and derives another from it: (the first, the second, what was derived)."""
    monkeypatch.chdir(tmp_path)

    def derived(text, batch):
        (tmp_path / "mine.yaml").write_text(text)
        scaled = seesaw_recipe("mine.yaml", batch=batch, vocabulary=vocabulary())
        return *(open_recipe(path, vocabulary=vocabulary()) for path in ("mine.yaml", scaled.file)), scaled

    return derived


def test_adam_under_a_cosine_doubles_its_batch_while_the_rate_falls_by_the_root_of_two(seesaw):
    before, after, scaled = seesaw(ADAM, 128)
    halved, quartered, eighth = (20 * math.acos(2 * share - 1) / math.pi for share in (1 / 2, 1 / 4, 1 / 8))
    for epoch, size, rate in (
        (0.0, 32, 1.0),
        (halved - 1e-3, 32, 1.0),
        (halved + 1e-3, 64, math.sqrt(1 / 2)),
        (quartered + 1e-3, 128, 1 / 2),
        (eighth + 1e-3, 128, 1 / 4),  # the batch has its largest size, so the rate is halved
    ):
        assert batch_size_at(after.recipe, epoch) == size
        assert learning_rate_at(after.recipe, epoch) == pytest.approx(0.05 * rate, rel=1e-5)
    assert scaled.batch == 128
    updates = [timeline_of(opened.recipe, opened.dataset).num_updates for opened in (before, after)]
    assert updates[1] < 0.8 * updates[0]


def test_sgd_keeps_its_rate_and_the_clock_of_its_warmup(seesaw):
    """A straight line over 18 epochs after a warmup of 2 has halved at 11 and has a quarter left at 15.5."""
    _, after, _ = seesaw(f"kilobatch: 1\nextends: digits/baseline\n{WARMUP}", 200)
    points = {1.0: (32, 0.5), 10.9: (32, 1.0), 11.1: (64, 1.0), 15.6: (128, 1.0), 17.8: (128, 0.5)}
    for epoch, (size, share) in points.items():
        assert (batch_size_at(after.recipe, epoch), learning_rate_at(after.recipe, epoch)) == (
            size,
            pytest.approx(0.05 * share),
        )


def test_a_fall_by_ten_is_three_doublings_at_once(seesaw):
    steps = "learning_rate: {schedule: {kind: MultiStep, boundaries: [10], factor: 0.1}}\n"
    _, after, _ = seesaw(f"kilobatch: 1\nextends: digits/baseline\n{steps}", 1024)
    assert after.recipe.batch.global_.sizes == (32, 256)
    assert after.recipe.batch.global_.boundaries[1] == pytest.approx(10, abs=1e-5)


@pytest.mark.parametrize(
    ("rate", "begin"),
    [
        ("schedule: {kind: SlowStart, boundaries: [10, 15], factors: [0.6, 0.3, 0.075]}", 0.6),
        (WARMUP_OF_5 + "schedule: {kind: MultiStep, boundaries: [4, 10, 15], factor: 0.5}", 0.5),
    ],
)
def test_a_schedule_that_begins_below_1_is_halved_from_there(seesaw, rate, begin):
    before, after, _ = seesaw(f"kilobatch: 1\nextends: digits/baseline\nlearning_rate: {{{rate}}}\n", 64)
    assert [learning_rate_at(opened.recipe, 9.9) for opened in (before, after)] == [pytest.approx(0.05 * begin)] * 2
    points = [(batch_size_at(after.recipe, at), learning_rate_at(after.recipe, at)) for at in (10.1, 15.1)]
    last = 0.25 if begin == 0.6 else 0.5
    assert points == [(64, pytest.approx(0.05 * begin)), (64, pytest.approx(0.05 * begin * last))]


def test_all_falls_of_a_stepped_rate_are_made(seesaw):
    """Three falls by ten are 2 ** -9.97: one doubling of the batch and eight halvings of the rate."""
    _, after, scaled = seesaw("kilobatch: 1\nextends: goyal2017/256\n", 512)
    assert [learning_rate_at(after.recipe, at) for at in (29.0, 59.0, 79.0, 89.0)] == [
        pytest.approx(0.1 * share) for share in (1, 2**-2, 2**-5, 2**-8)
    ]
    assert scaled.rates == (0.1, 0.1)  # full ones
    assert len(scaled.not_promised) == 2


def test_a_curve_to_0_is_halved_up_to_the_last_hundredth_of_the_run(seesaw):
    _, after, scaled = seesaw(ADAM, 64)
    *_, last = after.recipe.learning_rate.schedule.boundaries
    assert 19.7 < last < 19.8
    assert scaled.not_promised[-1].endswith(f"after epoch {last:g}")


def test_a_run_of_more_epochs_than_a_float_tells_apart_comes_to_an_end(seesaw):
    _, after, _ = seesaw(f"{ADAM}epochs: 20000000000\n", 64)
    assert after.recipe.learning_rate.schedule.boundaries[0] == pytest.approx(1e10, rel=1e-6)


@pytest.mark.parametrize("joins", ["over", "before", "multiply"])
def test_the_warmup_keeps_its_rate_or_the_file_says_so(seesaw, joins):
    rate = f"warmup: {{kind: GradualWarmup, epochs: 5, start: 0, joins: {joins}}}, schedule: {{kind: Polynomial}}"
    before, after, scaled = seesaw(f"kilobatch: 1\nextends: digits/baseline\nlearning_rate: {{{rate}}}\n", 64)
    rates = [[learning_rate_at(opened.recipe, at) for at in (0.5, 2.5, 4.9)] for opened in (before, after)]
    says = any("within the warmup" in text for text in scaled.not_promised)
    assert (rates[0] != pytest.approx(rates[1], rel=1e-4)) == says == (joins == "multiply")


@pytest.mark.parametrize(
    "rate",
    [
        "every: 10up",  # 0.2133... epochs
        "every: 1ep, warmup: {kind: GradualWarmup, epochs: 2.5, joins: multiply}",  # read at 2, then at 3
        "every: 1ep, warmup: {kind: GradualWarmup, epochs: 2.5, joins: before}",
        "every: 1ep, warmup: {kind: GradualWarmup, epochs: 2.5, joins: over}",
    ],
)
def test_a_rate_that_is_read_now_and_then_falls_where_the_batch_doubles(seesaw, rate):
    before, after, _ = seesaw(f"{ADAM}learning_rate: {{{rate}}}\n", 128)
    starts = after.recipe.batch.global_.boundaries[1:]
    assert len(starts) == 2
    for number, start in enumerate(starts, 1):
        rate = learning_rate_at(after.recipe, start)
        assert rate == pytest.approx(learning_rate_at(after.recipe, start - 1e-9) * math.sqrt(0.5), rel=1e-5)
        assert 1 <= rate / (learning_rate_at(before.recipe, start) * math.sqrt(2) ** number) < 2


def test_a_schedule_that_rises_within_the_warmup_is_refused_and_not_raised(seesaw, tmp_path):
    stages = "schedule: {kind: SlowStart, boundaries: [2, 10], factors: [0.1, 1, 0.5]}"
    rate = f"warmup: {{kind: GradualWarmup, epochs: 5, start: 0, joins: multiply}}, {stages}"
    with pytest.raises(InputRefused, match="its schedule rises within the warmup"):
        seesaw(f"kilobatch: 1\nextends: digits/baseline\nlearning_rate: {{{rate}}}\n", 64)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize(
    ("kind", "decay", "says"),
    [("Adam", "times_rate", True), ("Adam", "coupled", False), ("MomentumSGD", "times_rate", False)],
)
def test_decay_by_the_rate_of_adam_is_less_an_epoch_and_the_list_says_so(seesaw, kind, decay, says):
    optimizer = f"{{kind: {kind}, weight_decay: 0.1, decay: {decay}}}"
    opened = seesaw(f"kilobatch: 1\nextends: digits/baseline\noptimizer: {optimizer}\n", 128)
    scaled, at = opened[2], 10.001  # just after the first of the doublings, where a cosine over 20 epochs is a half
    before, after = (learning_rate_at(it.recipe, at) / batch_size_at(it.recipe, at) for it in opened[:2])
    assert after / before == pytest.approx(math.sqrt(0.5) if kind == "Adam" else 1, rel=1e-3)
    assert any("0.707 times as much from the weights" in line for line in scaled.not_promised) == says


def test_running_statistics_forget_as_fast_when_the_batch_grows(seesaw):
    _, after, _ = seesaw("kilobatch: 1\nextends: goyal2017/256\n", 2048)
    assert after.recipe.batch.global_.sizes == (256, 2048)
    assert after.recipe.evaluation.norm_momentum.per == 256


@pytest.mark.parametrize(
    ("more", "batch", "message"),
    [
        ("batch: {global: [{from: 0, size: 32}, {from: 5, size: 64}]}", 128, "its batch moves already"),
        ("seed: 1", 63, "--batch 63 is not twice the batch of 32"),
        ("optimizer: {kind: Lars}", 128, "no rule says how Lars exchanges .*; write batch.global"),
        ("learning_rate: {schedule: {kind: Constant}}", 128, "never halves the rate"),
        ("learning_rate: {schedule: {kind: Constant, factor: 0.3}}", 128, "never halves the rate"),
        ("learning_rate: {schedule: {kind: CosineRestarts, first: 5}}", 128, "rises after the warmup"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(seesaw, more, batch, message):
    with pytest.raises(InputRefused, match=message):
        seesaw(f"kilobatch: 1\nextends: digits/baseline\n{more}\n", batch)


@pytest.mark.parametrize(
    ("first", "most", "way_out"),
    [(32, 1024, "ask for --batch 1024"), (1024, None, "begin with a batch of at most 750")],
)
def test_a_batch_that_would_outgrow_the_data_is_refused_in_the_recipe(seesaw, tmp_path, first, most, way_out):
    text = f"kilobatch: 1\nextends: digits/baseline\nbatch: {{global: {first}}}\n"
    with pytest.raises(RecipeError) as refused:
        seesaw(text, 2048)
    (problem,) = refused.value.problems
    assert (problem.file, problem.line, problem.column, problem.path) == ("mine.yaml", 3, 17, "batch.global")
    assert f"from {first:,} to 2,048 samples, and there are 1,500" in problem.what
    assert problem.way_out.startswith(way_out)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
    if most:
        assert max(seesaw(text, most)[1].recipe.batch.global_.sizes) == most


def test_the_command_writes_a_valid_recipe(run):
    code, out = run("scale", "digits/baseline", "--batch", "256", "--seesaw")
    assert code == 0
    assert "batch.global" in out
    assert run("validate", "digits-baseline-seesaw-256.yaml")[0] == 0


def test_a_run_and_its_positions_in_updates_keep_their_epochs(seesaw):
    before, after, _ = seesaw(
        "kilobatch: 1\nextends: goyal2017/256\nepochs: 450000up\nevaluation: {every: 5004up}\n", 1024
    )
    assert after.recipe.epochs == before.recipe.epochs == pytest.approx(89.9, rel=1e-3)
    assert after.recipe.evaluation.every == before.recipe.evaluation.every
