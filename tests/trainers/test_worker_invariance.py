"""Law 2: the same recipe and seed on any number of workers, with any micro-batch, is the same run."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.mpi

UPDATES = 30
EQUAL = ("sample_ids", "images_sha256", "learning_rate", "momentum", "global_batch_size", "epoch", "samples")
# Sizes of shares: whole groups on a rank (32, 96), or groups on teams of two ranks (16).
SPLITS = [(1, 32), (2, 32), (3, 32), (4, 32), (5, 32), (2, 96), (3, 96), (4, 96), (5, 96), (2, 16), (4, 16), (5, 16)]
RECIPE = "digits/ramp"  # a small ResNet, norm_span 32, batch 96, then 192 from epoch 1 (update 16) on


@dataclass
class Finished:
    trace: list
    weights: dict
    log: str


def train(folder, ranks, *options, stop_after=UPDATES, recipe=RECIPE, dtype="float32"):
    command = [sys.executable, "-P", "-m", "kilobatch", "train", recipe, "-n", str(ranks), "--trace"]
    command += ["--out", str(folder), "--stop-after", f"{stop_after}up", "--set", "evaluation.every=5ep"]
    command += map(str, options)
    environment = {**os.environ, "CHAINER_DTYPE": dtype}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    checkpoint = folder / "checkpoints" / f"update-{stop_after:06d}"
    return Finished(
        trace=[json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()],
        weights=load_file(checkpoint / "weights.safetensors"),
        log=(folder / "log.txt").read_text(),
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone") / "run", 1)


@pytest.fixture(scope="module")
def alone_in_float64(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone") / "run", 1, dtype="float64")


def assert_same_run(found, expected, *, loss=1e-5, weights=1e-4):
    assert [line["update"] for line in found.trace] == list(range(UPDATES))
    for line, other in zip(found.trace, expected.trace, strict=True):
        for key in EQUAL:
            assert line[key] == other[key], (line["update"], key)
        assert line["loss"] == pytest.approx(other["loss"], rel=loss), line["update"]
    assert found.weights.keys() == expected.weights.keys()
    for path, array in found.weights.items():
        np.testing.assert_allclose(array, expected.weights[path], rtol=0, atol=weights, err_msg=path)


def test_the_run_alone_is_what_the_recipe_says(alone):
    sizes = [line["global_batch_size"] for line in alone.trace]
    assert sizes == [96] * 16 + [192] * 14
    assert [len(line["sample_ids"]) for line in alone.trace] == sizes
    stream = [index for line in alone.trace for index in line["sample_ids"]]
    assert sorted(stream[:1500]) == list(range(1500)), "an epoch holds each sample once"
    assert alone.trace[-1]["loss"] < 0.95 * alone.trace[0]["loss"], "it trains"


@pytest.mark.parametrize(("ranks", "micro_batch_size"), SPLITS)
def test_ranks_and_micro_batches_change_nothing(alone, tmp_path, ranks, micro_batch_size):
    assert_same_run(train(tmp_path / "run", ranks, "--micro-batch-size", micro_batch_size), alone)


@pytest.mark.parametrize(("ranks", "micro_batch_size"), [(3, 32), (5, 96), (5, 16)])
def test_in_float64_the_difference_is_rounding_and_nothing_else(alone_in_float64, tmp_path, ranks, micro_batch_size):
    found = train(tmp_path / "run", ranks, "--micro-batch-size", micro_batch_size, dtype="float64")
    assert found.weights["/fc/W"].dtype == np.float64
    assert_same_run(found, alone_in_float64, loss=1e-13, weights=1e-12)


@pytest.mark.parametrize(("first", "then"), [(2, 2), (2, 3), (3, 1)])
def test_a_resumed_run_is_the_uninterrupted_one(alone, tmp_path, first, then):
    train(tmp_path / "run", first, stop_after=13)
    assert_same_run(train(tmp_path / "run", then, "--resume"), alone)


@pytest.mark.parametrize("norm_statistics", ["moving_average", "last_batch"])
def test_running_statistics_of_each_kind_are_the_same_on_three_ranks(tmp_path, norm_statistics):
    options = ("--set", f"evaluation.norm_statistics={norm_statistics}")
    alone, three = (train(tmp_path / str(ranks), ranks, *options) for ranks in (1, 3))
    assert_same_run(three, alone)
