"""`--set cluster.A.B=C`, through the command line: it reaches the ranks, and what is wrong with it starts none."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

SMALL = ("digits/ramp", "--set", "model.width=4")
RING = ("--set", "cluster.exchange.communicator={kind: Ring}")


@pytest.fixture(scope="module")
def weights_of(kilobatch):
    """The weights of a run, by the command that a user types or on resident ranks."""

    def run(folder, *words, own_ranks=False):
        words = ["train", *SMALL, *RING, *words, "--no-report", "--out", str(folder), "--stop-after", "3up"]
        if own_ranks:
            command = [sys.executable, "-P", "-m", "kilobatch", *words, "-n", "2"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        else:
            done = kilobatch(*words, ranks=2)
        assert done.returncode == 0, done.stderr
        arrays = load_file(folder / "checkpoints" / "update-000003" / "weights.safetensors")
        return np.concatenate([arrays[path].ravel() for path in sorted(arrays)])

    return run


@pytest.mark.mpi
@pytest.mark.slow
def test_wire_of_the_command_line_is_what_gradients_are_rounded_to(tmp_path, weights_of):
    full = weights_of(tmp_path / "float32")
    again = weights_of(tmp_path / "again", "--set", "cluster.exchange.bucket_bytes=1000")
    rounded = weights_of(tmp_path / "bfloat16", "--set", "cluster.exchange.wire=bfloat16", own_ranks=True)
    assert np.array_equal(full, again)  # two ranks: one sum, whatever the bucket
    assert not np.array_equal(full, rounded)
    np.testing.assert_allclose(rounded, full, rtol=0.05, atol=0.02)


@pytest.mark.mpi
def test_in_shared_memory_nothing_is_sent_so_that_16_bits_round_nothing_and_count_nothing(tmp_path, weights_of):
    shared = ("--set", "cluster.exchange.communicator={kind: SharedWindow}")
    full = weights_of(tmp_path / "float32", *shared)
    half = weights_of(tmp_path / "float16", *shared, "--set", "cluster.exchange.wire=float16")
    assert np.array_equal(full, half)
    assert "wire_flushed" not in (tmp_path / "float16" / "metrics.jsonl").read_text()
    weights_of(tmp_path / "ring", "--set", "cluster.exchange.wire=float16")
    lines = [json.loads(line) for line in (tmp_path / "ring" / "metrics.jsonl").read_text().splitlines()]
    assert sum("wire_flushed" in line for line in lines) == 3


@pytest.mark.mpi
def test_with_dummy_the_weights_drift_and_the_run_goes_to_its_end(tmp_path, kilobatch):
    folder, dummy = tmp_path / "run", ("--set", "cluster.exchange.communicator={kind: Dummy}")
    often = ("--set", "evaluation.every=2up", "--checkpoint-every", "1up", "--stop-after", "3up")
    done = kilobatch("train", *SMALL, *dummy, *often, "--no-report", "--out", folder, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "weights of the ranks differ by intention" in (folder / "log.txt").read_text()
    assert list((folder / "checkpoints").iterdir()) == [], "of no model"
    keys = [json.loads(line)["key"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert keys.count("train_loss") == 3
    assert "eval_accuracy" in keys
    assert keys[-1] == "run_stop"
    alone = tmp_path / "alone"  # where there is nobody to differ from
    done = kilobatch("train", *SMALL, *dummy, "--stop-after", "2up", "--no-report", "--out", alone, ranks=1)
    assert done.returncode == 0, done.stderr
    assert (alone / "checkpoints" / "update-000002").is_dir()


def test_wrong_override_of_the_cluster_starts_nothing(tmp_path, kilobatch):
    folder = tmp_path / "run"
    done = kilobatch("train", *SMALL, "--set", "cluster.exchange.wire=float8", "-n", 2, "--out", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("command line:2:23: exchange.wire: is the text 'float8'")
    assert not folder.exists()


def test_plan_takes_them_too_and_other_commands_refuse_them(kilobatch):
    done = kilobatch("plan", *SMALL, "--set", "cluster.workers_per_node=3", "--json")
    assert json.loads(done.stdout)["workers"] == 3
    refused = kilobatch("recipes", "show", *SMALL, "--set", "cluster.workers_per_node=3")
    assert refused.returncode == 2
    assert refused.stderr.startswith("command line:2:1: cluster: is not a known key")


def test_more_workers_than_a_named_cluster_has_are_refused(tmp_path, kilobatch):
    done = kilobatch("plan", "digits/ramp", "-n", 3)
    assert (done.returncode, done.stderr) == (0, "")
    assert "digits-ramp on digits, 3 workers of laptop" in done.stdout
    for words in (
        ("plan", "digits/ramp", "--cluster", "laptop"),
        ("train", *SMALL, "--set", "cluster.workers_per_node=2", "--out", tmp_path / "run"),
    ):
        done = kilobatch(*words, "-n", 3)
        assert done.returncode == 2
        assert "3 workers asked of cluster laptop, which has 2" in done.stderr


@pytest.mark.parametrize(
    ("communicator", "complaint"),
    [
        ("{kind: Torus, row: 3}", "Torus: 4 workers do not divide into rows of 3"),
        ("{kind: SharedWindow, ranks_per_node: 3}", "SharedWindow: 4 workers do not divide into nodes of 3"),
    ],
)
def test_a_communicator_that_so_many_workers_cannot_take_is_refused_before_they_start(
    tmp_path, kilobatch, communicator, complaint
):
    """The ranks began, and each of them left with a traceback."""
    words = ("--set", f"cluster.exchange.communicator={communicator}")
    done = kilobatch("train", *SMALL, *words, "-n", 4, "--out", tmp_path / "run")
    assert (done.returncode, (tmp_path / "run").exists()) == (2, False), done.stderr
    assert complaint in done.stderr
    assert done.stderr.startswith("command line:")
