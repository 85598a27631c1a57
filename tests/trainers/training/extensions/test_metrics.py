"""The lines of `metrics.jsonl`."""

import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from trainers.runs.phase_clock import PhaseClock, RankSeconds
from trainers.training.extensions import metrics as metrics_module
from trainers.training.extensions.metrics import Metrics


def test_a_clock_that_is_set_back_while_the_run_trains_changes_no_duration(tmp_path, monkeypatch):
    lines = []
    ranks = RankSeconds(PhaseClock(), MPI.COMM_SELF, counts_lost=False)
    metrics = Metrics(tmp_path / "metrics.jsonl", writes=True, ranks=ranks, memory=dict, observe=lines.append)
    began = time.time()
    metrics.write("one", 1)
    monkeypatch.setattr(time, "time", lambda: began - 3600)
    metrics.write("two", 2)
    metrics.close()
    first, second = (line["time_ms"] for line in lines)
    assert abs(first - 1000 * began) < 1000
    assert 0 <= second - first < 1000


@pytest.fixture
def of_an_extension(tmp_path):
    """The metrics after three updates, and the lines that were written."""
    lines = []
    ranks = RankSeconds(PhaseClock(), MPI.COMM_SELF, counts_lost=False)
    metrics = Metrics(tmp_path / "metrics.jsonl", writes=True, ranks=ranks, memory=dict, observe=lines.append)
    metrics.initialize(SimpleNamespace(updater=SimpleNamespace(iteration=3, epoch_detail=0.5)))
    yield metrics, lines
    metrics.close()


def test_a_line_of_an_extension_says_when_it_was_written_in_plain_data(of_an_extension):
    metrics, lines = of_an_extension
    metrics.write("largest", np.float32(0.5), norms=np.array([1, 2]))
    metrics.write("later", {np.int64(1): 1, 2: [{"a": 3}]}, update=2)
    assert [{name: line[name] for name in line if name != "time_ms"} for line in lines] == [
        {"key": "largest", "value": 0.5, "update": 3, "epoch": 0.5, "norms": [1, 2]},
        {"key": "later", "value": {"1": 1, "2": [{"a": 3}]}, "update": 2, "epoch": 0.5},
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("eval_accuracy", 1.0, "^eval_accuracy is a name of kilobatch's own in the metrics; write under another"),
        ("mine", object(), "^the metric mine has a value, which holds a object; a run's files take numbers, texts"),
        (
            "mine",
            [{(1, 2): 3}],
            r"^the metric mine has a value, which holds a dict with the key \(1, 2\), a tuple",
        ),
        ("mine", {"seen": [2**64]}, r"^the metric mine: the whole number 18446744073709551616\.\.\. has more than 64"),
    ],
)
def test_a_line_that_readers_of_the_run_would_mistake_is_refused(of_an_extension, key, value, message):
    metrics, lines = of_an_extension
    with pytest.raises(ValueError, match=message):
        metrics.write(key, value)
    assert lines == []


def test_no_own_key_is_missing_in_the_list():
    rooms = Path(metrics_module.__file__).parents[1]
    written = re.findall(r'\.record\(\s*"(\w+)"', "".join(file.read_text() for file in rooms.rglob("*.py")))
    of_scores = {"eval_accuracy", "eval_loss"}  # written by the name of each score
    assert {*written} | of_scores == {*metrics_module.OWN_KEYS}
