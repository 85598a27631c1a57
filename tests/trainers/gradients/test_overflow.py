"""An update whose gradient overflows in float16 is done again at half the scale, without another trace of it."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

from trainers.tasks.score_run import score_run

pytestmark = pytest.mark.mpi

UPDATES = 8
# 1,218 parameters, two norm groups of 32 an update, dropout, and every method that looks at gradients or statistics.
SMALL = {
    "epochs": "512sp",
    "model": "{kind: SmallCNN, width: 4, dropout: 0.2}",
    "batch.global": "64",
    "learning_rate.warmup": "null",
    "gradient.clip_norm": "1.0",
    "weight_average": "{keep: 0.9, per: 64}",
    "evaluation.norm_statistics": "by_group",
}
MICRO_BATCH = ("--micro-batch-size", 32)
OVERFLOWS = 2**30
WIDE_RANGES = ("float32", "bfloat16")


def mixed(loss_scale, double_after=2000, **others):
    precision = f"{{compute: mixed16, loss_scale: {loss_scale}, double_after: {double_after}}}"
    values = {**SMALL, "precision": precision, **others}
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def small(train):
    def run(folder, ranks, *options, stop_after=UPDATES):
        options = (*options, "--noise-scale", *(() if "--micro-batch-size" in options else MICRO_BATCH))
        return train(folder, ranks, *options, stop_after=stop_after, recipe="digits/large_batch")

    return run


def updates(run):
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["key"] == "train_loss"]


def kept(run, update=UPDATES):
    folder = run.folder / "checkpoints" / f"update-{update:06d}"
    arrays = {name: load_file(folder / f"{name}.safetensors") for name in ("weights", "optimizer", "averages")}
    return arrays, json.loads((folder / "state.json").read_text())


def assert_bit_for_bit(run, other, update=UPDATES):
    (arrays, state), (expected, expected_state) = kept(run, update), kept(other, update)
    for name, actual in arrays.items():
        assert actual.keys() == expected[name].keys()
        for path, array in actual.items():
            np.testing.assert_array_equal(array, expected[name][path], err_msg=f"{name} {path}")
    others = ("ids", "best")  # the first scale is in the recipe; two ranks add up the score in two parts
    assert {**state, **dict.fromkeys(others)} == {**expected_state, **dict.fromkeys(others)}
    assert run.trace == other.trace


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory, small):
    return small(tmp_path_factory.mktemp("overflowed") / "run", 1, *mixed(OVERFLOWS))


def test_the_run_is_the_one_begun_at_the_surviving_scale(overflowed, tmp_path, small):
    lines = updates(overflowed)
    assert lines[0]["overflows"] > 5, "provoked"
    assert not any(line["overflows"] for line in lines[1:]), "or the counts of good updates would differ"
    surviving = lines[0]["loss_scale"]
    assert surviving == OVERFLOWS / 2 ** lines[0]["overflows"]
    calm = small(tmp_path / "calm", 1, *mixed(int(surviving)))
    assert_bit_for_bit(overflowed, calm)
    for line, other in zip(lines, updates(calm), strict=True):
        differs = {key for key in line if line[key] != other[key]}
        assert all(key.endswith("_seconds") or key in ("time_ms", "slowest_rank", "overflows") for key in differs)
    assert [line["overflows"] for line in updates(calm)] == [0] * UPDATES


def test_the_score_is_that_of_the_averaged_weights_in_float32_inside_the_run_and_outside(overflowed):
    scored = score_run(overflowed.folder)
    lines = map(json.loads, (overflowed.folder / "metrics.jsonl").read_text().splitlines())
    within = {line["key"]: line["value"] for line in lines}
    assert (scored["update"], scored["loss"]) == (UPDATES, within["eval_loss"])
    assert scored["accuracy"] == within["eval_accuracy"]
    assert np.float32(scored["loss"]) != np.float16(scored["loss"])


def test_mixed_precision_trains_as_float32_does_and_float32_knows_no_scale(overflowed, tmp_path, small):
    options = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    wide = small(tmp_path / "wide", 1, *options)
    for line, other in zip(overflowed.trace, wide.trace, strict=True):
        assert line["images_sha256"] == other["images_sha256"]
        assert line["loss"] == pytest.approx(other["loss"], rel=5e-3)
    assert [line["loss"] for line in overflowed.trace] != [line["loss"] for line in wide.trace]
    assert not {"loss_scale", "overflows"} & updates(wide)[0].keys()
    assert kept(wide)[1]["updater"] == {}


def test_teams_see_the_same_run_up_to_the_rounding_of_float16(overflowed, tmp_path, small, assert_same_run):
    actual = small(tmp_path / "run", 3, "--micro-batch-size", 16, *mixed(OVERFLOWS))
    assert updates(actual)[0]["overflows"] > 5
    assert_same_run(actual, overflowed, loss=1e-3, weights=1e-2)


@pytest.fixture(scope="module")
def doubling(tmp_path_factory, small):
    return small(tmp_path_factory.mktemp("doubling") / "run", 1, *mixed(OVERFLOWS, double_after=1))


def test_two_ranks_take_the_same_decisions_even_where_one_alone_overflows(doubling, tmp_path, small):
    two = small(tmp_path / "run", 2, *mixed(OVERFLOWS, double_after=1))
    assert_bit_for_bit(two, doubling)
    assert decisions(two) == decisions(doubling)
    assert sum(overflows > 0 for _, overflows in decisions(two)) > 3, "at every doubling"
    first_rank = re.findall(r"the gradient of \S+ overflowed on rank (\d)", two.log)
    assert "1" in first_rank, "rank 0 alone would have gone on"


def test_scale_and_count_go_on_after_a_resume_with_an_overflow_behind_it(doubling, tmp_path, small):
    options = mixed(OVERFLOWS, double_after=1)
    small(tmp_path / "run", 2, *options, stop_after=3)
    resumed = small(tmp_path / "run", 1, *options, "--resume")
    assert_bit_for_bit(resumed, doubling)
    assert decisions(resumed) == decisions(doubling)


def decisions(run):
    return [(line["loss_scale"], line["overflows"]) for line in updates(run)]


@pytest.fixture
def failed(kilobatch):
    def run(folder, *options):
        done = kilobatch("train", "digits/large_batch", *options, "--out", folder, ranks=2)
        assert done.returncode == 3
        assert "Traceback" not in done.stderr
        return done.stderr

    return run


def test_a_loss_that_is_not_finite_fails_at_once_for_no_scale_cures_it(tmp_path, failed):
    message = failed(tmp_path / "run", *mixed(65536), "--set", "learning_rate.reference=1e6")
    assert "the loss is not finite at update 1 on rank 0" in message
    assert "so does what mixed16 cannot hold: see precision.compute" in message
    assert "overflowed" not in (tmp_path / "run" / "log.txt").read_text()


def test_what_overflows_at_every_scale_fails_with_update_scale_and_parameter(tmp_path, failed):
    message = failed(tmp_path / "run", *mixed(2**60))
    scale = f"{2**40:.12g}"
    assert re.search(
        rf"gradient of /\S+ is not finite at update 0 on rank 0, even at a loss scale of {re.escape(scale)}, after 20 "
        r"halvings.*precision.compute: float32.*Last good checkpoint: none was written yet",
        message,
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines] == ["run_start", "run_stop"]


def test_bfloat16_needs_no_loss_scale(tmp_path, small):
    pytest.importorskip("ml_dtypes", reason="bfloat16 comes from ml_dtypes")
    wide, narrow = (small(tmp_path / word, 1, *mixed(1, precision=f"{{compute: {word}}}")) for word in WIDE_RANGES)
    assert all("loss_scale" not in line for line in updates(narrow))
    for line, other in zip(narrow.trace, wide.trace, strict=True):
        assert line["sample_ids"] == other["sample_ids"]
        assert 0 < abs(line["loss"] - other["loss"]) < 0.05
