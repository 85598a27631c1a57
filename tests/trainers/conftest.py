"""Runs on resident ranks, and what it means that two are the same."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

UPDATES = 24
EQUAL = ("sample_ids", "images_sha256", "momentum", "global_batch_size", "epoch", "samples")
RECIPE = "digits/ramp"  # a small ResNet, norm_span 32, batch 96, then 192 from epoch 1 (update 16) on


@dataclass
class Finished:
    folder: Path
    trace: list
    weights: dict
    log: str


def _assert_same_run(actual, expected, *, loss=0.0, weights=0.0, rate=0.0):
    assert [line["update"] for line in actual.trace] == list(range(len(expected.trace)))
    for line, other in zip(actual.trace, expected.trace, strict=True):
        for key in EQUAL:
            assert line[key] == other[key], (line["update"], key)
        assert line["learning_rate"] == pytest.approx(other["learning_rate"], rel=rate, abs=0), line["update"]
        assert line["loss"] == pytest.approx(other["loss"], rel=loss), line["update"]
    assert actual.weights.keys() == expected.weights.keys()
    for path, array in actual.weights.items():
        np.testing.assert_allclose(array, expected.weights[path], rtol=0, atol=weights, err_msg=path)


@pytest.fixture(scope="session")
def train(kilobatch):
    """Trains `train(folder, ranks, *options, stop_after=24, recipe="digits/ramp", dtype="float32")` to a `Finished`.

    On resident ranks, or, with own_ranks=True, by the command that a user types. As typed: in exact mode where the plan
    holds it; with `--fast` among the options ranks differ by rounding.
    """

    def run(folder, ranks, *options, stop_after=UPDATES, recipe=RECIPE, dtype="float32", timeout=300, own_ranks=False):
        words = ["train", recipe, "--trace", "--no-report", "--out", folder, "--stop-after", f"{stop_after}up"]
        words += ["--set", "evaluation.every=5ep", *options]
        environment = {"CHAINER_DTYPE": dtype}
        if own_ranks or "--kernels" in options:  # kernels hold for the rest of a process
            command = [sys.executable, "-P", "-m", "kilobatch", *map(str, words), "-n", str(ranks)]
            environment = {**os.environ, **environment}
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
        else:
            done = kilobatch(*words, ranks=ranks, environment=environment, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        checkpoint = folder / "checkpoints" / f"update-{stop_after:06d}"
        return Finished(
            folder=folder,
            trace=[json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()],
            weights=load_file(checkpoint / "weights.safetensors"),
            log=(folder / "log.txt").read_text(),
        )

    return run


@pytest.fixture(scope="session")
def assert_same_run():
    """Asserts `assert_same_run(found, expected, loss=0, weights=0, rate=0)`: to the bit but for what is given."""
    return _assert_same_run


@pytest.fixture(scope="session")
def write_cluster():
    """`write_cluster(path, rate, **hardware)`: a cluster of two CPU workers that train at this rate; its file."""

    def write(path, rate, **hardware):
        of_all = {"image_size": 8, "precision": "float32", "devices": 1, "basis": "published", "source": "assumed"}
        link = {"kind": "shared_memory", "gb_per_second": 5, "source": "assumed"}
        hardware |= {"source": "assumed", "device": "core", "node_link": link, "rates": [{**of_all, **rate}]}
        cluster = {"name": path.stem, "source": "assumed", "nodes": 1, "workers_per_node": 2, "device": "cpu"}
        path.write_text(json.dumps({**cluster, "device_memory_bytes": 8_000_000_000, "hardware": hardware}))
        return path

    return write


@pytest.fixture(scope="session")
def processes_of():
    """`processes_of(folder)`: the processes that work on a run; with gone=True they must end within a timeout."""

    def working_on(folder):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has just ended
                if str(folder).encode() in path.read_bytes():
                    yield path.parent.name

    def find(folder, *, gone=False, timeout=5):
        until = time.monotonic() + timeout
        while (actual := [*working_on(folder)]) and gone and time.monotonic() < until:
            time.sleep(0.05)
        assert not (gone and actual), f"still working on {folder}: {actual}"
        return actual

    return find
