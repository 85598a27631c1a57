"""LARS between the points of MLPerf, against the table of the facts."""

import numpy as np
import pytest

from recipes.errors import InputRefused
from recipes.scale.rules import Point, between, points
from trainers.launch.vocabulary import vocabulary

# batch, rate, warmup epochs, momentum, weight decay
TABLE = [
    (1632, 7.4, 2, 0.9, 5e-5),
    (3264, 10.5, 2, 0.9, 5e-5),
    (4096, 10, 5, 0.9, 2e-4),
    (8192, 17, 5, 0.9, 2e-4),
    (13056, 12.8, 9, 0.9, 2.5e-5),
    (32768, 21.2, 16, 0.94, 2.5e-5),
    (49152, 19.405, 24, 0.951807, 1e-4),
    (58880, 23.246, 29, 0.951807, 1e-4),
    (65536, 24.699, 31, 0.951807, 1e-4),
    (67840, 24.699, 31, 0.951807, 1e-4),
]


@pytest.fixture(scope="module")
def known():
    return points(vocabulary())


def test_points_are_those_of_the_table(known):
    result = [(point.batch, point.rate, point.warmup, point.momentum, point.decay) for point in known]
    assert result == TABLE


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row[0]))
def test_a_point_is_itself(row, known):
    point, below, above = between(known, row[0])
    assert point is below is above
    assert (point.batch, point.rate) == row[:2]


def test_between_two_points_by_hand():
    low = Point(batch=1024, rate=4.0, warmup=2, momentum=0.9, decay=1e-4, epochs=40, schedule=30)
    high = Point(batch=4096, rate=16.0, warmup=8, momentum=0.975, decay=4e-4, epochs=90, schedule=30)
    point, below, above = between((low, high), 2048)  # half way in the logarithm
    assert (below, above) == (low, high)
    assert (point.rate, point.warmup, point.epochs, point.schedule) == (8.0, 4.0, 60.0, 30.0)
    assert point.momentum == 0.95
    assert point.decay == 2e-4


def test_between_the_points_as_interpolated_by_numpy(known):
    batches, rates = np.log([row[0] for row in TABLE]), np.log([row[1] for row in TABLE])
    for batch in (2000, 10000, 16384, 40000, 67000):
        point = between(known, batch)[0]
        assert point.rate == pytest.approx(np.exp(np.interp(np.log(batch), batches, rates)), rel=1e-5)
        assert np.log2(point.decay / 1e-4) == round(np.log2(point.decay / 1e-4))


@pytest.mark.parametrize("batch", [1024, 1631, 67841, 131072])
def test_refused_outside_the_published_range(batch, scale):
    with pytest.raises(InputRefused, match="the published points go from 1,632 to 67,840"):
        scale("mlperf/lars_8192", batch)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row[0]))
def test_a_published_recipe_becomes_the_published_recipe(row, scale, same_run):
    made, opened = scale("mlperf/lars_8192" if row[0] != 8192 else "mlperf/lars_3264", row[0])
    result, wanted = same_run(opened), same_run(f"mlperf/lars_{row[0]}")
    assert made.rates[1] == row[1]
    assert result.learning_rate.warmup == wanted.learning_rate.warmup
    assert result.optimizer == wanted.optimizer
    assert result.epochs == wanted.epochs
    assert result.learning_rate.schedule.epochs == wanted.learning_rate.schedule.epochs
    assert result.learning_rate.schedule.end == pytest.approx(wanted.learning_rate.schedule.end, rel=1e-12)


def test_a_recipe_of_ones_own_moves_by_as_much_as_the_points(scale, change_of):
    own = "kilobatch: 1\nextends: mlperf/lars_8192\nlearning_rate: {reference: 8.5}\n"
    made, _ = scale("own.yaml", 4096, text=own)
    assert made.rates == (8.5, 5.0)  # 17 and 10 are published
    assert change_of(made, "learning_rate.warmup.epochs") == (5, 5)


@pytest.mark.parametrize("joins", ["before", "multiply"])
@pytest.mark.parametrize("epochs", ["", ", epochs: %d"])
def test_a_schedule_that_ended_with_the_run_ends_with_it_still(epochs, joins, scale):
    schedule = "{kind: Polynomial%s}" % (epochs and epochs % {"before": 85, "multiply": 90}[joins])
    warmup = f"{{kind: GradualWarmup, epochs: 5, start: 0, joins: {joins}}}"
    rate = f"{{reference: 10.0, per: 4096, rule: none, warmup: {warmup}, schedule: {schedule}}}"
    text = f"kilobatch: 1\nextends: goyal2017\nbatch: {{global: 4096}}\nlearning_rate: {rate}\n"
    made, opened = scale("own.yaml", 32768, text=text + "optimizer: {kind: Lars, weight_decay: 1e-4}\n")
    assert opened.recipe.epochs == 124.286  # 90 x 58 / 42, from 42 at 4,096
    assert opened.recipe.learning_rate.schedule.epochs == pytest.approx({"before": 108.286, "multiply": 124.286}[joins])
    assert "# 90 x 58 / 42: 58 in mlperf/lars_32768\n" in made.file.read_text()
    assert not [line for line in made.not_promised if "lint reports" in line]


def test_momentum_of_ones_own_moves_by_as_much_as_the_points(scale, change_of):
    own = "kilobatch: 1\nextends: mlperf/lars_8192\noptimizer: {momentum: 0.95}\n"
    made, _ = scale("own.yaml", 32768, text=own)
    # 0.9 and 0.94 are published: 1 - m, 0.05 here, falls to 0.06 / 0.1 of it
    assert change_of(made, "optimizer.momentum") == (0.95, 0.97)


def test_momentum_that_would_leave_its_range_is_refused(scale):
    own = "kilobatch: 1\nextends: mlperf/lars_32768\noptimizer: {momentum: 0.1}\n"
    with pytest.raises(InputRefused, match=r"optimizer.momentum: 0.1 would become -0.5, outside \[0, 1\)"):
        scale("own.yaml", 8192, text=own)


def test_a_ramp_or_another_schedule_is_refused(scale):
    ramp = "kilobatch: 1\nextends: mlperf/lars_8192\nbatch: {global: [{from: 0, size: 4096}, {from: 9, size: 8192}]}\n"
    with pytest.raises(InputRefused, match="LARS with a ramp"):
        scale("ramp.yaml", 8192, text=ramp)
    cosine = "kilobatch: 1\nextends: mlperf/lars_8192\nlearning_rate: {schedule: {kind: Cosine}}\n"
    with pytest.raises(InputRefused, match="other than Polynomial"):
        scale("cosine.yaml", 4096, text=cosine)


def test_a_warmup_that_begins_at_the_reference_rate_still_rises(scale):
    rate = "{reference: 0.625, per: 256, rule: linear, warmup: {start: reference}}"
    text = f"kilobatch: 1\nextends: mlperf/lars_4096\nlearning_rate: {rate}\n"
    opened = scale("lars.yaml", 8192, text=text)[1]
    assert opened.recipe.learning_rate.warmup.shape.start == pytest.approx(1 / 16)


def test_a_warmup_that_would_become_longer_than_the_run_is_refused_without_a_place_in_a_file(scale, tmp_path):
    own = "kilobatch: 1\nextends: mlperf/lars_32768\nepochs: 30\nlearning_rate: {warmup: {epochs: 25}}\n"
    refusal = r"^the derived recipe is not valid, and nothing was written: learning_rate\.warmup\.epochs: .*; shorten"
    with pytest.raises(InputRefused, match=refusal):
        scale("own.yaml", 65536, text=own)
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]
